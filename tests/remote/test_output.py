"""Following what a container prints and what a unit writes, on every kind of host, through lost links and restarts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote import output
from remote.errors import CommandFailed, RemoteError
from remote.follow import Chunk
from remote.host import Host, open_host
from remote.output import LogSource, follow_output, log_source
from tests.remote.servers import SERVERS, SshServer
from tests.remote.test_follow import all_pids
from tests.remote.waiting import gone, until

# As the real ones do as far as a caller can tell: a container's lines come on stderr where it wrote them there, and the
# end of the container ends the command. The file beside them stands for what Docker or the journal keeps.
DOCKER = """#!/bin/sh
echo "$@" >> "{folder}/asked"
[ "$1" = logs ] || exit 125
shift
[ "$1" = -f ] && follow="--pid=$(cat "{folder}/alive") -f" && shift
[ "$1" = --tail ] || exit 125
[ -e "{folder}/$3" ] || {{ echo "Error response from daemon: No such container: $3" >&2; exit 1; }}
exec tail -s 0.02 $follow -n "$2" "{folder}/$3" >&2
"""
JOURNALCTL = """#!/bin/sh
echo "$@" >> "{folder}/asked"
[ "$1" = -u ] || exit 1
unit=$2; shift 2
[ "$1" = -f ] && follow="--pid=$(cat "{folder}/alive") -f"
[ "$2 $4 $5" = "-n -o cat" ] || exit 1
exec tail -s 0.02 $follow -n "$3" "{folder}/$unit"
"""
SOURCES = ("docker", "journal")


class Kept:
    """What a source keeps, in a folder, with the two commands on the PATH; `alive` is what the lines come from."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "sglang"
        for name, text in (("docker", DOCKER), ("journalctl", JOURNALCTL)):
            tool = folder / "bin" / name
            tool.parent.mkdir(parents=True, exist_ok=True)
            tool.write_text(text.format(folder=folder))
            tool.chmod(0o755)
        self.alive: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.alive = await asyncio.create_subprocess_exec("sleep", "600")
        (self.folder / "alive").write_text(str(self.alive.pid))

    async def stop(self) -> None:
        if self.alive is not None and self.alive.returncode is None:
            self.alive.kill()
            await self.alive.wait()

    def write(self, *lines: str) -> None:
        with self.path.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))


def words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
async def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    """Before the servers start: they hand their PATH on."""
    made = Kept(tmp_path / "kept")
    monkeypatch.setenv("PATH", f"{made.folder / 'bin'}:{os.environ['PATH']}")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture(params=["local", "asyncssh", "openssh"])
async def reached(request: pytest.FixtureRequest, kept: Kept, tmp_path: Path) -> AsyncIterator[Host]:
    """A host whose commands `docker` and `journalctl` are those of `kept`; commands run in no container of it."""
    if request.param == "local":
        opened = await open_host(None, container="no-such-container")
        yield opened
        await opened.close()
        return
    async with SERVERS[request.param](tmp_path / "ssh") as running:
        opened = await open_host(running.address, **running.options)
        yield opened
        await opened.close()


@pytest.fixture
async def served(kept: Kept, tmp_path: Path) -> AsyncIterator[SshServer]:
    async with SERVERS["openssh"](tmp_path / "ssh") as running:
        yield running


class Followed:
    """A source that is followed in the background, and what came of it."""

    def __init__(self, host: Host, kind: str, tail: int = 100) -> None:
        self.chunks: list[Chunk] = []
        self.task = asyncio.create_task(self._follow(host, LogSource(kind, "sglang"), tail))

    async def _follow(self, host: Host, source: LogSource, tail: int) -> None:
        async with aclosing(follow_output(host, source, tail, first_pause=0.05, longest_pause=0.2)) as chunks:
            async for chunk in chunks:
                self.chunks.append(chunk)

    @property
    def lines(self) -> list[str]:
        return b"".join(chunk.data for chunk in self.chunks).decode().splitlines()

    @property
    def events(self) -> list[str]:
        return [chunk.event for chunk in self.chunks if chunk.event != "data"]

    async def has(self, *lines: str) -> None:
        """Wait until exactly these lines have come."""
        await until(lambda: len(self.lines) >= len(lines) or self.task.done())
        if self.task.done():
            self.task.result()
        assert self.lines == list(lines)

    async def saw(self, *events: str) -> None:
        await until(lambda: self.events[-len(events) :] == list(events) or self.task.done())
        assert self.events[-len(events) :] == list(events)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.mark.parametrize("kind", SOURCES)
async def test_the_last_lines_and_what_is_appended_come_once(reached: Host, kept: Kept, kind: str) -> None:
    kept.write("one", "two", "three")
    followed = Followed(reached, kind, 2)
    await followed.has("two", "three")
    kept.write("four \x1b[31m[bold]", "five")
    await followed.has("two", "three", "four \x1b[31m[bold]", "five")
    offsets = [chunk.offset for chunk in followed.chunks]
    assert offsets == sorted(offsets) and offsets[0] == 0
    asked = (kept.folder / "asked").read_text().splitlines()
    assert asked == [{"docker": "logs -f --tail 2 sglang", "journal": "-u sglang -f -n 2 -o cat"}[kind]]
    await followed.close()


