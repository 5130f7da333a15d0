"""Starting, watching, adopting and stopping servers, on every kind of host."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from remote import process, server
from remote.errors import FileMissing, NotOurs, PortTaken, RemoteError
from remote.host import Host
from remote.server import ServerRecord, ServerSpec, StopPlan
from tests.remote.servers import free_port
from tests.remote.waiting import gone, running, until

QUICK = StopPlan(term_seconds=0.2, kill_seconds=10)
PATIENT = StopPlan(term_seconds=30, kill_seconds=10)

# Listens, starts a child in its group and one in a session of its own, and says their pids; on TERM it says goodbye.
PROGRAM = """
import os, signal, socket, subprocess, sys, time
mode, port = sys.argv[1], int(sys.argv[2])
print("up", os.environ.get("WORD"), os.getcwd(), flush=True)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif mode == "polite":
    def bye(*_):
        print("goodbye", flush=True)
        sys.exit(5)
    signal.signal(signal.SIGTERM, bye)
elif mode == "crash":
    sys.exit("no weights found")
pids = []
if mode != "polite":
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    for alone in (False, True):
        pids.append(subprocess.Popen([sys.executable, "-c", ignore], start_new_session=alone).pid)
listening = socket.create_server(("127.0.0.1", port))
print("pids", *pids, flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "serve it.py"
    path.write_text(PROGRAM)
    return path


class Place:
    """What one started program said in its log."""

    def __init__(self, tmp_path: Path, program: Path) -> None:
        self.log, self.program, self.port = tmp_path / "logs" / "server.log", program, free_port()
        self.state = str(tmp_path / "state")

    def spec(self, mode: str, stop: StopPlan = QUICK) -> ServerSpec:
        argv = (sys.executable, str(self.program), mode, str(self.port))
        return ServerSpec(argv, {"WORD": "it's a 'word'"}, str(self.program.parent), str(self.log), self.port, stop)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    async def up(self) -> list[int]:
        """Wait until it listens; the pids of its children."""
        await until(lambda: "pids" in self.said() and self.said().endswith("\n"))
        return [int(word) for word in self.said().split("pids")[-1].split()]


@pytest.fixture
def place(tmp_path: Path, program: Path) -> Place:
    return Place(tmp_path, program)


async def test_a_server_runs_detached_with_its_log_and_record(host: Host, place: Place) -> None:
    place.log.parent.mkdir()
    place.log.write_text("an earlier life\n")
    record = await server.start(host, place.spec("polite", PATIENT), place.state)
    try:
        await place.up()
        assert place.said().startswith(f"an earlier life\nup it's a 'word' {place.program.parent}\n")
        assert record.log_offset == len("an earlier life\n")
        assert record.pgid == record.pid == os.getpgid(record.pid) == os.getsid(record.pid)
        assert record.env_names == ("WORD",)
        assert record.cmdline == record.argv
        status = await server.status(host, record)
        assert status.alive and status.process is not None
        assert status.process.env["WORD"] == "it's a 'word'"
        assert status.process.cwd == str(place.program.parent)
        assert status.process.rss_bytes > 0
        assert status.process.stdout == str(place.log)
        assert await server.recorded(host, place.state) == [record]
        assert "it's a 'word'" not in Path(record.file).read_text()
        assert Path(record.file).stat().st_mode & 0o777 == 0o600
    finally:
        report = await server.stop(host, record)
    assert report.gone and not report.forced
    assert report.exit_code == 5
    assert "goodbye" in place.said()
    status = await server.status(host, record)
    assert (status.alive, status.exit_code) == (False, 5)


async def test_a_server_that_ignores_sigterm_is_killed_with_all_it_started(host: Host, place: Place) -> None:
    record = await server.start(host, place.spec("stubborn"), place.state)
    children = await place.up()
    report = await server.stop(host, record)
    assert report.gone and report.forced
    assert report.signals == ("TERM", "KILL")
    assert set(children) < set(report.members)
    assert report.exit_code == -signal.SIGKILL
    for pid in [record.pid, *children]:
        assert not running(pid)


async def test_children_that_outlive_their_server_are_killed(host: Host, place: Place) -> None:
    record = await server.start(host, place.spec("plain", PATIENT), place.state)
    children = await place.up()
    report = await server.stop(host, record)
    assert report.gone
    assert not any(running(pid) for pid in [record.pid, *children])


async def test_orphans_of_a_dead_server_are_stopped_by_their_token(host: Host, place: Place) -> None:
    record = await server.start(host, place.spec("plain"), place.state)
    in_group, alone = await place.up()
    os.kill(record.pid, signal.SIGKILL)
    await gone(record.pid)
    assert running(in_group)
    with pytest.raises(NotOurs):
        await server.stop(host, replace(record, token="another"))
    assert running(in_group)
    report = await server.stop(host, record)
    assert report.gone and not running(in_group)
    os.kill(alone, signal.SIGKILL)


async def test_a_dead_server_has_its_exit_code_and_is_not_stopped_again(host: Host, place: Place) -> None:
    record = await server.start(host, place.spec("crash"), place.state)
    await gone(record.pid)
    await until(Path(record.exit_file).exists)
    status = await server.status(host, record)
    assert (status.alive, status.exit_code) == (False, 1)
    assert "no weights found" in place.said()
    with pytest.raises(NotOurs) as caught:
        await server.stop(host, record)
    assert caught.value.gone


def other(record: ServerRecord) -> dict[str, ServerRecord]:
    return {
        "start time": replace(record, start_time=record.start_time + 1),
        "boot": replace(record, boot_id="00000000-0000-0000-0000-000000000000"),
        "group": replace(record, pgid=record.pgid + 1),
        "command line": replace(record, cmdline=(*record.cmdline, "--port")),
    }


@pytest.mark.parametrize("wrong", ["start time", "boot", "group", "command line"])
async def test_a_record_that_does_not_match_kills_nothing(host: Host, place: Place, wrong: str) -> None:
    record = await server.start(host, place.spec("plain"), place.state)
    children = await place.up()
    try:
        with pytest.raises(NotOurs) as caught:
            await server.stop(host, other(record)[wrong])
        assert not caught.value.gone
        assert len(caught.value.mismatches) == 1
        assert all(running(pid) for pid in [record.pid, *children])
    finally:
        await server.stop(host, record)


async def test_a_strangers_process_is_never_stopped(host: Host, place: Place) -> None:
    record = await server.start(host, place.spec("polite"), place.state)
    await place.up()
    stranger = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    try:
        with pytest.raises(NotOurs):
            await server.stop(host, replace(record, pid=stranger.pid, pgid=stranger.pid))
        assert running(stranger.pid)
    finally:
        stranger.kill()
        await stranger.wait()
        await server.stop(host, record)


async def test_a_taken_port_is_refused_and_says_whose_it_is(host: Host, place: Place) -> None:
    record = await server.start(host, place.spec("polite"), place.state)
    await place.up()
    before = place.said()
    try:
        with pytest.raises(PortTaken, match=f"port {place.port} is taken: process {record.pid}") as caught:
            await server.start(host, place.spec("plain"), place.state)
        assert caught.value.argv == record.argv
        assert place.said() == before
    finally:
        await server.stop(host, record)


async def test_a_program_that_is_not_there_is_told_and_leaves_nothing(host: Host, place: Place) -> None:
    spec = replace(place.spec("plain"), argv=("/no/such/python", "-m", "x"))
    with pytest.raises(FileMissing, match="/no/such/python does not exist"):
        await server.start(host, spec, place.state)
    with pytest.raises(FileMissing, match="/no/folder"):
        await server.start(host, replace(place.spec("plain"), cwd="/no/folder"), place.state)
    assert await server.recorded(host, place.state) == []


async def test_a_launch_script_that_execs_stays_provable(host: Host, place: Place, tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(f"#!/bin/sh\nsleep 0.3\nexec '{sys.executable}' '{place.program}' polite {place.port}\n")
    script.chmod(0o755)
    record = await server.start(host, replace(place.spec("polite", PATIENT), argv=(str(script),)), place.state)
    await place.up()
    with pytest.raises(NotOurs, match="command line"):
        await server.stop(host, record)
    fresh = (await server.status(host, record)).record
    assert fresh.cmdline == (sys.executable, str(place.program), "polite", str(place.port))
    assert (await server.recorded(host, place.state))[0].cmdline == fresh.cmdline
    assert (await server.stop(host, fresh)).gone


async def test_a_running_server_is_adopted_and_stopped_without_its_group(host: Host, place: Place) -> None:
    assert await server.adopt(host, place.port) is None
    place.log.parent.mkdir()
    with place.log.open("wb") as log:
        shell = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            f"'{sys.executable}' '{place.program}' plain {place.port} & wait; sleep 1000",
            stdout=log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": "src:/abs", "API_KEY": "secret"},
        )
    try:
        children = await place.up()
        record = await server.adopt(host, place.port, QUICK)
        assert record is not None
        assert record.pgid == shell.pid != record.pid
        assert record.argv == (sys.executable, str(place.program), "plain", str(place.port))
        assert record.log == str(place.log)
        assert "API_KEY" in record.env_names
        assert "secret" not in repr(record)
        found = await process.listener(host, place.port)
        assert found is not None and found.pid == record.pid
        assert found.pythonpath == (f"{found.cwd}/src", "/abs")
        report = await server.stop(host, record)
        assert report.gone
        assert not any(running(pid) for pid in [record.pid, *children])
        assert running(shell.pid)
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        await shell.wait()


async def test_a_process_is_looked_up_by_pid(host: Host) -> None:
    found = await process.process(host, os.getpid())
    assert found is not None
    assert found.argv and found.cwd == os.getcwd()
    assert await process.process(host, 2**22 + 1) is None


async def test_records_that_cannot_be_read_are_passed_over(host: Host, place: Place) -> None:
    folder = Path(place.state) / "servers"
    folder.mkdir(parents=True)
    for name, text in (("a.json", b"{"), ("b.json", b"[]"), ("c.json", b"{}"), ("d.json", b"\xff"), ("e.exit", b"")):
        (folder / name).write_bytes(text)
    assert await server.recorded(host, place.state) == []


async def test_an_unknown_launcher_names_the_known_ones(host: Host, place: Place) -> None:
    with pytest.raises(RemoteError, match="no launcher screen: known are setsid"):
        await server.start(host, replace(place.spec("plain"), launcher="screen"), place.state)


def test_the_hash_of_a_spec_depends_on_all_that_runs() -> None:
    spec = ServerSpec(("python", "-m", "x"), {"A": "1"}, "/", "/log", 1)
    assert spec.hash == replace(spec, stop=PATIENT).hash
    changed = [{"argv": ("python",)}, {"env": {"A": "2"}}, {"cwd": "/x"}, {"log": "/l"}, {"port": 2}]
    assert len({spec.hash, *(replace(spec, **change).hash for change in changed)}) == 6
