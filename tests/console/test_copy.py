"""`y` copies through the terminal by OSC 52: what is written is the screen's text, encoded, and nothing else."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Iterator

import pytest
from textual.content import Content

from console.demo.setup import WIRINGS, wire
from console.embedded import Embedded, embedded_host
from console.screens.dialogs import Reading
from tests.console.driving import Driver, driven

OSC_52 = re.compile(r"\x1b\]52;c;([A-Za-z0-9+/=]*)(?:\a|\x1b\\)")
SCREENS = {"1": "LiveScreen", "2": "DraftScreen", "3": "ChecksScreen", "4": "LaunchScreen"}


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with embedded_host("right") as running:
        yield running


@pytest.fixture
async def driver(embedded: Embedded) -> AsyncIterator[Driver]:
    wire(embedded.folder.draft_config, WIRINGS["right"])
    async with driven(embedded.folder.deployment) as opened:
        yield opened


class Terminal:
    """What the app writes to the terminal that is no picture."""

    def __init__(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[str] = []
        assert driver.app._driver is not None
        monkeypatch.setattr(driver.app._driver, "write", self.written.append)

    @property
    def copied(self) -> list[str]:
        """The texts that were put on the clipboard."""
        found = OSC_52.findall("".join(self.written))
        return [base64.b64decode(text, validate=True).decode() for text in found]


@pytest.mark.parametrize("key", SCREENS)
async def test_y_copies_what_the_screen_says_is_worth_copying(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    await driver.go(key, SCREENS[key])
    if key == "3":
        driver.app.run_checks(("cfg.aux_ids",))
        await driver.checked()
    await driver.until(lambda: driver.app.screen.copyable(), "something to copy")  # type: ignore[attr-defined]
    terminal = Terminal(driver, monkeypatch)
    text = driver.app.screen.copyable()  # type: ignore[attr-defined]
    await driver.press("y")
    await driver.until(lambda: terminal.copied, "an OSC 52 sequence")
    assert terminal.copied == [text]
    await driver.until_shown("copied")


async def test_y_copies_the_text_of_a_page_as_it_is(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.app.push_screen(Reading("page", Content("one [bold]red[/]\nüber")))
    await driver.until(lambda: isinstance(driver.app.screen, Reading))
    terminal = Terminal(driver, monkeypatch)
    await driver.press("y")
    await driver.until(lambda: terminal.copied, "an OSC 52 sequence")
    assert terminal.copied == ["one [bold]red[/]\nüber"]
