"""One command through the login shell of an SSH host: past what its start-up files print, or an error naming them.

bash reads ~/.bashrc for `ssh host command` too, so what stands there may print, read our stdin, end or never end.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import uuid
from collections.abc import Sequence

import asyncssh

from remote.errors import HostUnreachable, ShellInTheWay
from remote.stream import CHUNK

NOISE = 1 << 16  # bytes that may come before our command does
# Takes the shell's place, so that our command leads the group the server made for the session. On one line: csh breaks
# words at newlines. The mark goes both ways: on stdin it shows that nobody has read there, on stdout where we begin.
_FRAME = 'read -r mark; [ "$mark" = "$0" ] || { echo "$0-"; exit 126; }; echo "$0+" || exit 126; exec "$@"'


def lost(name: str, error: Exception | str) -> HostUnreachable:
    """The error for a link that went away while it was used."""
    return HostUnreachable(f"lost the connection to {name}", str(error) or "it was closed", "It is being opened again")


async def start(
    connection: asyncssh.SSHClientConnection,
    argv: Sequence[str],
    name: str,
    limit: float,
    free: asyncio.Semaphore | None = None,
    *,
    merged: bool = False,
) -> SshChannel:
    """Start `argv` as it is, in a session of its own. The one place where an argv becomes a string, quoted by shlex.

    The command has to begin within `limit` seconds of the first look at its output. `merged` has stderr come with
    stdout. `free` is released when the channel is abandoned. Raises what asyncssh raises.
    """
    mark = uuid.uuid4().hex
    process = await connection.create_process(
        shlex.join(["exec", "sh", "-c", _FRAME, mark, *argv]),
        encoding=None,
        request_pty=False,
        env={},
        send_env=(),
        stderr=asyncssh.STDOUT if merged else asyncssh.PIPE,
    )
    with contextlib.suppress(OSError, asyncssh.Error):
        process.stdin.write(mark.encode() + b"\n")
    user = connection.get_extra_info("username")
    return SshChannel(process, name, f"{user} on {name}", mark.encode(), limit, free)


async def prove(connection: asyncssh.SSHClientConnection, name: str, limit: float) -> None:
    """Run nothing, with nothing on stdin, within `limit` seconds. Raises ShellInTheWay where that cannot be done."""
    channel = await start(connection, ["true"], name, limit, merged=True)
    try:
        channel.write_eof()
        await channel.begin()
        async with asyncio.timeout(limit):
            await channel.wait()
    except TimeoutError:
        raise channel.in_the_way("leaves something running that keeps our output open") from None
    finally:
        channel.end_shell()
        channel.abandon()


class SshChannel:
    """See remote.stream.Channel. What comes on stdout before our command does is passed over.

    Reading and waiting raise ShellInTheWay when the command does not begin, HostUnreachable when the link is lost.
    """

    def __init__(
        self,
        process: asyncssh.SSHClientProcess[bytes],
        name: str,
        account: str,
        mark: bytes,
        limit: float,
        free: asyncio.Semaphore | None,
    ) -> None:
        self._process, self._name, self._account, self._free = process, name, account, free
        # The mark alone is not enough: a shell that traces (set -x), or runs what it reads, prints that too.
        self._frame = re.compile(re.escape(mark) + rb"([+-])\n")
        self._limit, self._begun = limit, False
        self._before = bytearray()
        self._first = b""

    async def begin(self) -> None:
        """Wait until the login shell has become our command."""
        if self._begun:
            return
        try:
            async with asyncio.timeout(self._limit):
                while (frame := self._frame.search(self._before)) is None:
                    if len(self._before) > NOISE:
                        raise self.in_the_way("prints without end before our command")
                    data = await self._read(self._process.stdout, CHUNK)
                    if not data:
                        raise self.in_the_way(f"ends before our command, with code {await self._ended()}")
                    self._before += data
        except TimeoutError:
            raise self.in_the_way(f"does not come to our command within {self._limit:g} s") from None
        sign = bytes(frame[1])
        self._first = bytes(self._before[frame.end() :])
        del self._before[frame.start() :]
        if sign == b"-":
            raise self.in_the_way("reads our input")
        self._begun = True

    def in_the_way(self, what: str) -> ShellInTheWay:
        """The error that says what the login shell does, and what it printed first."""
        lines = (line.strip() for line in bytes(self._before[:NOISE]).splitlines())
        return ShellInTheWay(self._account, what, next(filter(None, lines), b"")[:200])

    async def _read(self, reader: asyncssh.SSHReader[bytes], size: int) -> bytes:
        try:
            return await reader.read(size)
        except (asyncssh.Error, OSError) as error:
            raise lost(self._name, error) from error

    async def read(self, size: int) -> bytes:
        await self.begin()
        if self._first:
            data, self._first = self._first[:size], self._first[size:]
            return data
        return await self._read(self._process.stdout, size)

    async def read_error(self, size: int) -> bytes:
        return await self._read(self._process.stderr, size)

    async def write(self, data: bytes) -> None:
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except BrokenPipeError:
            raise
        except (asyncssh.Error, OSError) as error:
            raise lost(self._name, error) from error

    def write_eof(self) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            self._process.stdin.write_eof()

    async def _ended(self) -> int:
        await self._process.wait_closed()
        code = self._process.returncode
        if code is None:
            raise lost(self._name, "it went before the command had ended")
        return code

    async def wait(self) -> int:
        await self.begin()
        return await self._ended()

    def end_shell(self) -> None:
        """Ask the SSH server to end what runs; not every server does."""
        with contextlib.suppress(OSError, asyncssh.Error):
            self._process.kill()

    def abandon(self) -> None:
        self._process.close()
        if self._free:
            self._free.release()
            self._free = None
