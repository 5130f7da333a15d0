"""Following a growing file, on every kind of host, through truncation, rotation and lost links; cutting into lines."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.errors import RemoteError
from remote.follow import Chunk, LineBuffer, follow
from remote.host import Host, open_host
from tests.remote.servers import SshServer
from tests.remote.waiting import gone, until


class Watched:
    """A file that is followed in the background, and what came of it."""

    def __init__(self, host: Host, path: Path, offset: int = 0) -> None:
        self.chunks: list[Chunk] = []
        self._task = asyncio.create_task(self._watch(host, path, offset))

    async def _watch(self, host: Host, path: Path, offset: int) -> None:
        async with aclosing(follow(host, str(path), offset, first_pause=0.02, longest_pause=0.1)) as chunks:
            async for chunk in chunks:
                self.chunks.append(chunk)

    @property
    def events(self) -> list[str]:
        return [chunk.event for chunk in self.chunks if chunk.event != "data"]

    @property
    def data(self) -> bytes:
        return b"".join(chunk.data for chunk in self.chunks)

    async def has(self, data: bytes) -> None:
        """Wait until exactly `data` has come."""
        await until(lambda: len(self.data) >= len(data) or self._task.done())
        if self._task.done():
            self._task.result()
        assert self.data == data

    async def saw(self, event: str) -> None:
        await until(lambda: event in self.events or self._task.done())
        assert event in self.events

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


async def test_what_is_there_and_what_is_appended_comes_once_with_its_offset(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "server it's.log"
    log.write_bytes(b"zero\xff\n")
    watched = Watched(host, log)
    await watched.has(b"zero\xff\n")
    append(log, b"one, cut ")
    await watched.has(b"zero\xff\none, cut ")
    append(log, b"in two\n")
    await watched.has(b"zero\xff\none, cut in two\n")
    for chunk in watched.chunks:
        assert log.read_bytes()[chunk.offset :].startswith(chunk.data)
    assert watched.events == []
    await watched.close()


async def test_it_starts_where_it_is_told(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"0123456789")
    from_the_middle, from_the_end = Watched(host, log, 4), Watched(host, log, -3)
    await from_the_middle.has(b"456789")
    await from_the_end.has(b"789")
    assert (from_the_middle.chunks[0].offset, from_the_end.chunks[0].offset) == (4, 7)
    await from_the_middle.close()
    await from_the_end.close()


async def test_a_big_file_comes_whole(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %d\n" % n for n in range(400_000)))
    watched = Watched(host, log)
    await watched.has(log.read_bytes())
    await watched.close()


async def test_a_missing_file_is_waited_for(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "not" / "yet.log"
    watched = Watched(host, log)
    await watched.saw("missing")
    log.parent.mkdir()
    log.write_bytes(b"here\n")
    await watched.has(b"here\n")
    assert watched.events == ["missing"]
    await watched.close()


async def test_truncation_starts_again_at_zero(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"a long first life\n")
    watched = Watched(host, log)
    await watched.has(b"a long first life\n")
    log.write_bytes(b"second\n")
    await watched.has(b"a long first life\nsecond\n")
    assert watched.events == ["truncated"]
    assert watched.chunks[-1].offset == 0
    await watched.close()


async def test_rotation_reads_the_old_file_to_its_end_first(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old\n")
    watched = Watched(host, log)
    await watched.has(b"old\n")
    append(log, b"last words\n")
    log.rename(tmp_path / "log.1")
    log.write_bytes(b"a new and longer life\n")
    await watched.has(b"old\nlast words\na new and longer life\n")
    # Between rename and creation there may have been a look.
    assert watched.events[-1] == "rotated" or watched.events == ["missing"]
    append(log, b"goes on\n")
    await watched.has(b"old\nlast words\na new and longer life\ngoes on\n")
    await watched.close()


async def test_a_removed_file_is_waited_for_again(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n")
    watched = Watched(host, log)
    await watched.has(b"first\n")
    log.unlink()
    await watched.saw("missing")
    log.write_bytes(b"again\n")
    await watched.has(b"first\nagain\n")
    await watched.close()


async def test_a_folder_cannot_be_followed(host: Host, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="Is a directory"):
        async with aclosing(follow(host, str(tmp_path))) as chunks:
            await anext(chunks)


async def test_closing_ends_the_reader_on_the_host(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x")
    watched = Watched(host, log)
    await watched.has(b"x")
    readers = [pid for pid in all_pids() if str(log) in holds(pid)]
    assert readers
    await watched.close()
    for pid in readers:
        await gone(pid)


def all_pids() -> list[int]:
    return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]


def holds(pid: int) -> list[str]:
    try:
        return [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


async def test_a_lost_link_costs_no_byte_and_repeats_none(server: SshServer, tmp_path: Path) -> None:
    host = await open_host(server.address, **server.options)
    log = tmp_path / "log"
    log.write_bytes(b"before\n")
    watched = Watched(host, log)
    await watched.has(b"before\n")
    expected = b"before\n"
    for n in range(3):
        readers = [pid for pid in all_pids() if str(log) in holds(pid)]
        await server.drop()
        append(log, b"while down %d\n" % n)
        expected += b"while down %d\n" % n
        await watched.has(expected)
        append(log, b"after %d\n" % n)
        expected += b"after %d\n" % n
        await watched.has(expected)
        for pid in readers:
            await gone(pid)
    assert watched.events == ["lost", "resumed"] * 3
    assert host.state.reconnects == 3
    await watched.close()
    await host.close()


@pytest.mark.parametrize("how", ["rename", "truncate", "same inode, longer"])
async def test_a_file_exchanged_while_the_link_was_down_starts_again(
    server: SshServer, tmp_path: Path, how: str
) -> None:
    host = await open_host(server.address, **server.options)
    log = tmp_path / "log"
    log.write_bytes(b"the first life of this log\n")
    watched = Watched(host, log)
    await watched.has(b"the first life of this log\n")
    await server.stop()
    await watched.saw("lost")
    if how == "rename":
        log.rename(tmp_path / "log.1")
    log.write_bytes(b"second\n" if how == "truncate" else b"the second life is longer than the first\n")
    await server.start()
    await watched.has(b"the first life of this log\n" + log.read_bytes())
    assert watched.events == ["lost", "resumed", "rotated" if how == "rename" else "truncated"]
    await watched.close()
    await host.close()


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\xff", b""]), max_size=30), st.data())
def test_lines_do_not_depend_on_where_chunks_are_cut(pieces: list[bytes], data: st.DataObject) -> None:
    text = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    whole, parts = LineBuffer(), LineBuffer()
    expected = whole.feed(text) + whole.flush()
    got: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(text)]):
        got += parts.feed(text[start:end])
    assert got + parts.flush() == expected
    # bytes.splitlines cuts at exactly LF, CR and CRLF.
    assert expected == text.splitlines()


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 16))
def test_no_line_is_longer_than_the_cap(chunks: list[bytes], cap: int) -> None:
    buffer = LineBuffer(cap)
    lines = [line for chunk in chunks for line in buffer.feed(chunk)] + buffer.flush()
    full = b"".join(chunks).splitlines()
    assert lines == [line[:cap] for line in full]
    assert buffer.cut == sum(len(line) > cap for line in full)


def test_carriage_returns_can_be_left_in() -> None:
    buffer = LineBuffer(carriage_returns=False)
    assert buffer.feed(b'{"a": "\r"}\n') == [b'{"a": "\r"}']


async def test_a_log_that_is_a_pipe_is_refused_not_waited_for(host: Host, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with pytest.raises(RemoteError, match="not a regular file"):
        async with aclosing(follow(host, str(tmp_path / "log"), 0)) as chunks:
            async for _ in chunks:
                pass
