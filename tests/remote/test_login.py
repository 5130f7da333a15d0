"""Start-up files of a login shell that print, read, end or hang: passed over where possible, else named in an error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote import scripts, ship
from remote.errors import HostUnreachable, ShellInTheWay
from remote.files import read, write_atomic
from remote.follow import follow
from remote.host import home, open_host
from remote.ssh import SshHost
from tests.remote.servers import SshServer, openssh_server
from tests.remote.test_ship import zipapp
from tests.remote.waiting import until

BINARY = bytes(range(256)) * 300
NOISY = {
    "a line": "echo 'Welcome!'",
    "no newline": "printf Welcome",
    "JSON": "echo '{\"size\": 3}'; echo abc",
    "stderr": "echo 'Welcome!' >&2",
    "both, long": "head -c 30000 /dev/zero | tr '\\0' x; head -c 30000 /dev/zero | tr '\\0' y >&2",
    "escapes and bytes that are no text": "printf '\\033]0;owned\\007\\377\\0\\r\\n'",
    "a trace": "set -xv",
    "a failed command": "no-such-command-here; false",
}
STUCK = {
    "reads all": ("echo 'Hello \x1b[31m'; cat >/dev/null", r'reads our input: it printed first "Hello \?\[31m"'),
    "reads a line": ("read -r line", "reads our input: it printed nothing"),
    "sleeps": ("echo; echo Wait; sleep 20", r'does not come to our command within 4 s: it printed first "Wait"'),
    "prints for ever": ("yes", r'prints without end before our command: it printed first "y"'),
    "complains for ever": ("yes >&2", r'prints without end before our command: it printed first "y"'),
    "ends": ("echo Closed >&2; exit 1", r'ends before our command, with code 1: it printed first "Closed"'),
    "becomes another program": ("exec true", "ends before our command, with code 0: it printed nothing"),
    "leaves a child": ("sleep 20 &", "leaves something running that keeps our output open"),
}


@pytest.fixture
async def sshd(tmp_path: Path) -> AsyncIterator[SshServer]:
    """Debian's sshd, whose login shell is the account's own."""
    async with openssh_server(tmp_path / "ssh") as running:
        yield running


async def everything_works(server: SshServer) -> None:
    """Every way in which an answer is read from a command."""
    host = await open_host(server.address, **server.options)
    assert await home(host) == str(server.home)
    assert Path(await scripts.script_python(host)).is_file()
    done = await host.run(["sh", "-c", "cat; echo why >&2; exit 7"], input=BINARY, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (BINARY, b"why\n", 7)
    await write_atomic(host, "~/file", BINARY, backup=False)
    assert (server.home / "file").read_bytes() == BINARY
    assert await read(host, "~/file", len(BINARY)) == BINARY
    async with host.stream(["cat"], input=None) as stream:
        await stream.write(b"one")
        assert await stream.read(2) == b"on"
        assert await stream.read() == b"e"
    async with contextlib.aclosing(follow(host, "~/file")) as chunks:
        seen = b""
        async for chunk in chunks:
            seen += chunk.data
            if len(seen) >= len(BINARY):
                break
    assert seen == BINARY
    path = await ship.ship(host, zipapp("print(input())\n"), "python3")
    assert [one async for one in ship.run_shipped(host, path, "python3", {"a": 1})] == [{"a": 1}]
    await host.close()


@pytest.mark.parametrize("rc", NOISY.values(), ids=NOISY)
async def test_what_a_login_shell_prints_is_passed_over(sshd: SshServer, rc: str) -> None:
    (sshd.home / ".bashrc").write_text(rc + "\n")
    await everything_works(sshd)


@pytest.mark.parametrize("shell", [one for one in ("dash", "bash", "zsh", "ksh", "fish") if shutil.which(one)])
async def test_the_shell_need_not_be_bash_nor_be_silent(sshd: SshServer, shell: str) -> None:
    start = sshd.folder / "shell"
    start.write_text(f'#!/bin/sh\necho Welcome\nexec {shell} -c "$SSH_ORIGINAL_COMMAND"\n')
    start.chmod(0o755)
    for each in (sshd.folder / "sshd_config", sshd.folder / "sshd_config_penalties"):
        each.write_text(each.read_text() + f"ForceCommand {start}\n")
    await sshd.stop()
    await sshd.start()
    await everything_works(sshd)


@pytest.mark.parametrize(("rc", "says"), STUCK.values(), ids=STUCK)
async def test_what_cannot_be_passed_over_is_an_error_that_names_the_cause(sshd: SshServer, rc: str, says: str) -> None:
    (sshd.home / ".bashrc").write_text(rc + "\n")
    # Short only where it runs out: a busy machine may take its time to come to the others.
    patience = 4.0 if "sleep" in rc else 60.0
    with pytest.raises(ShellInTheWay, match=says) as caught:
        await open_host(sshd.address, connect_timeout=patience, **sshd.options)
    assert "the login shell of" in str(caught.value) and ".bashrc" in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("kind", ["reads all", "reads a line", "prints for ever", "ends"])
async def test_a_start_up_file_that_changes_while_the_link_is_up(sshd: SshServer, kind: str) -> None:
    host = await open_host(sshd.address, **sshd.options)
    (sshd.home / ".bashrc").write_text(STUCK[kind][0] + "\n")
    with pytest.raises(ShellInTheWay):
        await host.run(["cat"], input=b"one\ntwo\n")
    (sshd.home / ".bashrc").unlink()
    assert (await host.run(["cat"], input=b"one")).stdout == b"one"
    await host.close()


async def test_nothing_of_ours_is_sent_to_a_shell_that_runs_what_it_reads(sshd: SshServer) -> None:
    (sshd.home / ".bashrc").write_text("exec sh\n")
    made = sshd.home / "made"
    with pytest.raises(ShellInTheWay, match="ends before our command, with code 127"):
        host = await open_host(sshd.address, **sshd.options)
        await host.run(["cat"], input=f"touch {made}\n".encode())
    assert not made.exists()


async def test_a_host_whose_shell_is_in_the_way_is_not_hammered(sshd: SshServer) -> None:
    host = await open_host(sshd.address, **sshd.options)
    assert isinstance(host, SshHost)
    (sshd.home / ".bashrc").write_text(f"echo x >> {sshd.home / 'logins'}; exit 1\n")
    await sshd.drop()
    await until(lambda: "ends before our command" in host.state.problem)
    await asyncio.sleep(1)
    assert os.path.getsize(sshd.home / "logins") == 2
    with pytest.raises(ShellInTheWay):
        await host.run(["true"])
    await host.close()


async def test_a_link_lost_before_the_command_begins_is_a_lost_link(sshd: SshServer) -> None:
    host = await open_host(sshd.address, **sshd.options)
    started = sshd.home / "started"
    (sshd.home / ".bashrc").write_text(f"touch {started}; sleep 20\n")
    running = asyncio.create_task(host.run(["true"]))
    await until(started.exists)
    (sshd.home / ".bashrc").unlink()
    await sshd.drop()
    with pytest.raises(HostUnreachable, match="lost the connection"):
        await running
    await host.close()
