"""Tables whose columns are as wide as what stands in them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from console.widgets.columns import share
from console.widgets.runtable import Cell, Column, RunTable
from tests.console.driving import LIMIT


@pytest.mark.parametrize(
    ("wanted", "room", "widths"),
    [
        ([5, 10, 40], 60, [5, 10, 40]),
        ([5, 10, 40], 30, [5, 10, 15]),
        ([40, 40], 31, [16, 15]),
        ([20, 30, 40], 50, [17, 17, 16]),
        ([3, 3], 1, [1, 1]),
        ([0, 4], 9, [1, 4]),
        ([], 9, []),
    ],
)
def test_the_widest_give_way(wanted: list[int], room: int, widths: list[int]) -> None:
    assert share(wanted, room) == widths


@given(st.lists(st.integers(0, 90), min_size=1, max_size=9), st.integers(0, 300))
def test_no_column_is_wider_than_it_wants_and_all_room_is_used(wanted: list[int], room: int) -> None:
    widths = share(wanted, room)
    most = [max(1, width) for width in wanted]
    assert all(1 <= width <= limit for width, limit in zip(widths, most, strict=True))
    assert sum(widths) == min(sum(most), max(room, len(wanted)))


COLUMNS = (Column("run", number=True), Column("sha", last_resort=True), Column("why"))


class Table(App[None]):
    """One table of runs."""

    def compose(self) -> ComposeResult:
        yield RunTable(COLUMNS, id="runs", classes="")


def row(number: int, why: str) -> tuple[Cell, ...]:
    return ((str(number), ""), ("d2f950cb", ""), (why, ""))


def shown(app: Table) -> list[str]:
    strips = app.screen._compositor.render_strips()
    return [strip.text.rstrip() for strip in strips if strip.text.strip()]


async def until_shown(app: Table, rows: list[str]) -> None:
    """Wait until these rows are what is shown; fail with what is."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LIMIT):
            while shown(app) != rows:
                await asyncio.sleep(0.02)
    assert shown(app) == rows


async def test_a_run_is_told_in_full_where_there_is_room_and_numbers_stand_at_the_right() -> None:
    app = Table()
    async with app.run_test(size=(60, 6)):
        table = app.query_one(RunTable)
        table.show([row(12, "fix of align.embedding"), row(3, "by hand")])
        head, by_hand = " run  sha       why", "   3  d2f950cb  by hand"
        await until_shown(app, [head, "  12  d2f950cb  fix of align.embedding", by_hand])
        table.move_cursor(row=1)
        table.show([row(12, "fix of align.states"), row(3, "by hand")])
        await until_shown(app, [head, "  12  d2f950cb  fix of align.states", by_hand])
        assert table.cursor_row == 1


async def test_where_there_is_no_room_a_column_goes_before_a_word_is_cut() -> None:
    app = Table()
    async with app.run_test(size=(33, 6)) as pilot:
        app.query_one(RunTable).show([row(12, "fix of align.embedding")])
        await until_shown(app, [" run  why", "  12  fix of align.embedding"])
        await pilot.resize_terminal(24, 6)
        await until_shown(app, [" run  why", "  12  fix of align.em…"])
