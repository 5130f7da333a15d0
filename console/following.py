"""The server's log as batches of events: from the host's bytes through lines to the engine's parser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from console.launch import engine_part
from console.masking import mask_text

if TYPE_CHECKING:
    from remote.follow import Chunk
    from remote.host import Host

LINE_BYTES = 160
"""A generous mean length of a log line: how far before the end to begin for a number of lines."""
_AT_ONCE = 1 << 12
"""Bytes parsed without a pause: some twenty lines, a millisecond or two."""


Tell = Callable[[str], None]
"""Hears a sentence about what is followed."""


class LineParser:
    """Turns chunks of a log into events. A growing log is cut at carriage returns too, so that progress bars move.

    Secrets are masked first: engines print the flags they were started with.
    `physical` keeps to the physical lines instead, and numbers them from the first: for a log that is finished.
    """

    def __init__(self, engine: str, physical: bool = False) -> None:
        from remote.follow import LineBuffer

        self._reader = engine_part(engine, "log").Reader()
        self._buffer = LineBuffer(carriage_returns=not physical)

    def feed(self, data: bytes) -> list[Any]:
        """The events of the lines that `data` completes."""
        return self._events(self._buffer.feed(data))

    def flush(self) -> list[Any]:
        """The events of a last line without an end."""
        return self._events(self._buffer.flush())

    def _events(self, lines: Iterable[bytes]) -> list[Any]:
        return [event for line in lines for event in self._reader.feed(mask_text(line.decode("utf-8", "replace")))]


async def follow_events(
    host: Host,
    path: str,
    engine: str,
    tail: int,
    changed: asyncio.Event,
    start: int | None = None,
    tell: Tell | None = None,
) -> AsyncGenerator[list[Any], None]:
    """Batches of events of a log, from `start` (bytes) or `tail` lines before its end, until `changed` is set.

    `path` is a file, or `docker:NAME` or `journal:UNIT`; `tell` hears when it is not there and waited for.
    Raises what remote.follow and remote.output raise.
    """
    from remote.follow import follow
    from remote.output import follow_output, log_source

    source, skip = log_source(path), False
    if source is not None:
        coming = follow_output(host, source, tail)
    else:
        offset = start if start is not None else await _begin(host, path, tail)
        # Begun in the middle of a line: its rest says nothing.
        skip = offset > 0 and start is None
        coming = follow(host, path, offset)
    parser = LineParser(engine)
    async with aclosing(coming) as chunks:
        while True:
            chunk = await _next(chunks, changed)
            if chunk is None:
                return
            if chunk.event == "missing" and tell is not None:
                what = "is not there yet" if source is None else "prints nothing now: it ended, or is not there yet"
                tell(f"{path} on {host.name} {what}; waiting for it")
            if chunk.event in ("truncated", "rotated"):
                parser = LineParser(engine)
                continue
            if chunk.event != "data":
                continue
            data = chunk.data
            if skip:
                _, newline, data = data.partition(b"\n")
                skip = not newline
            events: list[Any] = []
            for begin in range(0, len(data), _AT_ONCE):
                events += parser.feed(data[begin : begin + _AT_ONCE])
                # A long backlog must not hold the loop: keys are read and screens drawn in between.
                await asyncio.sleep(0)
            if events:
                yield events


async def _begin(host: Host, path: str, tail: int) -> int:
    from remote import files

    found = await files.stat(host, path)
    return max(0, found.size - tail * LINE_BYTES) if found else 0


async def _next(chunks: AsyncIterator[Chunk], changed: asyncio.Event) -> Chunk | None:
    """The next chunk, or None when `changed` is set first."""
    coming = asyncio.ensure_future(anext(chunks))
    other = asyncio.ensure_future(changed.wait())
    try:
        await asyncio.wait((coming, other), return_when=asyncio.FIRST_COMPLETED)
        return await coming if coming.done() else None
    except StopAsyncIteration:
        return None
    finally:
        for task in (coming, other):
            if not task.done():
                task.cancel()
        await asyncio.gather(coming, other, return_exceptions=True)
