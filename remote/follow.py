"""Follows a growing file on a host across truncation, rotation and lost links; and cuts bytes into lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

from remote import scripts
from remote.errors import AuthenticationFailed, CommandFailed, HostKeyChanged, HostKeyUnknown, HostUnreachable
from remote.host import Host, resolve
from remote.stream import Stream

Event = Literal["data", "missing", "truncated", "rotated", "lost", "resumed"]
EVENTS: tuple[Event, ...] = ("data", "missing", "truncated", "rotated")
REMEMBERED = 64
LONGEST_HEAD = 4096


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the file: `data` from byte `offset` on. `event` is "data", or says what happened (without data):

    missing (waiting for the file) · truncated or rotated (it goes on at offset 0 of the new content) · lost (the link
    went down; trying again) · resumed (it is back, at the same offset).
    """

    offset: int
    data: bytes
    event: Event = "data"


async def follow(
    host: Host, path: str, offset: int = 0, *, first_pause: float = 0.5, longest_pause: float = 15.0
) -> AsyncGenerator[Chunk, None]:
    """The file from `offset` on (negative: that many bytes before its end), and what is appended, until closed.

    Bytes come as written, cut anywhere. A lost link is retried for ever with growing pauses (seconds), and no byte
    comes twice or is left out, except those of a file that was exchanged while the link was down. Raises
    PermissionDenied, CommandFailed, PythonMissing. Close it (contextlib.aclosing) to end the reader on the host.
    """
    full = await resolve(host, path)
    which, before, pause, lost = "", b"", first_pause, False
    while True:
        try:
            argv, shown = await scripts.command(host, "follow")
            async with host.stream(argv, input=None, shown=[*shown, full, str(offset)]) as stream:
                request = {"path": full, "offset": offset, "file": which, "before": before.hex()}
                await stream.write(json.dumps(request).encode() + b"\n")
                frames = _Frames(stream, host.name)
                while (frame := await frames.next()) is not None:
                    if lost:
                        lost, pause = False, first_pause
                        yield Chunk(offset, b"", "resumed")
                    event, offset, which, data = frame
                    if event != "data":
                        before = b""
                        yield Chunk(offset, b"", event)
                        continue
                    yield Chunk(offset, data)
                    offset += len(data)
                    before = (before + data)[-REMEMBERED:]
                raise CommandFailed(shown, await stream.wait(), stream.stderr_tail)
        except (AuthenticationFailed, HostKeyUnknown, HostKeyChanged):
            raise
        except HostUnreachable:
            if not lost:
                lost = True
                yield Chunk(offset, b"", "lost")
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest_pause)


class _Frames:
    """Reads the frames of on_host/follow.py."""

    def __init__(self, stream: Stream, host: str) -> None:
        self._stream, self._host = stream, host
        self._bytes = bytearray()

    async def next(self) -> tuple[Event, int, str, bytes] | None:
        """Event, offset, file identity and data; None at the end of the stream."""
        while (end := self._bytes.find(b"\n")) < 0:
            if len(self._bytes) > LONGEST_HEAD or not await self._more():
                return None
        head = scripts.decoded(bytes(self._bytes[:end]))
        del self._bytes[: end + 1]
        if head is None:
            return None
        if "refused" in head:
            raise scripts.refusal(head, self._host)
        event = next((one for one in EVENTS if one == head.get("event")), None)
        if event is None:
            return None
        size = int(head["size"])
        while len(self._bytes) < size:
            if not await self._more():
                return None
        data = bytes(self._bytes[:size])
        del self._bytes[:size]
        return event, int(head["offset"]), str(head["file"]), data

    async def _more(self) -> bool:
        data = await self._stream.read()
        self._bytes += data
        return bool(data)


class LineBuffer:
    """Turns chunks of bytes into lines. A line ends with LF, CR or CRLF (progress bars rewrite a line with CR).

    A line longer than `cap` bytes is cut to `cap`; `cut` counts such lines. Lines come without their ending.
    """

    def __init__(self, cap: int = 1 << 16, carriage_returns: bool = True) -> None:
        self._cap, self._carriage_returns = cap, carriage_returns
        self._rest = bytearray()
        self._overlong = False
        self._after_cr = False
        self.cut = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes."""
        if self._carriage_returns:
            if not data:
                return []
            second_half = self._after_cr and data.startswith(b"\n")
            self._after_cr = data.endswith(b"\r")
            data = data[second_half:].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        pieces = data.split(b"\n")
        lines = []
        for piece in pieces[:-1]:
            self._add(piece)
            lines.append(bytes(self._rest))
            self._rest.clear()
            self._overlong = False
        self._add(pieces[-1])
        return lines

    def _add(self, piece: bytes) -> None:
        self._rest += piece[: self._cap - len(self._rest) + 1]
        if len(self._rest) > self._cap:
            del self._rest[self._cap :]
            if not self._overlong:
                self._overlong = True
                self.cut += 1

    def flush(self) -> list[bytes]:
        """What is left, as a line without an ending; [] when nothing is. For the end of a file or its exchange."""
        rest = [bytes(self._rest)] if self._rest else []
        self._rest.clear()
        self._overlong = self._after_cr = False
        return rest
