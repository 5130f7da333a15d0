"""One deployment over a real SSH connection: looked at, judged, fixed, restarted, and remembered."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.checking import Found, Progress, Report
from console.demo.setup import WIRINGS, free_port, wire
from console.deployment import Deployment, HostSpec
from console.embedded import Embedded, embedded_host
from console.errors import NotRun, Refused, StartFailed, UsageError
from console.session import Session
from console.wiring import BAD, OK, UNKNOWN
from remote.errors import Busy, HostUnreachable, PortTaken, PythonMissing


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with embedded_host("embedding") as running:
        yield running


@pytest.fixture
async def session(embedded: Embedded) -> AsyncIterator[Session]:
    """An open session on the embedded host, its draft wired wrongly; whatever server it leaves is stopped."""
    wire(embedded.folder.draft_config, WIRINGS["embedding"])
    opened = await Session.open(embedded.folder.deployment)
    yield opened
    if (await opened.status()).up:
        await opened.stop("end of test")
    await opened.close()


def changed(embedded: Embedded, **server: Any) -> Deployment:
    deployment = embedded.folder.deployment
    return replace(deployment, server=replace(deployment.server, **server))


async def steps_of(session: Session, **options: Any) -> list[Any]:
    async with aclosing(session.check(**options)) as steps:
        return [step async for step in steps]


async def test_from_a_wrong_wiring_to_a_right_one(session: Session, embedded: Embedded) -> None:
    steps: list[str] = []
    first = await session.start("wrong", lambda name, _: steps.append(name))
    assert steps[0] == "lock"
    assert {"start", "loading", "ready"} <= set(steps)
    assert (first.state, first.why) == ("ready", "wrong")

    status = await session.status()
    assert (status.phase, status.healthy, status.differences) == ("ready", True, ())
    assert "demo, sglang-compatible" in status.engine
    assert session.serving.ceiling == 6

    told = await steps_of(session)
    assert any(isinstance(step, Progress) for step in told)
    report = told[-1]
    assert isinstance(report, Report)
    assert [step.finding for step in told if isinstance(step, Found)] == report.findings
    assert report.verdict == "FAIL"
    assert report.raw["host"] == "demo-gpu"
    wiring = session.wiring()
    assert (wiring.n, wiring.trained, wiring.served, wiring.state) == (12, (3, 7, 10), (0, 3, 7), BAD)

    finding = report.find("align.engine_pair")
    assert finding is not None
    await session.draft.load()
    session.draft.stage_fix(finding["fix"], finding)
    assert session.wiring_of(session.draft.staged).state == OK
    assert session.wiring_of("{}").state == UNKNOWN
    await session.draft.write("fix")
    second = await session.restart("fix of align.engine_pair")
    assert session.wiring().state == UNKNOWN
    await steps_of(session, only=("align.engine_pair",))
    assert session.wiring().state == OK

    runs = await session.runs.list("demo")
    assert [run.id for run in runs[:2]] == [second.id, first.id]
    assert runs[0].finding is not None
    assert runs[0].finding["check"] == "align.engine_pair"
    assert (runs[1].verdict, runs[1].state) == ("FAIL", "stopped")
    assert runs[0].config_sha != runs[1].config_sha


async def test_the_log_is_followed_across_a_restart_and_the_run_remembers_what_it_measured(session: Session) -> None:
    from console.story import measure

    seen: list[Any] = []

    async def follow() -> None:
        async with aclosing(session.follow_log(tail=0)) as batches:
            async for batch in batches:
                seen.extend(batch)

    following = asyncio.create_task(follow())
    await session.start("one")
    await measure(session, ["def f(x):\n    return", "import os\nimport"])
    await session.restart("two")
    await measure(session, ["class A:\n    def"])
    for _ in range(100):
        if session.serving.accept_len is not None and session.serving.phase == "serving":
            break
        await asyncio.sleep(0.05)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert [event.phase for event in seen if event.event == "phase"].count("ready") == 2
    assert session.serving.by_position is not None
    stopped = (await session.runs.list("demo"))[1]
    assert stopped.accept_len is not None
    assert 1 <= stopped.accept_len <= 6
    assert stopped.windows >= 1


async def test_a_read_only_session_changes_nothing(session: Session, embedded: Embedded) -> None:
    reader = await Session.open(embedded.folder.deployment, read_only=True)
    await reader.draft.load()
    reader.draft.set("hidden_size", 1)
    for refused in (reader.start("x"), reader.stop("x"), reader.restart("x"), reader.draft.write()):
        with pytest.raises(Refused, match="read-only"):
            await refused
    assert json.loads(embedded.folder.draft_config.read_text("utf-8"))["hidden_size"] != 1
    await reader.close()


async def test_two_consoles_do_not_change_one_server_at_once(session: Session, embedded: Embedded) -> None:
    other = await Session.open(embedded.folder.deployment)
    starting = asyncio.create_task(session.start("first"))
    for _ in range(100):
        if any("lock" in " ".join(record.argv) for record in session.host.commands):
            break
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    with pytest.raises(Busy, match="start the server"):
        await other.stop("second")
    await starting
    assert (await other.status()).pid == session.last_status.pid
    await other.close()


async def test_a_restart_by_another_console_is_seen_at_once(session: Session, embedded: Embedded) -> None:
    await session.start("first")
    before = (await session.status()).pid
    other = await Session.open(embedded.folder.deployment)
    try:
        await other.restart("from elsewhere")
    finally:
        await other.close()
    seen = await session.status()
    assert seen.up
    assert seen.pid != before


async def test_a_server_that_runs_is_not_started_again(session: Session) -> None:
    await session.start("once")
    with pytest.raises(Refused, match="runs already"):
        await session.start("twice")


async def test_a_server_that_dies_while_starting_says_why(session: Session, embedded: Embedded) -> None:
    with pytest.raises(StartFailed, match="unrecognized arguments") as failed:
        await session.start("bad flag", overrides={"no-such-flag": 3})
    assert failed.value.lines
    run = (await session.runs.list("demo"))[0]
    assert run.state == "failed"
    assert "unrecognized arguments" in run.note
    assert not (await session.status()).up


async def test_ids_the_engine_cannot_serve_end_the_start_with_their_reason(
    session: Session, embedded: Embedded
) -> None:
    wire(embedded.folder.draft_config, (2, 6, 6))
    with pytest.raises(StartFailed, match="layer ids"):
        await session.start("duplicate ids")


async def test_a_port_that_somebody_else_has_is_named(session: Session, embedded: Embedded) -> None:
    port = session.deployment.server.port
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import http.server; http.server.HTTPServer(('127.0.0.1', {port}), None).serve_forever()",
        ]
    ) as other:
        for _ in range(100):
            if (await session.status()).phase == "foreign":
                break
            await asyncio.sleep(0.05)
        assert session.last_status.phase == "foreign"
        assert str(other.pid) in session.last_status.note
        with pytest.raises(Refused):
            await session.start("x")
        with pytest.raises(Refused, match="left alone"):
            await session.stop("x")
        assert other.poll() is None
        other.kill()
    session.server.record = None


async def test_the_running_command_wins_and_the_difference_is_shown(session: Session, embedded: Embedded) -> None:
    await session.start("as filed")
    other = await Session.open(changed(embedded, args={**session.deployment.server.args, "speculative-num-steps": 3}))
    status = await other.status()
    assert [(item.key, item.planned, item.running) for item in status.differences] == [
        ("speculative-num-steps", "3", "5")
    ]
    assert other.serving.ceiling == 6
    assert [item.key for item in other.plan({"decode-log-interval": None}).changes] == [
        "decode-log-interval",
        "speculative-num-steps",
    ]
    await other.close()


async def test_back_to_the_last_configuration_that_served_well(session: Session, embedded: Embedded) -> None:
    from console.story import measure

    wire(embedded.folder.draft_config, WIRINGS["right"])
    await session.start("good")
    await measure(session, ["import sys\n"])
    await session.draft.load()
    session.draft.set("/eagle_config/eagle_aux_hidden_state_layer_ids", [-1, 2, 6])
    await session.draft.write()
    bad = await session.restart("bad")
    await session.runs.update(bad.id, verdict="FAIL")
    await session.restart("back", last_good=True)
    ids = json.loads(embedded.folder.draft_config.read_text("utf-8"))["eagle_config"]
    assert ids["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]


async def test_a_crash_is_told_from_a_stop(session: Session) -> None:
    await session.start("to be killed")
    pid = session.last_status.pid
    await session.host.run(["kill", "-KILL", str(pid)])
    for _ in range(100):
        if not (await session.status()).up:
            break
        await asyncio.sleep(0.05)
    assert session.last_status.phase == "crashed"
    assert str(pid) in session.last_status.note
    assert (await session.status()).phase == "crashed"
    assert (await session.runs.list("demo"))[0].state == "failed"


async def test_a_diagnosis_of_what_is_typed_comes_from_the_cfg_checks(session: Session) -> None:
    await session.draft.load()
    session.draft.set("/eagle_config/eagle_aux_hidden_state_layer_ids", [2, 6, 99])
    remarks = await session.draft.diagnose()
    assert [item.check for item in remarks] == ["cfg.aux_ids"]
    assert "99" in remarks[0].text
    assert "eagle_aux" in session.draft.staged.splitlines()[remarks[0].line - 1]


async def test_a_check_that_does_not_exist_is_a_wrong_argument(session: Session) -> None:
    with pytest.raises(UsageError, match=r"align\.states"):
        await steps_of(session, only=("align.state",))


async def test_a_cancelled_check_ends_on_the_host(session: Session) -> None:
    steps = session.check(samples=0)
    await anext(steps)
    await steps.aclose()
    for _ in range(100):
        left = await session.host.run(["pgrep", "-f", r"\.pyz"], check=False)
        if left.returncode:
            break
        await asyncio.sleep(0.05)
    assert left.returncode == 1


async def test_paths_that_are_not_there_are_named(embedded: Embedded) -> None:
    deployment = embedded.folder.deployment
    session = await Session.open(replace(deployment, model=replace(deployment.model, target="/no/such/target")))
    with pytest.raises(NotRun, match="/no/such/target"):
        await steps_of(session)
    await session.close()


async def checked_with(embedded: Embedded, python: str) -> None:
    deployment = embedded.folder.deployment
    session = await Session.open(replace(deployment, host=replace(deployment.host, python=python)))
    try:
        await steps_of(session)
    finally:
        await session.close()


async def test_a_python_that_is_not_there_is_named(embedded: Embedded) -> None:
    with pytest.raises(PythonMissing, match="/no/such/python"):
        await checked_with(embedded, "/no/such/python")


async def test_a_python_without_numpy_is_named_with_the_way_out(embedded: Embedded, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    with pytest.raises(NotRun, match=r"bare.*numpy.*\[host\]"):
        await checked_with(embedded, str(tmp_path / "bare" / "bin" / "python"))


async def test_a_host_that_is_down_is_named(embedded: Embedded) -> None:
    deployment = replace(embedded.folder.deployment, host=HostSpec(ssh=f"127.0.0.1:{free_port()}"))
    with pytest.raises(HostUnreachable, match=r"127\.0\.0\.1"):
        await Session.open(deployment)


async def test_a_port_taken_between_the_look_and_the_start_stops_the_start(
    session: Session, embedded: Embedded
) -> None:
    await session.start("holds the port")
    other = await Session.open(embedded.folder.deployment)
    with pytest.raises(PortTaken):
        await other.server.start("too late", lambda *_: None, other.plan(), None, None)
    assert (await other.runs.list("demo"))[0].state == "failed"
    await other.close()
