"""The bottom line: what it gives up first where it is narrow, and what a click on it does."""

from __future__ import annotations

import asyncio

import pytest
from textual.app import App, ComposeResult
from textual.binding import Binding

from console.keys import SCREENS
from console.widgets.keyline import Key, KeyLine, fitting, keyline_content, places
from tests.console.driving import LIMIT

KEYS = (
    Key("enter", "Edit"),
    Key("slash", "Search"),
    Key("u", "Undo", enabled=False),
    Key("R", "Restart"),
    Key("question_mark", "Help", action="help"),
    Key("q", "Quit", action="leave"),
    *(Key(str(number), name.capitalize(), screen=name) for number, name in enumerate(SCREENS, 1)),
)


def line(width: int) -> str:
    return keyline_content(fitting(KEYS, width), "draft").plain


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (
            100,
            " Enter Edit  / Search  u Undo  R Restart  ? Help  q Quit  1 Live 2 Draft 3 Checks 4 Launch 5 Runs",
        ),
        (96, "Enter Edit / Search u Undo R Restart ? Help q Quit 1 Live 2 Draft 3 Checks 4 Launch 5 Runs"),
        (80, " Enter Edit  / Search  u Undo  R Restart  ? Help  q Quit  12345"),
        (62, "Enter Edit / Search u Undo R Restart ? Help q Quit 12345"),
        (55, "Enter Edit / Search u Undo R Restart ? Help 12345"),
        (48, "Enter Edit / Search R Restart ? Help 12345"),
        (40, "Enter Edit / Search R Restart ? Help"),
        (30, "Enter Edit / Search ? Help"),
        (6, "? Help"),
    ],
)
def test_what_does_not_fit_is_left_out_whole(width: int, shown: str) -> None:
    assert line(width) == shown


@pytest.mark.parametrize("width", range(6, 140))
def test_it_is_never_wider_than_the_terminal_and_each_key_stands_where_it_is_said_to(width: int) -> None:
    row = fitting(KEYS, width)
    drawn = keyline_content(row, "live").plain
    assert len(drawn) <= width
    assert "Help" in drawn
    for key, begin in places(row):
        assert drawn[begin : begin + key.width].endswith(key.words)


def test_the_screen_in_front_is_marked() -> None:
    drawn = keyline_content(fitting(KEYS, 80), "checks")
    marked = [drawn.plain[span.start : span.end] for span in drawn.spans if "reverse" in str(span.style)]
    assert marked == ["3"]


class Clicked(App[None]):
    """An app with one key that can be used and one that cannot."""

    BINDINGS = [Binding("a", "go('able')", "Able"), Binding("u", "go('unable')", "Unable")]

    def __init__(self) -> None:
        super().__init__()
        self.went: list[str] = []

    def compose(self) -> ComposeResult:
        yield KeyLine()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return None if parameters == ("unable",) else True

    def action_go(self, where: str) -> None:
        self.went.append(where)


async def test_a_click_presses_the_key_and_one_that_is_grey_does_nothing() -> None:
    app = Clicked()
    async with app.run_test(size=(60, 5)) as pilot:
        shown = app.query_one(KeyLine).render().plain
        await pilot.click(KeyLine, offset=(shown.index("Unable"), 0))
        await pilot.click(KeyLine, offset=(shown.index("Able"), 0))
        async with asyncio.timeout(LIMIT):
            while not app.went:
                await asyncio.sleep(0.02)
        assert app.went == ["able"]
