"""The palette offers what the keys do, where it is possible; and the draft's ways back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from textual.command import CommandList, CommandPalette
from textual.widgets import Static

from console import keys
from console.demo.setup import WIRINGS, wire
from console.embedded import Embedded, embedded_host
from console.screens.palette import KeyCommands
from tests.console.driving import Driver, driven


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with embedded_host("embedding") as made:
        yield made


@pytest.fixture
async def driver(embedded: Embedded) -> AsyncIterator[Driver]:
    """The app at 80 columns, on a host whose server does not run."""
    wire(embedded.folder.draft_config, WIRINGS["embedding"])
    async with driven(embedded.folder.deployment, (80, 24)) as opened:
        await opened.until(lambda: opened.session.last_status.known, "the first look")
        yield opened


def offered(driver: Driver) -> dict[str, str]:
    """The palette's own entries on the screen in front: words, and what is said of each."""
    return {words: about for words, about, _ in KeyCommands(driver.app.screen).commands()}


async def chosen(driver: Driver, words: str) -> None:
    """Type an entry's words into the palette, and take it once it stands first."""
    await driver.press("colon")
    await driver.until(lambda: isinstance(driver.app.screen, CommandPalette), "the palette")
    await driver.press(*words.lower())
    found = driver.app.screen.query_one(CommandList)
    await driver.until(lambda: found.option_count and words in str(found.get_option_at_index(0).prompt), words)
    await driver.press("enter")


def test_what_is_offered_elsewhere_is_in_the_tables() -> None:
    known = {getattr(item, "id", None) for table in keys.TABLES.values() for item in table}
    assert known >= keys.ELSEWHERE and tuple(keys.TABLES) == keys.SCREENS


async def test_only_what_is_possible_is_offered(driver: Driver) -> None:
    words = offered(driver)
    assert {"Restart", "Draft", "Runs", "Live: Search", "Draft: Edit", "Launch: Last good"} <= set(words)
    assert not {"Stop", "Live", "Live: Measure", "Draft: Write", "Draft: Discard", "Launch: Change"} & set(words)
    assert all(words.values()), words
    await driver.go("2", "DraftScreen")
    driver.session.draft.edit(driver.session.draft.base + " ")
    assert {"Live", "Draft: Write", "Draft: Discard", "Draft: Undo"} <= set(offered(driver))


async def test_read_only_offers_no_change(embedded: Embedded) -> None:
    async with driven(embedded.folder.deployment, read_only=True) as driver:
        assert not {"Restart", "Draft: Edit", "Draft: Restore", "Launch: Last good"} & set(offered(driver))


async def test_an_entry_goes_to_its_screen_and_does_it(driver: Driver) -> None:
    await chosen(driver, "Restart")
    await driver.asked("Start the server?")
    await driver.press("n")
    await chosen(driver, "Draft: Edit")
    await driver.until_shown("editing: Esc ends")
    await driver.press("ctrl+home", "x", "escape")
    await driver.until_shown("staged, not written")
    await driver.go("1", "LiveScreen")
    await chosen(driver, "Draft: Discard")
    await driver.asked("Discard what is staged?")
    await driver.press("y")
    await driver.until(lambda: not driver.session.draft.dirty, "nothing staged")


async def test_what_was_wrong_with_a_text_goes_with_it(driver: Driver) -> None:
    await driver.go("2", "DraftScreen")
    await driver.until_shown("architectures")
    await driver.press("e", "ctrl+home", "x", "escape")
    remarks = driver.app.screen.query_one("#remarks", Static)
    await driver.until(lambda: "not JSON" in str(remarks.content), "the remark")
    while driver.session.draft.dirty:
        await driver.press("u")
    await driver.until(lambda: "not JSON" not in str(remarks.content), "no remark")
    await driver.until(lambda: "not JSON" not in driver.text, "no remark on the screen")


async def test_the_versions_stand_below_the_question_which_to_restore(driver: Driver) -> None:
    await driver.go("2", "DraftScreen")
    driver.session.draft.edit(driver.session.draft.base + "\n")
    await driver.session.draft.write("a trailing line")
    await driver.press("z")
    await driver.until_shown("restore which version?", "a trailing line")
    await driver.press("escape")
