"""The table of runs: columns as wide as what stands in them, and why a run was made in whatever they leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from console.widgets.columns import share
from console.widgets.flagtable import clip


@dataclass(frozen=True, slots=True)
class Column:
    """A column's title; numbers stand at its right end; one that is `last_resort` goes where there is no room."""

    title: str
    number: bool = False
    last_resort: bool = False


Cell = tuple[str, str]
"""A cell's text and style."""

_EDGES = 1  # the scroll bar
_BESIDE = 2  # padding of a cell


class RunTable(DataTable[Content]):
    """Every run, the newest first. Only cells that changed are drawn, so that the cursor and the view stay."""

    def __init__(self, columns: Sequence[Column], id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes, cursor_type="row", cursor_foreground_priority="renderable")
        self._columns = tuple(columns)
        self._rows: list[tuple[Cell, ...]] = []
        self._drawn: list[tuple[Cell, ...]] = []
        self._layout: tuple[tuple[int, int], ...] = ()

    def show(self, rows: Sequence[tuple[Cell, ...]]) -> None:
        """Draw these rows, a cell a column."""
        self._rows = list(rows)
        self._fill()

    def on_resize(self, event: events.Resize) -> None:
        """Share the new width out."""
        self._fill()

    def _fill(self) -> None:
        layout = self._shared()
        if layout != self._layout or len(self._rows) != len(self._drawn):
            self._layout, self._drawn = layout, []
            at = self.cursor_row
            self.clear(columns=True)
            for index, width in layout:
                column = self._columns[index]
                self.add_column(column.title.rjust(width) if column.number else column.title, width=width)
            for row in self._rows:
                self.add_row(*self._cells(row))
            self.move_cursor(row=at)
        for place, (row, drawn) in enumerate(zip(self._rows, self._drawn, strict=False)):
            if row != drawn:
                for index, cell in enumerate(self._cells(row)):
                    self.update_cell_at(Coordinate(place, index), cell)
        self._drawn = list(self._rows)

    def _shared(self) -> tuple[tuple[int, int], ...]:
        """The columns that are shown, each with its width."""
        shown = list(range(len(self._columns)))
        wanted = [max(len(text) for text in self._texts(index)) for index in shown]
        for index in (index for index in shown[::-1] if self._columns[index].last_resort):
            if sum(wanted[index] + _BESIDE for index in shown) > self.size.width - _EDGES:
                shown.remove(index)
        room = self.size.width - _EDGES - _BESIDE * len(shown)
        return tuple(zip(shown, share([wanted[index] for index in shown], room), strict=True))

    def _texts(self, index: int) -> list[str]:
        return [self._columns[index].title, *(row[index][0] for row in self._rows)]

    def _cells(self, row: tuple[Cell, ...]) -> list[Content]:
        cells = []
        for index, width in self._layout:
            text, style = row[index]
            shown = clip(text, width)
            cells.append(Content.styled(shown.rjust(width) if self._columns[index].number else shown, style))
        return cells
