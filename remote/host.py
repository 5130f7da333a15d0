"""What a host is: run and stream commands, open connections, and know how the link is. Here: this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from remote.errors import CommandFailed, HostKeyUnknown, HostUnreachable, NotListening, RemoteError, TimedOut
from remote.stream import CHUNK, Channel, CommandRecord, LinkState, Stream, identified

COMMANDS_KEPT = 500
_KILL = 'kill -s KILL -- "-$1" 2>/dev/null || kill -s KILL -- "$1"'

Trust = Callable[[HostKeyUnknown], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended. `stderr` is its last 256 KiB; a negative `returncode` is the signal that ended it."""

    returncode: int
    stdout: bytes
    stderr: bytes


class Reader(Protocol):
    """The reading half of a TCP connection."""

    async def read(self, n: int = -1) -> bytes: ...


class Writer(Protocol):
    """The writing half of a TCP connection."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...
    async def wait_closed(self) -> None: ...


Connection = tuple[Reader, Writer]


class Host(Protocol):
    """A place where commands run. argv are lists: nothing is ever given to a shell unquoted.

    `python` is the interpreter the deployment names ("" = none named); `facts` caches what was learnt about the host.
    """

    name: str
    python: str
    state: LinkState
    commands: deque[CommandRecord]
    facts: dict[str, str]

    async def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        shown: Sequence[str] | None = None,
    ) -> Completed:
        """Run `argv` to its end. `timeout` in seconds; `env` is added to the environment (it is visible in the host's
        process list: no secrets); `shown` is what the command log says instead of argv.

        Raises CommandFailed (with `check`, on a code other than 0), TimedOut, HostUnreachable, ShellInTheWay. Being
        cancelled or timing out kills the process group on the host.
        """

    def stream(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        shown: Sequence[str] | None = None,
        outside: bool = False,
    ) -> AbstractAsyncContextManager[Stream]:
        """Run `argv` and read it while it runs. `input=None` leaves stdin open for `Stream.write`; `outside` runs it
        beside the container of this host, where there is one.
        """

    async def open_connection(self, port: int, host: str = "127.0.0.1") -> Connection:
        """A TCP connection to `host`:`port` as seen from this host. Raises NotListening, HostUnreachable."""

    async def close(self) -> None:
        """Let go of the host; what was started detached goes on."""


class CommandHost(ABC):
    """What every kind of host shares: the command log, containers, running to the end, ending for certain."""

    def __init__(self, name: str, python: str = "", container: str = "") -> None:
        self.name = f"{name}/{container}" if container else name
        self.python, self.container = python, container
        self.state = LinkState()
        self.commands: deque[CommandRecord] = deque(maxlen=COMMANDS_KEPT)
        self.facts: dict[str, str] = {}

    @abstractmethod
    async def _start(self, argv: Sequence[str]) -> Channel:
        """Start `argv` exactly as it is."""

    async def _start_unqueued(self, argv: Sequence[str]) -> Channel:
        """Start `argv` now, whatever else is running: for ending things."""
        return await self._start(argv)

    @abstractmethod
    async def open_connection(self, port: int, host: str = "127.0.0.1") -> Connection: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        shown: Sequence[str] | None = None,
    ) -> Completed:
        """See Host.run."""
        try:
            async with (
                asyncio.timeout(timeout),
                self.stream(argv, input=input, cwd=cwd, env=env, shown=shown) as stream,
            ):
                stdout = b"".join([chunk async for chunk in stream])
                code = await stream.wait()
        except TimeoutError:
            command = " ".join(shown or argv)[:200]
            raise TimedOut(
                f"`{command}` was killed on {self.name}",
                f"it took longer than {timeout:g} s",
                "Is the host overloaded?",
            ) from None
        if check and code != 0:
            raise CommandFailed(shown or argv, code, stream.stderr_tail)
        return Completed(code, stdout, stream.stderr_tail)

    @asynccontextmanager
    async def stream(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        shown: Sequence[str] | None = None,
        outside: bool = False,
    ) -> AsyncIterator[Stream]:
        """See Host.stream."""
        container = "" if outside else self.container
        wrapped, token = identified(argv, cwd, env, container)
        record = CommandRecord(time.time(), tuple(shown or argv))
        self.commands.append(record)
        try:
            channel = await self._start(wrapped)
        except BaseException:
            record.took = time.time() - record.time
            raise
        async with Stream(channel, token, partial(self._kill, container), self.state, record) as stream:
            feeder = asyncio.create_task(_feed(stream, input)) if input is not None else None
            try:
                yield stream
            finally:
                if feeder:
                    feeder.cancel()
                    await asyncio.gather(feeder, return_exceptions=True)

    async def _kill(self, container: str, pid: int) -> None:
        """SIGKILL to a command we started: to the group it leads, or to it alone when it leads none.

        Never to a group it does not lead, which may hold the SSH server itself.
        """
        inside = ["docker", "exec", "-i", container] if container else []
        channel = await self._start_unqueued([*inside, "sh", "-c", _KILL, "sh", str(pid)])
        try:
            channel.write_eof()
            await channel.wait()
        finally:
            channel.abandon()


async def _feed(stream: Stream, data: bytes) -> None:
    # A lost link shows on the reading side, with its reason; here it only means that nobody listens any more.
    with contextlib.suppress(HostUnreachable):
        for start in range(0, len(data), CHUNK):
            await stream.write(data[start : start + CHUNK])
        stream.write_eof()


class _LocalChannel:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr

    async def read(self, size: int) -> bytes:
        return await self._stdout.read(size)

    async def read_error(self, size: int) -> bytes:
        return await self._stderr.read(size)

    async def write(self, data: bytes) -> None:
        self._stdin.write(data)
        await self._stdin.drain()

    def write_eof(self) -> None:
        self._stdin.close()

    async def wait(self) -> int:
        return await self._process.wait()

    def abandon(self) -> None:
        # The private transport is the only way to close the pipes of a process whose grandchildren still hold them.
        self._process._transport.close()  # type: ignore[attr-defined]


class LocalHost(CommandHost):
    """This machine, or a container on it."""

    def __init__(self, python: str = "", container: str = "") -> None:
        super().__init__("local", python, container)

    async def _start(self, argv: Sequence[str]) -> Channel:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            raise CommandFailed(argv[:1], None, "", f"it could not be started: {error.strerror}") from error
        return _LocalChannel(process)

    async def _kill(self, container: str, pid: int) -> None:
        if container:
            await super()._kill(container, pid)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    async def open_connection(self, port: int, host: str = "127.0.0.1") -> Connection:
        """See Host.open_connection."""
        if self.container:
            from remote.relay import open_relay

            return await open_relay(self, port, host)
        try:
            return await asyncio.open_connection(host, port)
        except OSError as error:
            raise NotListening(self.name, port, error.strerror or str(error)) from error

    async def close(self) -> None:
        """Nothing to let go of."""


async def open_host(
    ssh: str | None,
    *,
    container: str = "",
    python: str = "",
    config_paths: Sequence[str] | None = None,
    known_hosts: str | None = None,
    trust: Trust | None = None,
    connect_timeout: float = 15.0,
    keepalive: float = 5.0,
) -> Host:
    """The host named `ssh` (an alias of ~/.ssh/config or `user@host:port`), or this machine when it is None or "".

    `config_paths` replaces ~/.ssh/config, `known_hosts` replaces what the configuration names. `trust` is asked about
    an unknown key; on True the key is appended to known_hosts. Without it, an unknown key raises HostKeyUnknown.
    `connect_timeout` in seconds, for each of: reaching it, logging in, a first command's begin. `keepalive` in seconds;
    three unanswered ones end the link. Raises HostUnreachable, HostKeyUnknown, HostKeyChanged, AuthenticationFailed,
    ConfigUnreadable, ShellInTheWay.
    """
    if not ssh or ssh == "local":
        return LocalHost(python, container)
    from remote.ssh import SshHost

    host = SshHost(
        ssh,
        python=python,
        container=container,
        config_paths=config_paths,
        known_hosts=known_hosts,
        trust=trust,
        connect_timeout=connect_timeout,
        keepalive=keepalive,
    )
    try:
        await host.connect()
    except BaseException:
        await host.close()
        raise
    return host


async def home(host: Host) -> str:
    """The home folder of the account used on `host`."""
    if "home" not in host.facts:
        answer = await host.run(["sh", "-c", 'printf %s "$HOME"'])
        host.facts["home"] = os.fsdecode(answer.stdout)
    return host.facts["home"]


async def resolve(host: Host, path: str) -> str:
    """`path` with a leading `~` replaced by the home folder *on the host*. `~user` is refused with RemoteError."""
    if not path.startswith("~"):
        return path
    first, _, rest = path.partition("/")
    if first != "~":
        raise RemoteError(f"cannot resolve {path}", "only ~ itself is expanded on a host", "Write the full path")
    return f"{(await home(host)).rstrip('/')}/{rest}" if rest else await home(host)
