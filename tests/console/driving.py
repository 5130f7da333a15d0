"""Driving the app as a person would: keys in, the cells of the screen out, and waiting for what is to come."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from console.app import ConsoleApp
from console.deployment import Deployment
from console.embedded import Embedded, embedded_host
from console.screens.dialogs import Question, Reading
from console.session import Session

LIMIT = 120.0
"""Seconds until a wait gives up: only a failure reaches it, on however slow a machine."""


class Driver:
    """One running app: `press`, then `until` the screen says what it should."""

    def __init__(self, app: ConsoleApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def session(self) -> Session:
        return self.app.open_session

    @property
    def text(self) -> str:
        """The cells of the screen in front, row by row."""
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())

    @property
    def flow(self) -> str:
        """The same with single spaces: what columns say, whatever their widths."""
        return " ".join(self.text.split())

    @property
    def shape(self) -> tuple[int, int]:
        """Columns and rows of the screen in front, as drawn."""
        rows = self.app.screen._compositor.render_strips()
        widths = {row.cell_length for row in rows}
        return (widths.pop() if len(widths) == 1 else 0), len(rows)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def until(self, condition: Callable[[], Any], what: str = "") -> None:
        """Wait until the condition holds; fail with the screen as it then stands."""
        try:
            async with asyncio.timeout(LIMIT):
                while not condition():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"it did not come to pass: {what or condition}\n{self.text}") from None

    async def until_shown(self, *words: str) -> None:
        """Wait until all these words stand on the screen."""
        await self.until(lambda: all(word in self.text for word in words), f"{words} on the screen")

    async def go(self, key: str, screen: str) -> None:
        """Show a screen by its key, and wait until it is in front."""
        await self.press(key)
        await self.until(lambda: type(self.app.screen).__name__ == screen, screen)

    async def asked(self, title: str) -> None:
        """Wait for a question."""
        await self.until(lambda: isinstance(self.app.screen, Question) and title in self.text, f"the question {title}")

    async def told(self, title: str) -> None:
        """Wait for a text to read."""
        await self.until(lambda: isinstance(self.app.screen, Reading) and title in self.text, f"the text {title}")

    async def checked(self) -> dict[str, dict[str, Any]]:
        """Wait for the end of a run of the checks; its findings by id."""
        board = self.app.cockpit.board
        await self.until(lambda: board.started and not board.busy, "the end of the checks")
        assert not board.error
        return {item["check"]: item for item in board.findings}


@asynccontextmanager
async def driven(
    deployment: Deployment, size: tuple[int, int] = (120, 36), read_only: bool = False, connected: bool = True
) -> AsyncIterator[Driver]:
    """The app on a deployment, on a terminal of this size; by default the host is reached before the body runs."""
    app = ConsoleApp(deployment, read_only=read_only)
    async with app.run_test(size=size, notifications=True) as pilot:
        driver = Driver(app, pilot)
        if connected:
            await driver.until(lambda: app.cockpit.connected, "the connection")
        yield driver


@contextmanager
def traffic(url: str) -> Iterator[None]:
    """Prompts sent to an engine, over and over, until the end."""
    command = [sys.executable, "-m", "console.demo.traffic", "--url", url, "--interval", "0.1"]
    quiet = subprocess.DEVNULL
    sender = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, cwd=Path(__file__).resolve().parents[2])
    try:
        yield
    finally:
        sender.terminate()
        sender.wait()


async def start_server(deployment: Deployment) -> None:
    """Start the deployment's server and leave it running."""
    session = await Session.open(deployment)
    try:
        await session.start("first start")
    finally:
        await session.close()


@contextmanager
def serving_host(wiring: str) -> Iterator[Embedded]:
    """An embedded host whose server is up."""
    with embedded_host(wiring) as embedded:
        asyncio.run(start_server(embedded.folder.deployment))
        yield embedded


async def stop_server(deployment: Deployment) -> None:
    """Stop whatever server a test left running."""
    session = await Session.open(deployment)
    try:
        if (await session.status()).up:
            await session.stop("end of test")
    finally:
        with contextlib.suppress(OSError):
            await session.close()
