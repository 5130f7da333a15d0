"""Follows logs that are no files: what a container prints, what a unit writes to the journal."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from remote.errors import (
    AuthenticationFailed,
    CommandFailed,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnreachable,
    RemoteError,
)
from remote.follow import Chunk, LineBuffer
from remote.host import Host

RESUMED = 2000
"""Lines asked for again once a link is back; what was printed beyond them meanwhile is left out."""
_REMEMBERED = 100
"""Lines by which the place is found again where it was left."""
_NO_SUCH_COMMAND = 127

# A container's own errors come on stderr, as half of what engines print does: one stream, in the order it was written.
# Where our end of stdin is gone the command is ended: it would wait for its next line for ever.
TIED = """exec 3<&0
"$@" 2>&1 </dev/null 3<&- &
child=$!
{ cat <&3 >/dev/null; kill "$child"; } >/dev/null 2>&1 &
watcher=$!
exec 3<&-
wait "$child"
code=$?
kill "$watcher" 2>/dev/null
exit "$code"
"""
_MERGED = 'exec "$@" 2>&1'


@dataclass(frozen=True, slots=True)
class LogSource:
    """A log given as `docker:NAME` or `journal:UNIT`."""

    kind: str
    name: str

    def argv(self, lines: int, follow: bool = True) -> list[str]:
        """The command that prints its last `lines`, and with `follow` what comes after them."""
        return _COMMANDS[self.kind](self.name, str(lines), ["-f"] if follow else [])

    @property
    def state_argv(self) -> list[str]:
        """The command that says in one word whether what writes it runs."""
        return [*_STATE[self.kind], self.name]

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def _docker(name: str, lines: str, follow: list[str]) -> list[str]:
    return ["docker", "logs", *follow, "--tail", lines, name]


def _journal(unit: str, lines: str, follow: list[str]) -> list[str]:
    # -q leaves out its own `-- No entries --`; in following, what it says of a journal that we may not read is of use.
    return ["journalctl", "-u", unit, *(follow or ["-q"]), "-n", lines, "-o", "cat"]


_COMMANDS: dict[str, Callable[[str, str, list[str]], list[str]]] = {"docker": _docker, "journal": _journal}
_STATE: dict[str, list[str]] = {
    "docker": ["docker", "container", "inspect", "--format", "{{.State.Running}}"],
    "journal": ["systemctl", "is-active"],
}
# What Docker and systemd themselves take as a name; neither can be read as an option, and a unit not as a pattern.
_NAMES = {
    "docker": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}"), "the name or id of a container"),
    "journal": (re.compile(r"[A-Za-z0-9_:.\\][A-Za-z0-9_:.\\@-]{0,254}"), "the name of a systemd unit"),
}


def log_source(log: str) -> LogSource | None:
    """What a deployment's log names; None for a file. Raises RemoteError for a name that cannot be one."""
    kind, colon, name = log.partition(":")
    if not colon or kind not in _COMMANDS:
        return None
    pattern, what = _NAMES[kind]
    if not pattern.fullmatch(name):
        raise RemoteError(f"log {log!r} cannot be followed", f"{name!r} is not {what}", f"Write {kind}:NAME")
    return LogSource(kind, name)


async def follow_output(
    host: Host, source: LogSource, tail: int, *, first_pause: float = 0.5, longest_pause: float = 15.0
) -> AsyncGenerator[Chunk, None]:
    """The last `tail` lines of a log and what is appended, in whole lines, until closed; `offset` counts what came.

    A lost link, and a command that ends (event "missing": the container stopped, or is not there yet), are tried again
    for ever with growing pauses (seconds). No line comes twice then, and none is left out unless more than RESUMED were
    printed meanwhile; where the last lines are not found again it is another log (event "rotated"). Docker and the
    journal are those of the host, never of the container that commands run in. Raises CommandFailed where the command
    is not there.
    """
    seen: deque[bytes] = deque(maxlen=_REMEMBERED)
    offset, pause, resuming, away = 0, first_pause, False, ""
    while True:
        argv = source.argv(RESUMED if resuming else tail)
        try:
            skip = _Skip(())
            history = await _history(host, source) if resuming else []
            if resuming and history is not None:
                if away == "lost":
                    yield Chunk(offset, b"", "resumed")
                away, at = "", _after(history, list(seen))
                if at is None:
                    yield Chunk(offset, b"", "rotated")
                for line in history[at or 0 :]:
                    yield Chunk(offset, line)
                    offset += len(line)
                seen.clear()
                seen.extend(history)
                skip = _Skip(history)
            if history is not None:
                lines = LineBuffer(carriage_returns=False)
                async with host.stream(["sh", "-c", TIED, "sh", *argv], input=None, shown=argv, outside=True) as stream:
                    async for data in stream:
                        resuming, pause = True, first_pause
                        fresh = skip.past([line + b"\n" for line in lines.feed(data)])
                        seen.extend(fresh)
                        if fresh:
                            yield Chunk(offset, b"".join(fresh))
                            offset += sum(map(len, fresh))
                    code = await stream.wait()
                if code == _NO_SUCH_COMMAND:
                    raise CommandFailed(argv, code, b"", f"{argv[0]} is not there, or not on the PATH")
            if away != "missing":
                away = "missing"
                yield Chunk(offset, b"", "missing")
        except (AuthenticationFailed, HostKeyUnknown, HostKeyChanged):
            raise
        except HostUnreachable:
            if away != "lost":
                away = "lost"
                yield Chunk(offset, b"", "lost")
        await asyncio.sleep(pause)
        pause = min(pause * 2, longest_pause)


async def _history(host: Host, source: LogSource) -> list[bytes] | None:
    """The last lines, as far as they are whole; None where the command fails."""
    argv = source.argv(RESUMED, follow=False)
    lines, found = LineBuffer(carriage_returns=False), deque[bytes](maxlen=RESUMED)
    async with host.stream(["sh", "-c", _MERGED, "sh", *argv], shown=argv, outside=True) as stream:
        async for data in stream:
            found.extend(line + b"\n" for line in lines.feed(data))
        code = await stream.wait()
    return list(found) if code == 0 else None


def _after(history: Sequence[bytes], seen: Sequence[bytes]) -> int | None:
    """Where `history` goes on after the lines seen last; None where these are not in it."""
    size = len(seen)
    ends = range(len(history), size - 1, -1)
    return next((end for end in ends if list(history[end - size : end]) == list(seen)), None)


class _Skip:
    """Leaves out what a command prints again before it comes to what is new."""

    def __init__(self, history: Sequence[bytes]) -> None:
        # A log shorter than what was asked for is printed whole; of a longer one its end is looked for.
        self._count = len(history) if len(history) < RESUMED else 0
        self._end = list(history[-_REMEMBERED:]) if len(history) >= RESUMED else []
        self._held: list[bytes] = []

    def past(self, lines: list[bytes]) -> list[bytes]:
        """Those of the next lines that are new."""
        known, self._count = lines[: self._count], max(0, self._count - len(lines))
        lines = lines[len(known) :]
        if not self._end:
            return lines
        self._held += lines
        at = _after(self._held, self._end)
        if at is None and len(self._held) <= RESUMED:
            return []
        lines, self._held, self._end = self._held[at or 0 :], [], []
        return lines