@pytest.mark.parametrize("kind", SOURCES)
async def test_closing_ends_the_command_on_the_host(reached: Host, kept: Kept, kind: str) -> None:
    kept.write("one")
    followed = Followed(reached, kind)
    await followed.has("one")
    readers = [pid for pid in all_pids() if str(kept.path).encode() in words(pid)]
    assert readers
    await followed.close()
    for pid in readers:
        await gone(pid)


@pytest.mark.parametrize("kind", SOURCES)
async def test_a_lost_link_costs_no_line_repeats_none_and_leaves_no_command(
    served: SshServer, kept: Kept, kind: str
) -> None:
    host = await open_host(served.address, **served.options)
    kept.write("same", "same", "same")
    followed = Followed(host, kind, 2)
    expected = ["same", "same"]
    await followed.has(*expected)
    for n in range(2):
        readers = [pid for pid in all_pids() if str(kept.path).encode() in words(pid)]
        await served.drop()
        kept.write(f"while down {n}")
        expected.append(f"while down {n}")
        await followed.has(*expected)
        kept.write("same", f"after {n}")
        expected += ["same", f"after {n}"]
        await followed.has(*expected)
        for pid in readers:
            await gone(pid)
    assert followed.events == ["lost", "resumed"] * 2
    await followed.close()
    await host.close()


async def test_a_log_longer_than_what_is_asked_for_again_goes_on_where_it_was_left(
    served: SshServer, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "RESUMED", 150)
    host = await open_host(served.address, **served.options)
    kept.write(*(f"line {n}" for n in range(400)))
    followed = Followed(host, "docker", 3)
    await followed.has("line 397", "line 398", "line 399")
    await served.drop()
    kept.write("line 400")
    await followed.saw("lost", "resumed")
    kept.write("line 401")
    await followed.has(*(f"line {n}" for n in range(397, 402)))
    await followed.close()
    await host.close()


async def test_a_container_that_is_not_there_yet_says_so_and_is_waited_for(reached: Host, kept: Kept) -> None:
    followed = Followed(reached, "docker")
    await followed.has("Error response from daemon: No such container: sglang")
    await followed.saw("missing")
    kept.write("first words")
    await followed.has("Error response from daemon: No such container: sglang", "first words")
    assert followed.events == ["missing", "rotated"]
    await followed.close()


async def test_a_container_that_is_started_again_goes_on_and_a_new_one_is_another_log(
    reached: Host, kept: Kept
) -> None:
    kept.write("first life")
    followed = Followed(reached, "docker")
    await followed.has("first life")
    await kept.stop()
    await followed.saw("missing")
    await kept.start()
    kept.write("second life")
    await followed.has("first life", "second life")
    assert followed.events == ["missing"]
    await kept.stop()
    await followed.saw("missing", "missing")
    kept.path.write_text("another container\n")
    await kept.start()
    await followed.has("first life", "second life", "another container")
    assert followed.events == ["missing", "missing", "rotated"]
    await followed.close()


async def test_a_host_without_the_command_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in ("sh", "cat"):
        (tmp_path / tool).symlink_to(f"/bin/{tool}")
    monkeypatch.setenv("PATH", str(tmp_path))
    host = await open_host(None)
    with pytest.raises(CommandFailed, match="journalctl is not there"):
        async with aclosing(follow_output(host, LogSource("journal", "sglang"), 5)) as chunks:
            async for _ in chunks:
                pass


@pytest.mark.parametrize(
    ("log", "argv"),
    [
        ("docker:sglang-1", ["docker", "logs", "-f", "--tail", "7", "sglang-1"]),
        ("journal:sglang@1.service", ["journalctl", "-u", "sglang@1.service", "-f", "-n", "7", "-o", "cat"]),
    ],
)
def test_what_is_run_for_a_source(log: str, argv: list[str]) -> None:
    source = log_source(log)
    assert source is not None and source.argv(7) == argv


@pytest.mark.parametrize("log", ["/var/log/a.log", "server.log", "dockers:a", "", "C:/log", "~/docker:x"])
def test_anything_else_is_a_file(log: str) -> None:
    assert log_source(log) is None


@pytest.mark.parametrize("name", ["", "-f", "--help", "a b", "a;b", "$(x)", "a/b", "*", "a\nb", "ü", "a" * 300, "a\0"])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_name_that_is_none_is_refused(kind: str, name: str) -> None:
    with pytest.raises(RemoteError, match="cannot be followed"):
        log_source(f"{kind}:{name}")


@given(st.lists(st.sampled_from("ab"), max_size=30), st.integers(0, 8), st.integers(0, 8), st.integers(1, 5))
def test_what_was_printed_before_is_left_out(log: list[str], new: int, later: int, at_once: int) -> None:
    """`history` was read, `later` lines came before following began, which prints the whole log again."""
    history = [line.encode() for line in log]
    appended = [b"new %d" % n for n in range(new + later)]
    printed = history + appended
    skip = output._Skip(history)
    got = [line for start in range(0, len(printed), at_once) for line in skip.past(printed[start : start + at_once])]
    assert got == appended
