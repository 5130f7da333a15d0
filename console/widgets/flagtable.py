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
from console.widgets.columns import share

_EDGES = 1 + 1  # a scroll bar, and the mark


class FlagTable(DataTable[Content]):
    """Flags and variables: planned value, what runs where it differs, and the engine's default.

    Enter changes the flag under the cursor. The cursor stays on its flag when rows come and go.
    """

    BINDINGS = [Binding("enter", "screen.edit", "Edit")]  # in the bottom line, and grey where it cannot be done

    def __init__(self, id: str) -> None:
        super().__init__(id=id, cursor_type="row", cursor_foreground_priority="renderable")
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
        titles = ["", "flag", "planned", "running", "default"] if differs else ["", "flag", "planned", "default"]
        texts = [_texts(row, differs) for row in self._rows]
        wanted = [max(map(len, column)) for column in zip(titles[1:], *texts, strict=True)]
        room = self.size.width - _EDGES - 2 * len(titles)
        # A name that is cut may be any of several; a value that is cut is said in full beside the table.
        name = min(wanted[0], max(1, room * 3 // 5))
        widths = [1, name, *share(wanted[1:], room - name)]
        at = self.cursor_row
        self.clear(columns=True)
        for title, width in zip(titles, widths, strict=True):
            self.add_column(title, width=width, key=title)
        for row, words in zip(self._rows, texts, strict=True):
            self.add_row(*self._cells(row, words, widths), key=row.key)
        keys = {row.key: index for index, row in enumerate(self._rows)}
        self.move_cursor(row=keys.get(current or "", at), animate=False, scroll=True)

    def _cells(self, row: FlagRow, words: Sequence[str], widths: Sequence[int]) -> list[Content]:
        g, mark = glyphs(), self._marks.get(row.key, "")
        glyph = g.bad if row.problem or mark == "$error" else g.warn if mark else ""
        style = "bold $warning" if row.source == STAGED else "" if row.given else "dim"
        styles = ["$error" if row.problem else mark, style, style, *["$error"] * (len(words) - 3), "dim"]
        return [
            Content.styled(clip(text, width), style)
            for text, width, style in zip([glyph, *words], widths, styles, strict=True)
        ]


def _texts(row: FlagRow, differs: bool) -> list[str]:
    """Name, planned value, what runs where that is asked for, and default."""
    running = "" if row.difference is None else row.difference.running or "absent"
    default = row.known.default_words if row.known else ""
    return [one_line(text) for text in (row.key, _planned(row), *([running] if differs else []), default)]


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
