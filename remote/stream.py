"""One running command on a host: its bytes in and out, and its certain end."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from remote.errors import RemoteError

CHUNK = 1 << 16
STDERR_KEPT = 1 << 18  # the end of stderr says why a command ended; a chatty one must not fill memory

# Says which process the command became, on stderr where it cannot mix with data: an SSH server may refuse to
# deliver signals (OpenSSH does for root), so ending a command needs its pid. `exec` keeps that pid.
_IDENTIFY = """token=$1; dir=$2; shift 2
echo "$token $$" >&2
if [ -n "$dir" ]; then cd -- "$dir" || exit 126; fi
exec "$@"
"""


@dataclass(slots=True)
class LinkState:
    """How the link to a host is. Times are `time.monotonic()` seconds."""

    connected: bool = True
    last_byte: float = field(default_factory=time.monotonic)
    problem: str = ""
    attempts: int = 0
    """failed attempts since the link was last up"""
    next_attempt: float | None = None
    reconnects: int = 0

    def saw_bytes(self) -> None:
        """Note that the host was heard just now."""
        self.last_byte = time.monotonic()

    @property
    def silent_seconds(self) -> float:
        """Seconds since the host was last heard."""
        return time.monotonic() - self.last_byte


@dataclass(slots=True)
class CommandRecord:
    """One line of the command log. `time` is Unix seconds; `returncode` and `took` (seconds) are None while it runs."""

    time: float
    argv: tuple[str, ...]
    returncode: int | None = None
    took: float | None = None


class Channel(Protocol):
    """What a transport offers for one command. Reading and waiting raise HostUnreachable when the link is lost."""

    async def read(self, size: int) -> bytes: ...
    async def read_error(self, size: int) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    def write_eof(self) -> None: ...
    async def wait(self) -> int: ...
    def abandon(self) -> None:
        """Let go of the channel without waiting."""


Kill = Callable[[int], Awaitable[None]]


def identified(
    argv: Sequence[str], cwd: str | None, env: Mapping[str, str] | None, container: str = ""
) -> tuple[list[str], str]:
    """`argv` so that it first tells its pid on stderr, and the token that marks that line."""
    token = f"pid-{uuid.uuid4().hex}"
    settings = ["env", *(f"{key}={value}" for key, value in env.items())] if env else []
    into = ["docker", "exec", "-i", container] if container else []
    return [*into, "sh", "-c", _IDENTIFY, "sh", token, cwd or "", *settings, *argv], token


class Stream:
    """A running command. Iterating gives its stdout as chunks of bytes; leaving the context ends it, whatever happened.

    `stderr_tail` holds the last 256 KiB of stderr. `returncode` is None until `wait()` or the end of the context; a
    signal's number is negative, as in subprocess.
    """

    def __init__(self, channel: Channel, token: str, kill: Kill, state: LinkState, record: CommandRecord) -> None:
        self._channel, self._kill = channel, kill
        self._identifies = re.compile(re.escape(token.encode()) + rb" (\d{1,9})\n")
        self._state, self._record = state, record
        self._started = time.monotonic()
        self._stderr = bytearray()
        self._identity: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._listener = asyncio.create_task(self._listen())
        self.returncode: int | None = None

    @property
    def stderr_tail(self) -> bytes:
        """The end of what the command printed on stderr so far."""
        return bytes(self._stderr)

    async def _listen(self) -> None:
        try:
            while data := await self._channel.read_error(CHUNK):
                self._state.saw_bytes()
                self._stderr += data
                if not self._identity.done():
                    self._find_identity()
                del self._stderr[:-STDERR_KEPT]
        finally:
            if not self._identity.done():
                self._identity.set_result(0)

    def _find_identity(self) -> None:
        found = self._identifies.search(self._stderr)
        if found is None:
            return
        pid = int(found[1])
        del self._stderr[: found.end()]  # what came before is not of the command: start-up files of a shell print there
        self._identity.set_result(pid)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks()

    async def _chunks(self) -> AsyncIterator[bytes]:
        while data := await self._channel.read(CHUNK):
            self._state.saw_bytes()
            yield data

    async def read(self, size: int = CHUNK) -> bytes:
        """Up to `size` bytes of stdout, b"" at its end."""
        data = await self._channel.read(size)
        if data:
            self._state.saw_bytes()
        return data

    async def write(self, data: bytes) -> None:
        """Send `data` to stdin. A command that no longer reads is not an error here; its exit code tells."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self._channel.write(data)

    def write_eof(self) -> None:
        """Close stdin."""
        self._channel.write_eof()

    async def wait(self) -> int:
        """Wait until the command has ended and all its stderr is here; the exit code."""
        if self.returncode is None:
            await self._listener
            code = await self._channel.wait()
            self._finish(code)
            return code
        return self.returncode

    async def finish(self, seconds: float) -> None:
        """Throw away what it still prints and wait for its end; give up after `seconds`, or when the link is lost.

        Unread output would hold its end back.
        """
        with contextlib.suppress(RemoteError, TimeoutError, OSError):
            async with asyncio.timeout(seconds):
                while await self._channel.read(CHUNK):
                    pass
                await self.wait()

    def _finish(self, code: int | None) -> None:
        self.returncode = code
        self._record.returncode = code
        self._record.took = time.monotonic() - self._started

    async def kill(self) -> None:
        """End the command and its process group with SIGKILL. Does nothing when it has ended."""
        if self.returncode is not None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                pid = await asyncio.shield(self._identity)
                if pid:
                    await self._kill(pid)

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        # Shielded: being cancelled is the usual reason to be here, and a second one must not leave the process.
        await asyncio.shield(asyncio.ensure_future(self._end()))

    async def _end(self) -> None:
        try:
            if self.returncode is None:
                with contextlib.suppress(RemoteError, OSError):
                    await self.kill()
                await self.finish(5)
        finally:
            if self.returncode is None:
                self._finish(None)
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._channel.abandon()
