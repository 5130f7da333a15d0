"""The embedded GPU host: an SSH server on loopback that runs commands as this user, in a home folder of its own.

`python -m console.demo.host --dir D` makes keys and known_hosts in D/ssh, prints one JSON line with its port, and
serves until its stdin ends. Whatever was started through it and still runs then is ended with it; with `--remove`, D
goes too: this process is the last to see it, however the console that began it ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncssh

ALIAS = "demo-gpu"
MARK = "CONSOLE_DEMO_DIR"
"""Every process started through the host carries this variable; by it they are found again when the host ends."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_GRACE = 3.0
_CHUNK = 1 << 16


class _Server(asyncssh.SSHServer):
    """Lets in whoever holds the key made for this host, and forwards to this machine's loopback only."""

    def begin_auth(self, username: str) -> bool:
        return True

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host in _LOOPBACK


class Commands:
    """Runs each command as sshd would: through the shell, in a process group of its own, in the host's home folder."""

    def __init__(self, root: Path) -> None:
        self._home = root / "home"
        self._home.mkdir(mode=0o700, exist_ok=True)
        # The host is a machine of its own: nothing of the caller's Python or shell set-up reaches its commands.
        kept = {
            key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL", "USER", "LOGNAME", "TMPDIR") if key in os.environ
        }
        self._environment = {"SHELL": "/bin/sh", **kept, "HOME": str(self._home), MARK: str(root)}

    async def handle(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """One command, from its start to its exit status."""
        if process.command is None:
            process.stderr.write(b"this host runs commands; it has no interactive shell\n")
            process.exit(1)
            return
        local = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            process.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._home,
            env=self._environment | dict(process.env),
            start_new_session=True,
        )
        assert local.stdin and local.stdout and local.stderr
        feeding = asyncio.create_task(_feed(process.stdin, local.stdin))
        try:
            await asyncio.gather(_pump(local.stdout, process.stdout), _pump(local.stderr, process.stderr))
            code = await local.wait()
        except (asyncssh.Error, OSError):
            # The client is gone: like sshd, leave the command to the end of its pipes.
            return
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            local._transport.close()  # type: ignore[attr-defined]  # nothing public closes the pipes of a process left alone
        if code < 0:
            process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
        else:
            process.exit(code)


async def _feed(source: asyncssh.SSHReader[bytes], sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
    sink.close()


async def _pump(source: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes]) -> None:
    while data := await source.read(_CHUNK):
        sink.write(data)
        await sink.drain()


def make_keys(folder: Path) -> None:
    """A host key, a client key, and authorized_keys and known_hosts that name them; those that exist are kept."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("host_key", "id_ed25519"):
        path = folder / name
        if path.exists():
            continue
        key = asyncssh.generate_private_key("ssh-ed25519", comment=f"{ALIAS} {name}")
        path.touch(mode=0o600)
        key.write_private_key(path)
        key.write_public_key(folder / f"{name}.pub")
    (folder / "authorized_keys").write_bytes((folder / "id_ed25519.pub").read_bytes())


def write_client_files(folder: Path, port: int) -> None:
    """known_hosts and an ssh_config by which any client, `ssh -F` too, reaches the host under its alias."""
    public = " ".join((folder / "host_key.pub").read_text("utf-8").split()[:2])
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}\n", "utf-8")
    lines = [
        f"Host {ALIAS}",
        "  HostName 127.0.0.1",
        f"  Port {port}",
        f"  IdentityFile {_quoted(folder / 'id_ed25519')}",
        "  IdentitiesOnly yes",
        f"  UserKnownHostsFile {_quoted(folder / 'known_hosts')}",
        "  StrictHostKeyChecking yes",
    ]
    (folder / "ssh_config").write_text("\n".join(lines) + "\n", "utf-8")


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)


async def serve(root: Path, port: int = 0) -> None:
    """Serve until stdin ends or SIGTERM comes; then end what was started through this host."""
    ssh = root / "ssh"
    make_keys(ssh)
    server = await asyncssh.create_server(
        _Server,
        "127.0.0.1",
        port,
        server_host_keys=[str(ssh / "host_key")],
        authorized_client_keys=str(ssh / "authorized_keys"),
        process_factory=Commands(root).handle,
        encoding=None,
        allow_scp=False,
        server_version="console-demo",
    )
    bound = server.sockets[0].getsockname()[1]
    write_client_files(ssh, bound)
    print(json.dumps({"port": bound, "ssh_config": str(ssh / "ssh_config")}), flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    # The end of stdin is how the end of the console is seen, however it ended.
    loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(sys.stdin.fileno(), 1024) else ended.set())
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())
    server.close()
    await end_started(root)


async def end_started(root: Path) -> None:
    """End every process that was started through the host in `root`: SIGTERM, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = asyncio.get_running_loop().time() + _GRACE
        for pid in started(root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while any(started(root)):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.05)
        else:
            return


def started(root: Path) -> Iterator[int]:
    """The processes that carry the mark of the host in `root`, this one excepted; none where there is no /proc."""
    mark = f"{MARK}={root}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if marked and int(folder.name) != os.getpid():
            yield int(folder.name)


def main() -> int:
    """Entry of `python -m console.demo.host`."""
    parser = argparse.ArgumentParser(prog="python -m console.demo.host", description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", type=Path, required=True, help="the folder it lives in")
    parser.add_argument("--remove", action="store_true", help="remove the folder at the end")
    parser.add_argument("--port", type=int, default=0, help="port on loopback; 0 picks a free one")
    args = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(args.dir.resolve(), args.port))
    if args.remove:
        shutil.rmtree(args.dir, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
