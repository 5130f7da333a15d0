"""Servers in another's place for a while: the first one comes back, on every kind of host, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remote import process, server
from remote.errors import FileMissing
from remote.host import Host
from remote.interim import Pending, interim, pending
from remote.server import ServerRecord, ServerSpec
from tests.remote.servers import free_port
from tests.remote.waiting import until

# Listens, and says who it is.
PROGRAM = """
import os, socket, sys, time
listening = socket.create_server(("127.0.0.1", int(sys.argv[2])))
print(sys.argv[1], os.environ.get("WORD"), flush=True)
while True:
    time.sleep(0.05)
"""
# What a console does, as a process that can be killed.
CONSOLE = """
import asyncio, sys
from remote import server
from remote.host import LocalHost
from remote.interim import interim
from remote.server import ServerSpec
async def main(port, log, *programs):
    host = LocalHost()
    words = [p.split() for p in programs]
    first, other = (ServerSpec((sys.executable, *w), {"WORD": w[1]}, log=log, port=port) for w in words)
    record = await server.start(host, first)
    async with interim(host, record, first, "a console") as place:
        await place.run(other)
        print("swapped", flush=True)
        await asyncio.sleep(1000)
asyncio.run(main(int(sys.argv[1]), *sys.argv[2:]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "serve.py"
    path.write_text(PROGRAM)
    return path


class Servers:
    """A port, and the servers that may run there."""

    def __init__(self, tmp_path: Path, program: Path) -> None:
        self.port, self.log, self._program = free_port(), tmp_path / "server.log", program

    def spec(self, word: str) -> ServerSpec:
        argv = (sys.executable, str(self._program), word, str(self.port))
        return ServerSpec(argv, {"WORD": word}, log=str(self.log), port=self.port)

    @property
    def said(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    async def runs(self, host: Host, word: str) -> None:
        """Wait until the server of that name has the port."""
        async with asyncio.timeout(30):
            while (found := await process.listener(host, self.port)) is None or found.argv[2] != word:
                await asyncio.sleep(0.05)


@pytest.fixture
def servers(tmp_path: Path, program: Path) -> Servers:
    return Servers(tmp_path, program)


async def begun(host: Host, servers: Servers) -> ServerRecord:
    record = await server.start(host, servers.spec("first"))
    await servers.runs(host, "first")
    return record


async def test_the_first_server_is_back_afterwards(host: Host, servers: Servers) -> None:
    record = await begun(host, servers)
    async with interim(host, record, servers.spec("first"), "ann@desk: a capture") as place:
        for word in ("second", "third"):
            changed = await place.run(servers.spec(word))
            await servers.runs(host, word)
            assert changed.cmdline[2] == word
        noted = await pending(host, servers.port)
        assert isinstance(noted, Pending)
        assert (noted.who, noted.argv[2], noted.env_names) == ("ann@desk: a capture", "first", ("WORD",))
    await servers.runs(host, "first")
    assert await pending(host, servers.port) is None
    assert servers.said == ["first first", "second second", "third third", "first first"]
    # The record it left proves the server to whoever comes later.
    left = next(item for item in await server.recorded(host) if item.pid == place.record.pid)
    assert left == place.record
    assert (await server.stop(host, left)).gone


async def test_a_server_that_was_never_replaced_is_left_alone(host: Host, servers: Servers) -> None:
    record = await begun(host, servers)
    async with interim(host, record, servers.spec("first"), "x"):
        pass
    assert (await server.status(host, record)).alive
    assert await pending(host, servers.port) is None
    await server.stop(host, record)


async def test_where_the_other_cannot_start_the_first_comes_back(host: Host, servers: Servers) -> None:
    record = await begun(host, servers)
    missing = ServerSpec(("/no/such/program",), log=str(servers.log), port=servers.port)
    with pytest.raises(FileMissing, match="/no/such/program"):
        async with interim(host, record, servers.spec("first"), "x") as place:
            await place.run(missing)
    await servers.runs(host, "first")
    await server.stop(host, place.record)


async def test_an_end_in_the_middle_brings_the_first_back(host: Host, servers: Servers) -> None:
    record = await begun(host, servers)
    with pytest.raises(RuntimeError):
        async with interim(host, record, servers.spec("first"), "x") as place:
            await place.run(servers.spec("second"))
            raise RuntimeError
    await servers.runs(host, "first")
    await server.stop(host, place.record)


async def test_a_killed_console_leaves_the_host_to_do_it(
    servers: Servers, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from remote.host import LocalHost

    monkeypatch.setenv("HOME", str(tmp_path))
    programs = [f"{program} {word} {servers.port}" for word in ("first", "second")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", CONSOLE, str(servers.port), str(servers.log), *programs]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as console:
        assert console.stdout is not None
        assert await asyncio.to_thread(console.stdout.readline) == b"swapped\n"
        host = LocalHost()
        await servers.runs(host, "second")
        console.send_signal(signal.SIGKILL)
    await servers.runs(host, "first")
    note = tmp_path / ".local/state/eagle-console/interim" / f"{servers.port}.json"
    await until(lambda: not note.exists())
    newest = (await server.recorded(host))[0]
    assert newest.cmdline[2] == "first"
    assert newest.started_at <= time.time()
    await server.stop(host, newest)
