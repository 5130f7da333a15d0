"""The checks of a log that Docker or the journal keeps, through a session: read where it is, named, left as it was."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from console.checking import Found, Progress, Report
from console.cli import main
from console.deployment import Deployment, HostSpec, ModelSpec, ServerSpec, save_deployment
from console.exits import Exit
from console.launch import ServerStatus
from console.log_at_hand import log_at_hand
from console.session import Session
from remote.log_copy import FOLDER
from tests.console.test_following import _RECORD
from tests.remote.servers import SERVERS, SshServer, free_port
from tests.remote.waiting import until

TOOL = """#!/bin/sh
echo "$(basename "$0") $*" >> "%(folder)s/asked"
case "$*" in
  *inspect* | is-active*) cat "%(folder)s/state"; exit ;;
esac
. "%(folder)s/does"
"""
DECODE = (
    "[2026-03-01 10:00:{n:02d}] Decode batch. #running-req: 1, #token: 10, token usage: 0.01, accept len: {accept}, "
    "accept rate: 0.5, cuda graph: True, gen throughput (token/s): 90.5, #queue-req: 0"
)
FLAGS: dict[str, str | int] = {
    "speculative-algorithm": "EAGLE3",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}


@dataclass
class Tools:
    """docker, journalctl and systemctl of a host: the lines they print, what they do, and what they were asked."""

    folder: Path

    def does(self, script: str) -> None:
        (self.folder / "does").write_text(script)

    def prints(self, *lines: str) -> None:
        """Every second line comes on stderr, as engines mix them."""
        written = []
        for number, line in enumerate(lines):
            path = self.folder / f"line{number}"
            path.write_bytes(line.encode("latin-1") + b"\n")
            written.append(f'cat "{path}"' + (" >&2" if number % 2 else ""))
        self.does("\n".join(written) + "\n")

    def state(self, word: str) -> None:
        (self.folder / "state").write_text(f"{word}\n")

    @property
    def asked(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Before the servers start: they hand their PATH on."""
    made = Tools(tmp_path / "tools")
    (made.folder / "bin").mkdir(parents=True)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "model")
    for name in ("docker", "journalctl", "systemctl"):
        tool = made.folder / "bin" / name
        tool.write_text(TOOL % {"folder": made.folder})
        tool.chmod(0o755)
    made.state("true")
    made.prints(*(DECODE.format(n=n, accept=2.5) for n in range(12)))
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{made.folder / 'bin'}:{os.environ['PATH']}")
    return made


def deployment(log: str = "docker:sglang", ssh: str = "") -> Deployment:
    server = ServerSpec(log=log, url=f"http://127.0.0.1:{free_port()}", args=FLAGS)
    model = ModelSpec(os.getcwd(), os.getcwd())
    return Deployment("d", host=HostSpec(ssh=ssh, python=sys.executable), model=model, server=server)


@pytest.fixture(params=["local", *sorted(SERVERS)])
async def server(request: pytest.FixtureRequest, tools: Tools, tmp_path: Path) -> AsyncIterator[SshServer | None]:
    if request.param == "local":
        yield None
        return
    async with SERVERS[request.param](tmp_path / "ssh") as running:
        yield running


async def session_of(server: SshServer | None, log: str = "docker:sglang", **options: Any) -> Session:
    made = deployment(log, server.address if server is not None else "")
    return await Session.open(replace(made, ssh_config=server.config) if server is not None else made, **options)


@pytest.fixture
async def session(tools: Tools) -> AsyncIterator[Session]:
    opened = await Session.open(deployment())
    yield opened
    await opened.close()


async def report_of(session: Session, *only: str) -> Report:
    async with aclosing(session.check(only or ("log",))) as steps:
        told = [step async for step in steps]
    (report,) = [step for step in told if isinstance(step, Report)]
    assert [step.finding for step in told if isinstance(step, Found)] == report.findings
    return report


async def left(session: Session) -> list[str]:
    """What lies in the folder of copies on the host."""
    done = await session.host.run(["sh", "-c", f"ls {FOLDER} 2>/dev/null"], check=False)
    return done.stdout.decode().split()


@pytest.mark.parametrize(
    ("log", "state", "command"),
    [
        ("docker:sglang", "true", "docker logs --tail 40000 sglang"),
        ("journal:a.service", "active", "journalctl -u a.service -q -n 40000 -o cat"),
    ],
)
async def test_a_log_that_is_no_file_is_judged_on_the_host_and_named(
    server: SshServer | None, tools: Tools, log: str, state: str, command: str
) -> None:
    tools.state(state)
    red = "\x1b[31m{}\x1b[0m\r"
    lines = [DECODE.format(n=n, accept=2 + n % 4 / 4) for n in range(12)]
    tools.prints("not UTF-8: \xff\xfe", *(red.format(line) if n % 3 else line for n, line in enumerate(lines)))
    session = await session_of(server, log, read_only=True)
    report = await report_of(session)
    accept = report.find("log.accept")
    low = report.find("log.accept_low")
    assert accept is not None
    assert low is not None
    assert (accept["verdict"], low["verdict"]) == ("INFO", "PASS")
    facts = accept["evidence"]
    assert (facts["lines"], facts["mean"], facts["last"], facts["log"]) == (12, 2.375, 2.75, log)
    assert not any("not checked" in item["summary"] for item in report.findings)
    assert not any("ended" in item["evidence"] for item in report.findings)
    assert report.raw["inputs"]["log"] == log
    assert ".cache" not in json.dumps(report.raw)
    assert command in tools.asked
    assert await left(session) == []
    await session.close()


