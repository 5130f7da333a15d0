"""The embedded host is a host like any other: reached by its key alone, and gone with whoever began it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.demo.host import ALIAS, make_keys, started
from console.embedded import Embedded, embedded_host
from remote.errors import AuthenticationFailed, HostKeyUnknown, NotListening
from remote.host import Host, open_host


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with embedded_host("right") as running:
        yield running


async def connected(embedded: Embedded) -> Host:
    return await open_host(ALIAS, config_paths=[str(embedded.folder.deployment.ssh_config)])


async def test_commands_run_as_this_user_in_a_home_of_their_own(embedded: Embedded) -> None:
    host = await connected(embedded)
    done = await host.run(["sh", "-c", 'cat; echo "$HOME"; id -u; exit 3'], input=b"in ", check=False)
    assert done.returncode == 3
    assert done.stdout.decode().split() == ["in", str(embedded.folder.home), str(os.getuid())]
    await host.close()


async def test_much_output_arrives_whole(embedded: Embedded) -> None:
    host = await connected(embedded)
    done = await host.run(["head", "-c", "20000000", "/dev/zero"])
    assert done.stdout == bytes(20_000_000)
    await host.close()


async def test_another_key_is_refused(embedded: Embedded, tmp_path: Path) -> None:
    make_keys(tmp_path)
    config = tmp_path / "ssh_config"
    text = Path(str(embedded.folder.deployment.ssh_config)).read_text("utf-8")
    config.write_text(text.replace(f"{embedded.folder.root}/ssh/id_ed25519", str(tmp_path / "id_ed25519")), "utf-8")
    with pytest.raises(AuthenticationFailed):
        await open_host(ALIAS, config_paths=[str(config)])


async def test_an_unknown_host_is_a_question_with_its_fingerprint(embedded: Embedded, tmp_path: Path) -> None:
    with pytest.raises(HostKeyUnknown) as asked:
        await open_host(
            ALIAS,
            config_paths=[str(embedded.folder.deployment.ssh_config)],
            known_hosts=str(tmp_path / "known_hosts"),
        )
    assert asked.value.fingerprint.startswith("SHA256:")


async def test_forwarding_ends_at_loopback(embedded: Embedded) -> None:
    host = await connected(embedded)
    with pytest.raises(NotListening):
        await host.open_connection(80, "192.0.2.1")
    await host.close()


KILLED = """
import asyncio, sys
from console.embedded import embedded_host
from remote.host import open_host

async def run(embedded):
    host = await open_host("demo-gpu", config_paths=[str(embedded.folder.deployment.ssh_config)])
    await host.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 </dev/null &"])
    embedded.begin_traffic()
    print(embedded.folder.root, flush=True)
    await asyncio.sleep(600)

with embedded_host("right") as embedded:
    asyncio.run(run(embedded))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_console_however_it_ends(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    ) as console:
        assert console.stdout is not None
        root = Path(console.stdout.readline().strip())
        assert list(started(root))
        console.send_signal(number)
        console.wait(30)
    deadline = time.monotonic() + 30
    while (root.exists() or any(started(root))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list(started(root))
    assert not root.exists()


async def test_a_client_that_goes_leaves_the_host_up(embedded: Embedded) -> None:
    first = await connected(embedded)
    sleeping = asyncio.create_task(first.run(["sleep", "60"]))
    await asyncio.sleep(0.3)
    await first.close()
    await asyncio.gather(sleeping, return_exceptions=True)
    second = await connected(embedded)
    assert (await second.run(["echo", "up"])).stdout == b"up\n"
    await second.close()
