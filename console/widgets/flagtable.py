"""The table of launch flags: what is set first, then every flag the engine has, each with its default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.widgets import DataTable

from console.flags import STAGED, FlagRow, shown_value
from console.glyphs import glyphs
from console.plain import one_line

_NAME, _LEAST = 30, 7
_EDGES = 2 + 1  # a scroll bar, and the mark


class FlagTable(DataTable[Content]):
    """Flags and variables: planned value, what runs where it differs, and the engine's default.

    Enter changes the flag under the cursor. The cursor stays on its flag when rows come and go.
    """

    BINDINGS = [Binding("enter", "screen.edit", "Change")]  # in the bottom line, and grey where it cannot be done

    def __init__(self, id: str) -> None:
        super().__init__(id=id, cursor_type="row")
        self._rows: tuple[FlagRow, ...] = ()
        self._marks: Mapping[str, str] = {}

    @property
    def current(self) -> FlagRow | None:
        """The row under the cursor."""
        return self._rows[self.cursor_row] if 0 <= self.cursor_row < len(self._rows) else None

    def show(self, rows: Sequence[FlagRow], marks: Mapping[str, str]) -> None:
        """Draw these rows; `marks` has the style of a glyph in front, by a row's key."""
        self._rows, self._marks = tuple(rows), marks
        self._fill(self.current_key)

    @property
    def current_key(self) -> str | None:
        """The key of the row under the cursor as it is drawn."""
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value if self.row_count else None

    def on_resize(self, event: events.Resize) -> None:
        """Share the new width out."""
        self._fill(self.current_key)

    def _fill(self, current: str | None) -> None:
        differs = any(row.difference is not None for row in self._rows)
        names = ["planned", "running", "default"] if differs else ["planned", "default"]
        room = max(self.size.width - _EDGES - 2 * (len(names) + 2), _NAME + _LEAST * len(names))
        name = max(_NAME, min(44, room * 2 // 5))
        each = (room - name) // len(names)
        at = self.cursor_row
        self.clear(columns=True)
        for label, width in (("", 1), ("flag", name), *((label, each) for label in names)):
            self.add_column(label, width=width, key=label)
        for row in self._rows:
            self.add_row(*self._cells(row, name, each, differs), key=row.key)
        keys = {row.key: index for index, row in enumerate(self._rows)}
        self.move_cursor(row=keys.get(current or "", at), animate=False, scroll=True)

    def _cells(self, row: FlagRow, name: int, each: int, differs: bool) -> list[Content]:
        g = glyphs()
        mark = self._marks.get(row.key, "")
        style = "bold $warning" if row.source == STAGED else "" if row.given else "dim"
        cells = [
            Content.styled(g.bad if row.problem or mark == "$error" else g.warn, "$error" if row.problem else mark)
            if row.problem or mark
            else Content(""),
            Content.styled(clip(row.key, name), style),
            Content.styled(clip(_planned(row), each), style),
        ]
        if differs:
            running = "" if row.difference is None else row.difference.running or "absent"
            cells.append(Content.styled(clip(running, each), "$error"))
        default = row.known.default_words if row.known else ""
        cells.append(Content.styled(clip(default, each), "dim"))
        return cells


def _planned(row: FlagRow) -> str:
    if row.planned is None:
        return "(dropped)" if row.source == STAGED else "absent" if row.difference is not None else ""
    return shown_value(row.key, row.planned)


def clip(text: str, width: int) -> str:
    """One line of at most `width` cells: a path keeps its end, anything else its beginning."""
    text = one_line(text)
    if len(text) <= width:
        return text
    mark = glyphs().ellipsis
    return mark + text[len(text) - width + 1 :] if text.startswith(("/", "~")) else text[: width - 1] + mark
