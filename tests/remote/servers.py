"""Real SSH servers for tests, each with throw-away keys, its own home folder and its own client configuration."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

ALIAS = "gpu-box"


@dataclass
class SshServer:
    """A running server. `open_host(server.address, **server.options)` reaches it through its client configuration."""

    address: str
    port: int
    folder: Path
    home: Path
    drop: Callable[[], Awaitable[None]]
    """Cut every connection without a goodbye; the server goes on listening."""
    stop: Callable[[], Awaitable[None]]
    """Cut every connection and stop listening."""
    start: Callable[[], Awaitable[None]]
    """Listen again, on the same port."""

    @property
    def config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def client_key(self) -> Path:
        return self.folder / "client_key"

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    @property
    def options(self) -> dict[str, Any]:
        return {"config_paths": [str(self.config)]}

    def forget_key(self) -> None:
        """Make the server one that was never met."""
        self.known_hosts.write_text("")

    def exchange_known_key(self) -> None:
        """Make known_hosts list another key than the server's."""
        other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {other}")

    def exchange_client_key(self) -> None:
        """Make the client's key one that the server does not accept."""
        _write_key(self.client_key)


def _write_key(path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    path.write_bytes(key.export_private_key())
    path.chmod(0o600)
    path.with_name(path.name + ".pub").write_bytes(key.export_public_key())


def free_port() -> int:
    """A TCP port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _prepare(folder: Path, port: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / "home"
    home.mkdir()
    for name in ("host_key", "client_key"):
        _write_key(folder / name)
    shutil.copy(folder / "client_key.pub", folder / "authorized_keys")
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host_key.pub').read_text()}")
    (folder / "ssh_config").write_text(
        f"Host {ALIAS}\n"
        f"    HostName 127.0.0.1\n    Port {port}\n    User {getpass.getuser()}\n"
        f"    IdentityFile {folder / 'client_key'}\n    IdentitiesOnly yes\n"
        f"    UserKnownHostsFile {folder / 'known_hosts'}\n"
    )
    return home


async def _feed(source: Any, sink: Any) -> None:
    """Client to command. As with a real server, the command sees the end of its stdin when the link is lost."""
    with contextlib.suppress(asyncssh.Error, OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.close()


async def _pass_on(source: Any, sink: Any) -> None:
    """Command to client, for as long as there is a client."""
    with contextlib.suppress(asyncssh.Error, OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()


@asynccontextmanager
async def asyncssh_server(folder: Path) -> AsyncIterator[SshServer]:
    """An SSH server in this event loop that runs commands with the local shell, in a home folder of its own."""
    port = free_port()
    home = _prepare(folder, port)
    connections: set[asyncssh.SSHServerConnection] = set()
    children: set[asyncio.subprocess.Process] = set()

    class Server(asyncssh.SSHServer):
        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            self.connection = conn
            connections.add(conn)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.discard(self.connection)

        def connection_requested(self, *_: Any) -> bool:
            return True

    async def session(process: asyncssh.SSHServerProcess[bytes]) -> None:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            process.command or "",
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env={**os.environ, "HOME": str(home)},
            cwd=home,
            start_new_session=True,
        )
        children.add(child)
        try:
            incoming = asyncio.create_task(_feed(process.stdin, child.stdin))
            await asyncio.gather(_pass_on(child.stdout, process.stdout), _pass_on(child.stderr, process.stderr))
            code = await child.wait()
            incoming.cancel()
            if code < 0:
                process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
            else:
                process.exit(code)
        finally:
            children.discard(child)

    listener: asyncssh.SSHAcceptor | None = None

    async def start() -> None:
        nonlocal listener
        listener = await asyncssh.listen(
            "127.0.0.1",
            port,
            server_factory=Server,
            server_host_keys=[str(folder / "host_key")],
            authorized_client_keys=str(folder / "authorized_keys"),
            process_factory=session,
            encoding=None,
            reuse_address=True,
        )

    async def drop() -> None:
        for connection in list(connections):
            connection.abort()

    async def stop() -> None:
        if listener is not None:
            listener.close()
            await listener.wait_closed()
        await drop()

    await start()
    try:
        yield SshServer(ALIAS, port, folder, home, drop, stop, start)
    finally:
        await stop()
        for child in list(children):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def _sshd_config(folder: Path, home: Path, port: int) -> Path:
    lines = [
        f"Port {port}",
        "ListenAddress 127.0.0.1",
        f"HostKey {folder / 'host_key'}",
        f"PidFile {folder / 'sshd.pid'}",
        f"AuthorizedKeysFile {folder / 'authorized_keys'}",
        "StrictModes no",  # the temporary folder's parents are writable for others
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin yes",
        "PrintMotd no",
        # Without a session of its own the test would run in the real home folder.
        f'SetEnv "HOME={home}" "PATH={os.environ["PATH"]}"',
    ]
    path = folder / "sshd_config"
    path.write_text("\n".join(lines) + "\n")
    # Newer servers shut out an address after failed logins, and all tests share one; older ones lack the word.
    path_with = folder / "sshd_config_penalties"
    path_with.write_text(path.read_text() + "PerSourcePenalties no\n")
    check = subprocess.run([_sshd(), "-t", "-f", str(path_with)], capture_output=True, check=False)
    return path_with if check.returncode == 0 else path


def _sshd() -> str:
    found = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        raise RuntimeError("sshd is not installed; on Debian: apt-get install openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    return found


def _children(pid: int) -> list[int]:
    """Children of a process, none if it has ended: it may go between any two of these reads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


@asynccontextmanager
async def openssh_server(folder: Path) -> AsyncIterator[SshServer]:
    """Debian's sshd on loopback as the current user, in a home folder of its own."""
    port = free_port()
    home = _prepare(folder, port)
    config = _sshd_config(folder, home, port)
    daemon: asyncio.subprocess.Process | None = None

    async def start() -> None:
        nonlocal daemon
        daemon = await asyncio.create_subprocess_exec(
            _sshd(), "-D", "-f", str(config), "-E", str(folder / "sshd.log"), stdin=asyncio.subprocess.DEVNULL
        )
        for _ in range(400):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            if daemon.returncode is not None:
                break
            await asyncio.sleep(0.025)
        raise RuntimeError("sshd did not start: " + (folder / "sshd.log").read_text())

    async def drop() -> None:
        assert daemon
        for pid in _children(daemon.pid):
            # The unprivileged half of a connection is a child of the privileged one.
            for each in [*_children(pid), pid]:
                with contextlib.suppress(OSError):
                    if b"sshd" in Path(f"/proc/{each}/cmdline").read_bytes():
                        os.kill(each, signal.SIGKILL)

    async def stop() -> None:
        assert daemon
        try:
            await drop()
        finally:
            if daemon.returncode is None:
                daemon.kill()
                await daemon.wait()

    await start()
    try:
        yield SshServer(ALIAS, port, folder, home, drop, stop, start)
    finally:
        await stop()


SERVERS = {"asyncssh": asyncssh_server, "openssh": openssh_server}
