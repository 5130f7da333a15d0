"""A host over SSH: one asyncssh connection, verified, kept alive, opened again when it is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import asyncssh

from remote.errors import (
    AuthenticationFailed,
    ConfigUnreadable,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnreachable,
    NotListening,
    RemoteError,
    ShellInTheWay,
)
from remote.host import CommandHost, Connection, Trust
from remote.hostkeys import Introduction, KnownHosts
from remote.login import lost, prove, start
from remote.stream import Channel

# aes-gcm first: 1.7 times the throughput of the default chacha20 on machines with AES instructions.
CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes256-ctr",
    "aes192-ctr",
    "aes128-ctr",
)
# OpenSSH's MaxSessions is 10 a connection; one stays free for the command that ends another.
SESSIONS = 9
# It counts a closed session until its next turn, and some hosts allow fewer: refused sessions are tried again. Seconds.
SESSION_PAUSES = (0.02, 0.05, 0.1, 0.3, 1.0, 2.0)
LATER_ANSWER = 60.0  # seconds a command may take to begin once the link has proven that commands do
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
PERMANENT = (AuthenticationFailed, HostKeyChanged, HostKeyUnknown, ConfigUnreadable, ShellInTheWay)


def parse_address(address: str) -> tuple[str | None, str, int | None]:
    """`[user@]host[:port]` as (user, host, port); an IPv6 address with a port stands in brackets."""
    user, _, place = address.rpartition("@")
    if place.startswith("["):
        host, _, rest = place[1:].partition("]")
        port = rest.removeprefix(":")
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
    else:
        host, port = place, ""
    if not host or (port and not (port.isdigit() and 0 < int(port) < 65536)):
        raise ConfigUnreadable(
            f"cannot read the address {address}", "it is not [user@]host[:port]", "See [host] ssh = …"
        )
    return user or None, host, int(port) if port else None


def _present_keys(options: asyncssh.SSHClientConnectionOptions) -> dict[str, Any]:
    """Settings that leave out key files that do not exist, as ssh does: asyncssh would refuse to connect."""
    named = cast("list[str]", options.config.get("IdentityFile", []))
    present = [name for name in named if Path(name).expanduser().exists()]
    return {} if len(present) == len(named) else {"client_keys": present, "ignore_encrypted": True}


def _same(met: Introduction) -> Introduction:
    return met


class SshHost(CommandHost):
    """A host over SSH. A lost link fails what was running with HostUnreachable; a new one is opened, with backoff."""

    def __init__(
        self,
        address: str,
        *,
        python: str = "",
        container: str = "",
        config_paths: Sequence[str] | None = None,
        known_hosts: str | None = None,
        trust: Trust | None = None,
        connect_timeout: float = 15.0,
        keepalive: float = 5.0,
    ) -> None:
        super().__init__(address, python, container)
        self._address = address
        self._known_hosts, self._trust = known_hosts, trust
        self._settings: dict[str, Any] = {
            "connect_timeout": connect_timeout,
            "login_timeout": connect_timeout,
            "keepalive_interval": keepalive,
            "keepalive_count_max": 3,
            "encryption_algs": CIPHERS,
            "password_auth": False,
            "kbdint_auth": False,
            "agent_forwarding": False,
            "x11_forwarding": False,
            "config": list(config_paths) if config_paths is not None else (),
        }
        self._connection: asyncssh.SSHClientConnection | None = None
        self._jumps: list[asyncssh.SSHClientConnection] = []
        self._opening = asyncio.Lock()
        self._sessions = asyncio.Semaphore(SESSIONS)
        self._keeper: asyncio.Task[None] | None = None
        self._closed = self._was_open = False
        self.state.connected = False

    async def connect(self) -> asyncssh.SSHClientConnection:
        """The open connection; one attempt to open it when there is none. Raises as open_host does."""
        async with self._opening:
            if self._closed:
                raise HostUnreachable(f"{self.name} was closed here", "", "Open it again")
            if self._connection is None:
                try:
                    self._connection = await self._open_proven()
                except RemoteError as error:
                    self.state.problem, self.state.attempts = str(error), self.state.attempts + 1
                    await self._close_jumps()
                    raise
                self.state.connected, self.state.problem, self.state.attempts = True, "", 0
                self.state.saw_bytes()
                self.state.reconnects += self._was_open
                self._was_open = True
                if self._keeper is None:
                    self._keeper = asyncio.create_task(self._keep())
            return self._connection

    async def _open_proven(self) -> asyncssh.SSHClientConnection:
        """Open a connection on which commands can be run."""
        connection = await self._open(self._address)
        try:
            await prove(connection, self.name, self._settings["connect_timeout"])
        except BaseException as error:
            connection.abort()
            if isinstance(error, asyncssh.ChannelOpenError):
                raise self._no_session(error) from error
            if isinstance(error, asyncssh.Error | OSError):
                raise lost(self.name, error) from error
            raise
        return connection

    async def _open(
        self, address: str, tunnel: asyncssh.SSHClientConnection | None = None
    ) -> asyncssh.SSHClientConnection:
        """Open `address`, through its jump hosts, each verified in the same way."""
        user, host, port = parse_address(address)
        settings = dict(self._settings)
        if user is not None:
            settings["username"] = user
        if port is not None:
            settings["port"] = port
        try:
            options = await asyncssh.SSHClientConnectionOptions.construct(host=host, **settings, client_keys=None)
            settings.update(_present_keys(options))
        except (asyncssh.Error, asyncssh.ConfigParseError, ValueError, OSError) as error:
            raise ConfigUnreadable(
                f"cannot use the ssh configuration for {address}", str(error), "Try `ssh -G` with the same name"
            ) from error
        known = KnownHosts.of([self._known_hosts] if self._known_hosts else options.known_hosts)
        if tunnel is None and isinstance(options.tunnel, str):
            # Opened here: for a jump host asyncssh would take `UserKnownHostsFile none` as "trust any key".
            for jump in options.tunnel.split(","):
                tunnel = await self._open(jump.strip(), tunnel)
                self._jumps.append(tunnel)
        if tunnel is not None:
            settings["tunnel"] = tunnel
        return await self._introduce(host, settings, known)

    async def _introduce(self, host: str, settings: dict[str, Any], known: KnownHosts) -> asyncssh.SSHClientConnection:
        entries = known.read()
        for asked in (False, True):
            met = Introduction()
            try:
                connection, _ = await asyncssh.create_connection(
                    partial(_same, met), host, known_hosts=entries, **settings
                )
                return connection
            except asyncssh.HostKeyNotVerifiable as error:
                if met.key is None:
                    raise HostUnreachable(
                        f"the identity of {host} could not be verified", error.reason, "See known_hosts"
                    ) from error
                refusal = known.refusal(met.host, met.address, met.port, met.key)
                if (
                    asked
                    or isinstance(refusal, HostKeyChanged)
                    or self._trust is None
                    or not await self._trust(refusal)
                ):
                    raise refusal from error
                known.add(refusal.key_line)
                entries = known.read()
            except asyncssh.PermissionDenied as error:
                raise AuthenticationFailed(
                    f"{host} accepted none of our keys",
                    error.reason,
                    "Check the user name and IdentityFile; a key with a passphrase has to be in ssh-agent",
                ) from error
            except (asyncssh.Error, OSError, TimeoutError) as error:
                why = str(error) or f"no answer within {self._settings['connect_timeout']:g} s"
                raise HostUnreachable(
                    f"cannot reach {host}", why, "Check that it is up and that `ssh` with the same name gets there"
                ) from error
        raise AssertionError("two attempts either return or raise")

    async def _keep(self) -> None:
        """Watch the connection, and open it again whenever it is lost."""
        while not self._closed:
            connection = self._connection
            if connection is not None:
                await connection.wait_closed()
                self._connection = None
                self.state.connected, self.state.problem = False, "the connection was lost"
                await self._close_jumps()
            pause = FIRST_PAUSE
            while not self._closed and self._connection is None:
                try:
                    await self.connect()
                except PERMANENT:
                    # Trying on would hammer a host that refuses us; the next command tries, and says why it fails.
                    self._keeper = None
                    return
                except Exception as error:  # noqa: BLE001 - the reconnect loop: whatever it was, the link is still down
                    self.state.problem = str(error)
                    self.state.next_attempt = time.monotonic() + pause
                    await asyncio.sleep(pause)
                    self.state.next_attempt, pause = None, min(pause * 2, LONGEST_PAUSE)

    async def _start(self, argv: Sequence[str]) -> Channel:
        await self._sessions.acquire()
        try:
            return await self._exec(argv, self._sessions)
        except BaseException:
            self._sessions.release()
            raise

    async def _start_unqueued(self, argv: Sequence[str]) -> Channel:
        return await self._exec(argv, None)

    async def _exec(self, argv: Sequence[str], free: asyncio.Semaphore | None) -> Channel:
        for pause in (*SESSION_PAUSES, None):
            connection = await self.connect()
            try:
                return await start(connection, argv, self.name, LATER_ANSWER, free)
            except asyncssh.ChannelOpenError as error:
                if pause is None:
                    raise self._no_session(error) from error
                await asyncio.sleep(pause)
            except (asyncssh.Error, OSError) as error:
                raise lost(self.name, error) from error
        raise AssertionError("the last attempt either returns or raises")

    def _no_session(self, error: asyncssh.ChannelOpenError) -> HostUnreachable:
        return HostUnreachable(
            f"{self.name} opened no session",
            error.reason,
            "Too many are open on it, or the account may not run commands",
        )

    async def open_connection(self, port: int, host: str = "127.0.0.1") -> Connection:
        """See Host.open_connection. Falls back to a relay process where the SSH server forbids forwarding."""
        from remote.relay import open_relay

        if self.container:
            return await open_relay(self, port, host)
        connection = await self.connect()
        try:
            return await connection.open_connection(host, port, encoding=None)
        except asyncssh.ChannelOpenError as error:
            if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
                return await open_relay(self, port, host)
            raise NotListening(self.name, port, error.reason) from error
        except (asyncssh.Error, OSError) as error:
            raise lost(self.name, error) from error

    async def _close_jumps(self) -> None:
        jumps, self._jumps = self._jumps, []
        for jump in reversed(jumps):
            jump.close()
            await jump.wait_closed()

    async def close(self) -> None:
        """Close the connection; running commands of ours end, detached servers go on."""
        self._closed = True
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._connection:
            self._connection.close()
            await self._connection.wait_closed()
            self._connection = None
        await self._close_jumps()
        self.state.connected = False