async def test_of_a_container_that_has_ended_the_findings_say_so(session: Session, tools: Tools) -> None:
    tools.state("false")
    report = await report_of(session)
    assert all(item["summary"].startswith("of a server that has ended: ") for item in report.findings)
    assert {item["evidence"].get("log") for item in report.findings} == {"docker:sglang", None}


async def test_where_the_command_fails_every_check_of_the_log_says_why_and_the_others_go_on(
    session: Session, tools: Tools
) -> None:
    tools.does("echo 'Error response from daemon: No such container: sglang' >&2; exit 1")
    report = await report_of(session, "log", "flags")
    of_log = [item for item in report.findings if item["check"].startswith("log.")]
    assert len(of_log) > 8
    for item in of_log:
        assert item["verdict"] == "UNKNOWN"
        assert "the log docker:sglang could not be read: `docker logs --tail 40000 sglang` on local" in item["summary"]
        assert "No such container: sglang. See the names there are with `docker ps -a`" in item["summary"]
    assert "PASS" in {item["verdict"] for item in report.findings if item["check"].startswith("flags.")}
    assert report.raw["inputs"]["log"] == "docker:sglang"
    assert await left(session) == []


def test_the_command_line_ends_as_unknowns_do(tools: Tools, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "d.toml"
    save_deployment(deployment("journal:a.service"), path)
    tools.does("")
    assert main(["check", str(path), "--only", "log"]) == Exit.OK
    shown = capsys.readouterr().out
    assert "journal:a.service" in shown
    assert "systemctl list-units" in shown
    assert main(["check", str(path), "--only", "log", "--strict", "--read-only"]) == Exit.NOT_PROVEN


@pytest.mark.parametrize("only", ["cfg", "align.states", "data"])
async def test_a_run_that_reads_no_log_asks_for_none(session: Session, tools: Tools, only: str) -> None:
    await report_of(session, only)
    assert not [line for line in tools.asked if line.startswith("docker logs")]


async def test_a_run_that_is_closed_or_cancelled_leaves_no_copy(server: SshServer | None, tools: Tools) -> None:
    session = await session_of(server)
    steps = session.check(("log",))
    assert isinstance(await anext(steps), Progress)
    assert len(await left(session)) == 1
    await steps.aclose()
    assert await left(session) == []

    tools.does('echo begun > "$(dirname "$0")/begun"; exec sleep 600')
    running = asyncio.create_task(report_of(session))
    await until(lambda: (tools.folder / "bin" / "begun").exists() or running.done())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()
    assert await left(session) == []
    await session.close()


async def test_what_cannot_be_run_on_the_host_leaves_no_copy(session: Session, tools: Tools) -> None:
    from console.errors import UsageError

    with pytest.raises(UsageError, match=r"log\.accept"):
        await report_of(session, "log.acept")
    assert [line for line in tools.asked if line.startswith("docker logs")]
    assert await left(session) == []


async def seen(session: Session, hidden: bool = False, **status: Any) -> dict[str, Any]:
    """What is added to a request for a server that was seen so."""
    session.server.last = ServerStatus(**status)
    async with log_at_hand(session, session.request(("log",)), hidden) as log:
        if log.get("log_of"):
            assert Path(log["log"]).is_file()
            log = {**log, "log": "a copy"}
        return dict(log)


COPY = {"log": "a copy", "log_of": "docker:sglang", "log_failed": "", "ended": False}


async def test_a_server_that_runs_and_writes_to_no_file_is_read_where_it_prints(session: Session, tools: Tools) -> None:
    tools.state("false")
    up: dict[str, Any] = {"phase": "ready", "pid": 1, "argv": ("python", "-m", "sglang.launch_server")}
    session.server.record = replace(_RECORD, log="")
    assert await seen(session, **up) == COPY
    session.server.record = replace(_RECORD, log="/var/log/server.log")
    assert await seen(session, **up) == {}
    session.server.record = None


@pytest.mark.parametrize(
    ("hidden", "phase", "ended"), [(True, "stopped", False), (False, "foreign", False), (False, "stopped", True)]
)
async def test_where_docker_does_not_say_the_port_tells_whether_it_has_ended(
    session: Session, tools: Tools, hidden: bool, phase: str, ended: bool
) -> None:
    tools.state("")
    assert await seen(session, hidden, phase=phase) == {**COPY, "ended": ended}


async def test_the_file_of_a_server_that_was_started_here_comes_before_a_container_that_has_ended(
    session: Session, tools: Tools, tmp_path: Path
) -> None:
    from dataclasses import asdict

    log = tmp_path / "run.log"
    log.write_text(DECODE.format(n=1, accept=2.5))
    folder = Path.home() / ".local/state/eagle-console/servers"
    folder.mkdir(parents=True)
    record = replace(_RECORD, log=str(log), port=session.deployment.server.port)
    (folder / "20260301T100000-x.json").write_text(json.dumps(asdict(record)))
    assert await seen(session) == COPY
    tools.state("false")
    assert await seen(session) == {"log": str(log), "ended": True}


async def test_another_process_on_the_port_does_not_keep_the_log_from_being_read(
    session: Session, tools: Tools
) -> None:
    """As with a published port, on which Docker's own proxy listens."""
    with socket.create_server(("127.0.0.1", session.deployment.server.port)):
        report = await report_of(session)
    accept = report.find("log.accept")
    assert accept is not None
    assert accept["evidence"]["lines"] == 12
    assert "ended" not in accept["evidence"]
