"""The SSH connection itself: whom it trusts, how it fails, and that it comes back. Against two real servers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path

import pytest

from remote.errors import (
    AuthenticationFailed,
    ConfigUnreadable,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnreachable,
    NotListening,
)
from remote.host import Host, LocalHost, open_host
from remote.ssh import SshHost, parse_address
from tests.remote.servers import SshServer, free_port
from tests.remote.waiting import gone, until


def fingerprint(key: Path) -> str:
    """What ssh-keygen says, which is what an administrator would read out."""
    said = subprocess.run(["ssh-keygen", "-l", "-f", str(key)], capture_output=True, text=True, check=True)
    return said.stdout.split()[1]


async def yes(_: HostKeyUnknown) -> bool:
    return True


async def no(_: HostKeyUnknown) -> bool:
    return False


async def test_an_alias_of_the_ssh_configuration_is_enough(server: SshServer) -> None:
    host = await open_host(server.address, **server.options)
    assert (await host.run(["echo", "hello"])).stdout == b"hello\n"
    assert host.name == server.address
    assert host.state.connected and host.state.silent_seconds < 60
    await host.close()
    assert not host.state.connected


async def test_an_unknown_key_is_refused_with_its_fingerprint(server: SshServer) -> None:
    server.forget_key()
    with pytest.raises(HostKeyUnknown) as caught:
        await open_host(server.address, **server.options)
    assert caught.value.fingerprint == fingerprint(server.host_key)
    assert (caught.value.host, caught.value.port) == ("127.0.0.1", server.port)
    assert server.known_hosts.read_text() == ""


async def test_an_unknown_key_that_is_not_trusted_is_not_added(server: SshServer) -> None:
    server.forget_key()
    with pytest.raises(HostKeyUnknown):
        await open_host(server.address, trust=no, **server.options)
    assert server.known_hosts.read_text() == ""


@pytest.mark.parametrize("before", ["", "# no newline at the end"])
async def test_a_trusted_key_is_added_once_and_known_from_then_on(server: SshServer, before: str) -> None:
    server.known_hosts.write_text(before)
    asked: list[HostKeyUnknown] = []

    async def ask(question: HostKeyUnknown) -> bool:
        asked.append(question)
        return True

    host = await open_host(server.address, trust=ask, **server.options)
    assert (await host.run(["echo", "hello"])).stdout == b"hello\n"
    await host.close()
    assert len(asked) == 1
    lines = server.known_hosts.read_text().splitlines()
    assert lines[-1] == asked[0].key_line
    # ssh-keygen finds the host by its name and port: ssh itself would know it now.
    found = subprocess.run(
        ["ssh-keygen", "-F", f"[127.0.0.1]:{server.port}", "-f", str(server.known_hosts)],
        capture_output=True,
        check=False,
    )
    assert found.returncode == 0
    again = await open_host(server.address, **server.options)
    await again.close()
    assert server.known_hosts.read_text().splitlines() == lines


async def test_a_new_known_hosts_file_is_private(server: SshServer, tmp_path: Path) -> None:
    path = tmp_path / "new" / "known_hosts"
    host = await open_host(server.address, known_hosts=str(path), trust=yes, **server.options)
    await host.close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_a_changed_key_is_refused_and_nobody_is_asked(server: SshServer) -> None:
    server.exchange_known_key()
    known = server.known_hosts.read_text()

    async def ask(_: HostKeyUnknown) -> bool:
        raise AssertionError("a changed key is no question")

    with pytest.raises(HostKeyChanged) as caught:
        await open_host(server.address, trust=ask, **server.options)
    assert caught.value.fingerprint == fingerprint(server.host_key)
    assert "ssh-keygen -R" in str(caught.value)
    assert server.known_hosts.read_text() == known


async def test_a_revoked_key_is_refused_and_nobody_is_asked(server: SshServer) -> None:
    server.known_hosts.write_text(f"@revoked {server.known_hosts.read_text()}")
    with pytest.raises(HostKeyChanged):
        await open_host(server.address, trust=yes, **server.options)


async def test_the_key_of_another_port_is_no_change(server: SshServer) -> None:
    """Two servers on one address, as with a container's sshd beside the host's."""
    text = server.known_hosts.read_text()
    server.exchange_known_key()
    server.known_hosts.write_text("127.0.0.1 " + server.known_hosts.read_text().split(" ", 1)[1])
    with pytest.raises(HostKeyUnknown):
        await open_host(server.address, **server.options)
    host = await open_host(server.address, trust=yes, **server.options)
    await host.close()
    assert text.split()[:3] == server.known_hosts.read_text().splitlines()[-1].split()


@pytest.mark.parametrize("word", ["none", "/dev/null"])
async def test_the_configuration_cannot_switch_verification_off(server: SshServer, word: str) -> None:
    text = server.config.read_text()
    server.config.write_text(
        text.replace(f"UserKnownHostsFile {server.known_hosts}", f"UserKnownHostsFile {word}")
        + "    StrictHostKeyChecking no\n"
    )
    with pytest.raises(HostKeyUnknown):
        await open_host(server.address, **server.options)


async def test_a_key_the_server_does_not_know_is_an_error_that_says_so(server: SshServer) -> None:
    server.exchange_client_key()
    with pytest.raises(AuthenticationFailed, match=r"accepted none of our keys.*IdentityFile"):
        await open_host(server.address, **server.options)


async def test_key_files_that_do_not_exist_are_passed_over(server: SshServer) -> None:
    text = server.config.read_text()
    server.config.write_text(text + "    IdentityFile ~/.ssh/no-such-key\n")
    host = await open_host(server.address, **server.options)
    await host.close()
    server.client_key.unlink()
    with pytest.raises(AuthenticationFailed):
        await open_host(server.address, **server.options)


async def test_a_key_with_a_passphrase_needs_the_agent(server: SshServer) -> None:
    change = ["ssh-keygen", "-q", "-p", "-N", "a passphrase", "-f", str(server.client_key)]
    subprocess.run(change, check=True, capture_output=True)
    with pytest.raises(AuthenticationFailed, match="ssh-agent"):
        await open_host(server.address, **server.options)


async def test_a_host_that_is_down_is_an_error_that_says_so(server: SshServer) -> None:
    await server.stop()
    with pytest.raises(HostUnreachable, match="cannot reach"):
        await open_host(server.address, **server.options)


async def test_a_host_that_does_not_answer_is_given_up_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(HostUnreachable, match=r"no answer within 0\.3 s|cannot reach"):
            await open_host(f"127.0.0.1:{port}", config_paths=[], connect_timeout=0.3)


async def test_something_that_is_not_ssh_is_an_error_that_says_so() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    other = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    with pytest.raises(HostUnreachable):
        await open_host(f"127.0.0.1:{port}", config_paths=[])
    other.close()


async def test_a_name_that_does_not_resolve_is_an_error_that_says_so() -> None:
    with pytest.raises(HostUnreachable, match=r"cannot reach no-such-host\.invalid"):
        await open_host("no-such-host.invalid", config_paths=[])


async def test_a_configuration_or_known_hosts_that_cannot_be_parsed_says_so(server: SshServer) -> None:
    server.known_hosts.write_text("one-word-only\n")
    with pytest.raises(ConfigUnreadable, match="known_hosts"):
        await open_host(server.address, **server.options)
    server.config.write_text("Host gpu-box\n    Port many\n")
    with pytest.raises(ConfigUnreadable):
        await open_host(server.address, **server.options)


async def test_a_lost_connection_fails_what_runs_and_comes_back(server: SshServer) -> None:
    host = await open_host(server.address, **server.options)
    for n in range(1, 3):
        running = asyncio.create_task(host.run(["sleep", "1000"]))
        await until(lambda: any(one.argv == ("sleep", "1000") and one.took is None for one in host.commands))
        await host.run(["true"])
        await server.drop()
        with pytest.raises(HostUnreachable, match="lost the connection"):
            await running
        assert (await host.run(["echo", "back"])).stdout == b"back\n"
        await until(lambda n=n: host.state.reconnects == n)  # type: ignore[misc]
        assert host.state.connected and host.state.problem == ""
    await host.close()


async def test_it_comes_back_by_itself_when_the_host_does(server: SshServer) -> None:
    host = await open_host(server.address, **server.options)
    await server.stop()
    await until(lambda: host.state.attempts >= 2)
    assert not host.state.connected
    assert "cannot reach" in host.state.problem
    with pytest.raises(HostUnreachable):
        await host.run(["true"])
    await server.start()
    await until(lambda: host.state.connected)
    assert (await host.run(["echo", "back"])).stdout == b"back\n"
    await host.close()


async def test_a_host_that_comes_back_with_another_key_is_not_trusted(server: SshServer) -> None:
    host = await open_host(server.address, trust=yes, **server.options)
    server.exchange_known_key()
    await server.drop()
    await until(lambda: "has changed" in host.state.problem)
    with pytest.raises(HostKeyChanged):
        await host.run(["true"])
    await host.close()


async def test_the_first_algorithm_offered_is_aes_gcm(server: SshServer) -> None:
    host = await open_host(server.address, **server.options)
    assert isinstance(host, SshHost)
    assert (await host.connect()).get_extra_info("send_cipher") == "aes128-gcm@openssh.com"
    await host.close()


@pytest.mark.parametrize("known", ["", "none", "listed"])
async def test_a_jump_host_is_verified_too(server: SshServer, known: str) -> None:
    """The server serves as its own jump host, under another name and with another known_hosts file."""
    file = server.folder / "jump_known_hosts"
    file.write_text(server.known_hosts.read_text() if known == "listed" else "")
    text = server.config.read_text()
    jump = text.replace("Host gpu-box", "Host jump")
    jump = jump.replace(str(server.known_hosts), "none" if known == "none" else str(file))
    server.config.write_text(f"{text}    ProxyJump jump\n{jump}")
    if known != "listed":
        with pytest.raises(HostKeyUnknown):
            await open_host(server.address, **server.options)
        return
    host = await open_host(server.address, **server.options)
    assert (await host.run(["echo", "through"])).stdout == b"through\n"
    await server.drop()
    assert (await host.run(["echo", "again"])).stdout == b"again\n"
    await host.close()


async def test_a_connection_into_the_host_reaches_its_loopback(host: Host) -> None:
    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(100)).upper())
        await writer.drain()
        writer.close()

    echo = await asyncio.start_server(upper, "127.0.0.1", 0)
    reader, writer = await host.open_connection(echo.sockets[0].getsockname()[1])
    writer.write(b"hello")
    await writer.drain()
    assert await reader.read(3) == b"HEL"
    assert await reader.read() == b"LO"
    assert await reader.read(10) == b""
    writer.close()
    await writer.wait_closed()
    echo.close()


async def test_a_port_where_nobody_listens_says_so(host: Host) -> None:
    with pytest.raises(NotListening, match="nothing answers on port"):
        await host.open_connection(free_port())


async def test_forwarding_may_be_forbidden(tmp_path: Path) -> None:
    from tests.remote.servers import openssh_server

    async with openssh_server(tmp_path / "ssh") as strict:
        config = strict.folder / "sshd_config"
        for each in (config, strict.folder / "sshd_config_penalties"):
            each.write_text(each.read_text() + "AllowTcpForwarding no\n")
        await strict.stop()
        await strict.start()
        host = await open_host(strict.address, **strict.options)
        await test_a_connection_into_the_host_reaches_its_loopback(host)
        with pytest.raises(NotListening):
            await host.open_connection(free_port())
        await host.close()


async def test_commands_end_when_the_host_is_closed(server: SshServer) -> None:
    host = await open_host(server.address, **server.options)
    async with host.stream(["sh", "-c", "echo $$; exec cat"], input=None) as stream:
        pid = int(await stream.read())
        await host.close()
    await gone(pid)
    with pytest.raises(HostUnreachable, match="was closed"):
        await host.run(["true"])


async def test_no_name_or_local_is_this_machine() -> None:
    for name in (None, "", "local"):
        assert isinstance(await open_host(name), LocalHost)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("gpu-box", (None, "gpu-box", None)),
        ("ann@gpu.example.org:2222", ("ann", "gpu.example.org", 2222)),
        ("ann@corp@gpu", ("ann@corp", "gpu", None)),
        ("::1", (None, "::1", None)),
        ("ann@[fe80::1]:22", ("ann", "fe80::1", 22)),
        ("[fe80::1]", (None, "fe80::1", None)),
    ],
)
def test_addresses(text: str, parsed: tuple[str | None, str, int | None]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", ["", "ann@", "gpu:port", "gpu:0", "gpu:99999", "[::1]:x"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigUnreadable, match=r"not .user@.host.:port."):
        parse_address(text)
