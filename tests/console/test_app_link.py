"""The app and its host: keys never met, hosts that are down, and runs that are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from console.demo.host import started
from console.demo.setup import free_port
from console.deployment import HostSpec
from console.draft import Diagnosis
from console.embedded import Embedded
from console.screens.draft import DraftScreen
from tests.console.driving import driven, serving_host


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with serving_host("late") as running:
        yield running


def ssh_file(embedded: Embedded, name: str) -> Path:
    return embedded.folder.root / "ssh" / name


@pytest.fixture
def never_met(embedded: Embedded) -> Iterator[Path]:
    """The known_hosts of somebody who has not met the host."""
    known = ssh_file(embedded, "known_hosts")
    as_it_was = known.read_text("utf-8")
    known.write_text("", "utf-8")
    yield known
    known.write_text(as_it_was, "utf-8")


async def test_an_unknown_host_key_that_is_refused_opens_nothing(embedded: Embedded, never_met: Path) -> None:
    key = asyncssh.read_public_key(str(ssh_file(embedded, "host_key.pub")))
    async with driven(embedded.folder.deployment, connected=False) as driver:
        await driver.asked("Unknown host key")
        assert key.get_fingerprint() in driver.text.replace("\n", "")
        await driver.press("n")
        await driver.told("the host could not be opened")
        assert driver.app.session is None
        assert never_met.read_text("utf-8") == ""
        await driver.press("escape")
        # Nothing works without a host, and nothing breaks.
        await driver.press("R", "S", "2", "e", "w", "3", "c", "f", "x", "4", "enter", "u", "5", "space", "at")
        await driver.told("commands run on the host")


async def test_an_unknown_host_key_that_is_trusted_is_remembered(embedded: Embedded, never_met: Path) -> None:
    async with driven(embedded.folder.deployment, connected=False) as driver:
        await driver.asked("Unknown host key")
        await driver.press("y")
        await driver.until(lambda: driver.app.cockpit.connected, "the connection")
    public = ssh_file(embedded, "host_key.pub").read_text("utf-8").split()[1]
    assert public in never_met.read_text("utf-8")
    async with driven(embedded.folder.deployment) as driver:
        assert type(driver.app.screen).__name__ == "LiveScreen"


async def test_a_host_that_is_down_is_said_with_what_to_do_next(embedded: Embedded) -> None:
    port = free_port()
    deployment = replace(embedded.folder.deployment, host=HostSpec(ssh=f"127.0.0.1:{port}"))
    async with driven(deployment, connected=False) as driver:
        await driver.told("the host could not be opened")
        assert "cannot reach 127.0.0.1" in driver.text
        assert "Check that it is up" in driver.text
        await driver.press("escape")
        await driver.until(lambda: type(driver.app.screen).__name__ == "LiveScreen")
        assert "◌" in driver.text.splitlines()[0]


def command_line(pid: int) -> bytes:
    """The command line of a process; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_a_cancelled_check_ends_on_the_host(embedded: Embedded) -> None:
    def shipped() -> list[int]:
        return [pid for pid in started(embedded.folder.root) if b".pyz" in command_line(pid)]

    async with driven(embedded.folder.deployment) as driver:
        board = driver.app.cockpit.board
        await driver.go("3", "ChecksScreen")
        await driver.press("c")
        await driver.until(lambda: board.findings and board.busy, "the first finding")
        assert shipped()
        await driver.press("x")
        await driver.until(lambda: not board.busy, "the end of the run")
        assert board.error == "cancelled"
        await driver.until(lambda: not shipped(), "the end on the host")
        await driver.until_shown("cancelled")
        # And it can be run again.
        await driver.press("full_stop")
        await driver.checked()


async def test_work_that_ends_while_the_screens_go_is_no_crash(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()
    async with driven(embedded.folder.deployment) as driver:
        await driver.go("2", "DraftScreen")
        screen = driver.app.screen
        assert isinstance(screen, DraftScreen)

        async def until_its_place_is_gone() -> list[Diagnosis]:
            asked.set()
            while screen.query("#remarks"):
                await asyncio.sleep(0)
            return []

        monkeypatch.setattr(driver.session.draft, "diagnose", until_its_place_is_gone)
        screen._diagnose()
        await asyncio.wait_for(asked.wait(), 30)
    # Leaving raises what any work raised.


async def test_quitting_leaves_the_server_running(embedded: Embedded) -> None:
    async with driven(embedded.folder.deployment) as driver:
        await driver.until(lambda: driver.session.last_status.healthy, "the server")
        pid = driver.session.last_status.pid
        await driver.press("q")
        await driver.until(lambda: driver.app._exit, "the exit")
    assert Path(f"/proc/{pid}").exists()
