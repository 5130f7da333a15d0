"""Captures by command: from a server as it is, through a restart that is undone whatever happens, from the target."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from checks import capture_ways
from checks.capture_folder import open_capture
from checks.capture_ways import HOOK, STATES, way_for
from console import capturing
from console.capturing import plan_capture, take_capture
from console.checking import Progress, Report
from console.cli import main
from console.demo.setup import WIRINGS, wire
from console.deployment import Deployment
from console.embedded import Embedded, embedded_host
from console.errors import Refused
from console.exits import Exit
from console.interim import amended, stand_in
from console.session import Session
from remote.interim import pending
from remote.server import STATE

ROOT = Path(__file__).resolve().parents[2]
FLAG = "--enable-return-hidden-states"


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with embedded_host("right") as running:
        yield running


def silent(deployment: Deployment) -> Deployment:
    """The deployment whose server was started without the flag that gives hidden states."""
    args = {key: value for key, value in deployment.server.args.items() if key != FLAG[2:]}
    return replace(deployment, server=replace(deployment.server, args=args))


@pytest.fixture
def without_flag(embedded: Embedded) -> Iterator[Embedded]:
    """A server that gives no hidden states runs; whatever runs in the end is stopped."""
    wire(embedded.folder.draft_config, WIRINGS["right"])
    asyncio.run(started(silent(embedded.folder.deployment)))
    yield embedded
    asyncio.run(stopped(embedded.folder.deployment))


async def started(deployment: Deployment) -> None:
    session = await Session.open(deployment)
    try:
        await session.start("test")
    finally:
        await session.close()


async def stopped(deployment: Deployment) -> None:
    session = await Session.open(deployment)
    try:
        if (await session.status()).up:
            await session.stop("end of test")
    finally:
        await session.close()


async def running(deployment: Deployment) -> tuple[str, ...]:
    session = await Session.open(deployment)
    try:
        return (await session.status()).argv
    finally:
        await session.close()


async def seen(deployment: Deployment) -> tuple[tuple[str, ...], bool]:
    """The command line of the server, and whether it answers."""
    session = await Session.open(deployment)
    try:
        status = await session.status()
        return status.argv, status.healthy
    finally:
        await session.close()


def on_host(embedded: Embedded, *words: str) -> list[str]:
    return [
        words[0],
        str(embedded.folder.deployment.path),
        "-F",
        str(embedded.folder.deployment.ssh_config),
        *words[1:],
    ]


def test_a_server_that_gives_states_is_asked_as_it_is(
    embedded: Embedded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(started(embedded.folder.deployment))
    try:
        before = asyncio.run(running(embedded.folder.deployment))
        assert main(on_host(embedded, "capture", "--dry-run")) == Exit.OK
        assert "it stays as it is" in capsys.readouterr().out
        out = tmp_path / "captured"
        words = ["capture", "--samples", "3", "--tokens", "50", "--out", str(out), "--json"]
        assert main(on_host(embedded, *words)) == Exit.OK
        told = json.loads(capsys.readouterr().out)
        assert [item["kind"] for item in told["captures"]] == ["engine", "all-states"]
        capture = open_capture(Path(told["captures"][0]["path"]))
        assert (capture.slots, len(capture.samples), capture.ids) == (3, 3, (2, 6, 9))
        assert {len(sample.token_ids) for sample in capture.samples} == {50}
        assert capture.path.parent == out
        assert asyncio.run(running(embedded.folder.deployment)) == before
    finally:
        asyncio.run(stopped(embedded.folder.deployment))


def test_a_restart_is_told_asked_for_and_undone(
    without_flag: Embedded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = without_flag.folder.deployment
    before = asyncio.run(running(deployment))
    assert FLAG not in before
    assert main(on_host(without_flag, "capture", "--dry-run")) == Exit.OK
    planned = capsys.readouterr().out
    assert f"start: {' '.join([*before, FLAG])}" in planned
    assert "start it again as it runs now" in planned
    assert main(on_host(without_flag, "capture")) == Exit.FINDINGS, "nobody agreed"
    assert main(on_host(without_flag, "capture", "--yes", "--read-only")) == Exit.FINDINGS
    assert asyncio.run(running(deployment)) == before
    capsys.readouterr()
    out = tmp_path / "captured"
    assert main(on_host(without_flag, "capture", "--yes", "--samples", "2", "--out", str(out))) == Exit.OK
    shown = capsys.readouterr()
    assert "shows what this server feeds its draft" in shown.out
    assert open_capture(out / "engine").slots == 3
    assert asyncio.run(running(deployment)) == before
    home = without_flag.folder.home
    names = ["check", "--draft", f"{home}/draft", "--target", f"{home}/target", "--cache", f"{home}/hidden_states"]
    assert main([*names, "--capture", str(out / "all-states"), "--only", "align.states"]) == Exit.OK
    assert "the slots hold R_3, R_7, R_10" in capsys.readouterr().out


async def test_what_stood_in_is_seen_in_the_history_and_in_the_status(without_flag: Embedded) -> None:
    session = await Session.open(without_flag.folder.deployment)
    try:
        plan = await plan_capture(session)
        seen: list[str] = []
        steps = take_capture(session, plan, 2, "", lambda name, _: seen.append(name))
        events = [step async for step in steps]
        assert any(isinstance(step, Progress) for step in events)
        assert isinstance(events[-1], Report)
        assert seen.count("ready") == 2
        runs = await session.runs.list(session.deployment.name, 3)
        assert [run.why for run in runs[:2]] == ["back as it was before a capture", "for a capture"]
        assert [run.state for run in runs] == ["ready", "stopped", "stopped"]
        assert FLAG in runs[1].argv
        assert runs[0].argv == runs[2].argv
        async with stand_in(session, "a look", lambda *_: None) as stand:
            await stand.run("a look", {"decode-log-interval": 3})
            note = await pending(session.host, session.deployment.server.port)
            assert note is not None
            assert note.argv == runs[2].argv
            assert (await session.status()).argv[-2:] == ("--decode-log-interval", "3")
        assert await pending(session.host, session.deployment.server.port) is None
    finally:
        await session.close()


async def test_where_the_hook_shows_nothing_the_states_are_asked_for_in_the_same_life(without_flag: Embedded) -> None:
    config = without_flag.folder.draft_config
    before, written = config.read_text("utf-8"), config.stat()
    said: list[str] = []

    def step(name: str, detail: str) -> None:
        """The hook is refused for a draft that norms its input; the server has read its config by then, as it was."""
        if name == "capture":
            said.append(detail)
            config.write_text(json.dumps({**json.loads(before), "norm_before_fc": True}) if len(said) == 1 else before)
            os.utime(config, ns=(written.st_atime_ns, written.st_mtime_ns))

    session = await Session.open(without_flag.folder.deployment)
    try:
        plan = await plan_capture(session)
        hook_dir = without_flag.folder.home / "hook" / "one"
        hooked = replace(plan, way=way_for(HOOK, "0.5.12", {}), hook_dir=str(hook_dir), otherwise=plan.way)
        report = [item async for item in take_capture(session, hooked, 2, "", step)][-1]
        assert isinstance(report, Report)
        assert "engine" in {item["kind"] for item in report.raw["captures"]}
        assert len(said) == 2
        assert "norm_before_fc" in said[1]
        assert not hook_dir.exists()
        assert FLAG not in (await session.status()).argv
    finally:
        await session.close()


async def test_a_wide_target_is_hooked_and_can_be_asked_too(
    without_flag: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capturing, "_version", lambda _: "0.5.12")
    session = await Session.open(without_flag.folder.deployment)
    try:
        assert (await plan_capture(session)).way.name == STATES
        monkeypatch.setattr(capture_ways, "WIDE", 64)
        plan = await plan_capture(session)
        assert (plan.way.name, plan.otherwise and plan.otherwise.name) == (HOOK, STATES)
        assert FLAG in plan.argv
        (hook,) = json.loads(plan.argv[plan.argv.index("--forward-hooks") + 1])
        assert hook["config"]["folder"] == plan.hook_dir
        alone = await plan_capture(session, HOOK)
        assert (alone.way.name, alone.otherwise, FLAG in alone.argv) == (HOOK, None, False)
        assert (await plan_capture(session, STATES)).hook_dir == ""
    finally:
        await session.close()


async def test_a_command_that_does_not_come_up_is_undone_too(without_flag: Embedded) -> None:
    from console.errors import StartFailed

    session = await Session.open(without_flag.folder.deployment)
    try:
        before = (await session.status()).argv
        with pytest.raises(StartFailed, match="unrecognized arguments"):
            async with stand_in(session, "a look", lambda *_: None) as stand:
                await stand.run("a look", {"no-such-flag": True})
        assert (await session.status()).argv == before
        assert session.last_status.healthy
    finally:
        await session.close()


@pytest.mark.parametrize(
    ("line", "time_it_is_said"),
    [
        pytest.param("lock", 1, id="before the restart"),
        pytest.param("start", 1, id="while the server is stopped"),
        pytest.param("loading", 1, id="while the restarted one loads"),
        pytest.param("capture", 1, id="during the capture"),
        pytest.param("start", 2, id="while that one is stopped"),
        pytest.param("loading", 2, id="while the first one loads again"),
    ],
)
def test_a_console_killed_in_the_middle_leaves_the_server_as_it_was(
    without_flag: Embedded, line: str, time_it_is_said: int
) -> None:
    deployment = without_flag.folder.deployment
    before = asyncio.run(seen(deployment))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "console", *on_host(without_flag, "capture", "--yes")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as console:
        assert console.stderr is not None
        said = (text for text in console.stderr if text.startswith(f"{line:<11}".encode()))
        assert [text for text, _ in zip(said, range(time_it_is_said))]
        console.send_signal(signal.SIGKILL)
    note = without_flag.folder.home / STATE.removeprefix("~/") / "interim" / f"{deployment.server.port}.json"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if not note.exists() and asyncio.run(seen(deployment)) == before:
            break
        time.sleep(0.2)
    assert not note.exists()
    assert asyncio.run(seen(deployment)) == before
    # It is ours still: proven, and stopped by whoever comes next.
    assert main(on_host(without_flag, "stop", "--yes")) == Exit.OK


def test_what_is_to_be_put_back_is_told_by_status(without_flag: Embedded, capsys: pytest.CaptureFixture[str]) -> None:
    deployment = without_flag.folder.deployment
    note = without_flag.folder.home / STATE.removeprefix("~/") / "interim" / f"{deployment.server.port}.json"
    note.parent.mkdir(parents=True, exist_ok=True)
    left = {"who": "ann@desk\x1b[2J", "since": 1.0, "argv": ["py", "--api-key", "s3cret"], "env_names": ["HF_TOKEN"]}
    note.write_text(json.dumps({**left, "failed": True}), "utf-8")
    try:
        assert main(on_host(without_flag, "status")) == Exit.OK
        out = capsys.readouterr().out
    finally:
        note.unlink()
    assert "the host could not put it back" in out
    assert "run: py --api-key ••••, with HF_TOKEN in its environment" in out
    assert "\x1b" not in out
    assert "s3cret" not in out


async def test_nothing_is_captured_from_a_server_that_is_down(embedded: Embedded) -> None:
    session = await Session.open(embedded.folder.deployment)
    try:
        with pytest.raises(Refused, match="--reference"):
            await plan_capture(session)
        with pytest.raises(Refused, match="no server"):
            async with stand_in(session, "a look", lambda *_: None):
                raise AssertionError
    finally:
        await session.close()


def test_flags_are_changed_in_every_spelling() -> None:
    start = ("py", "-m", "sglang.launch_server", "--model=/m")
    argv = (*start, "--speculative-num-steps=3", "--tp", "2", "--cuda-graph-bs", "1", "2")
    changes = {"speculative-num-steps": 5, "tp-size": None, "cuda-graph-bs": [4, 8], "log-requests": True}
    assert amended(argv, changes, "sglang") == (
        *start,
        *("--speculative-num-steps", "5", "--cuda-graph-bs", "4", "8", "--log-requests"),
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--layers", "3"], "go with --reference"),
        (["--reference", "--target", "/t"], "--cache DIR"),
        (["--reference", "--how", "hook"], "asks none"),
    ],
)
def test_what_cannot_be_meant_exits_with_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", *words]) == Exit.USAGE
    assert says in capsys.readouterr().err


def test_a_python_without_transformers_says_which_to_name(
    embedded: Embedded, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    home = embedded.folder.home
    words = ["--reference", "--target", f"{home}/target", "--cache", f"{home}/hidden_states"]
    assert main(["capture", *words, "--out", str(tmp_path / "r")]) == Exit.NOT_RUN
    said = capsys.readouterr().err
    assert "[host] in the deployment" in said
    assert "pip install '.[torch]'" in said
    assert not (tmp_path / "r").exists()
