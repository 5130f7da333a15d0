"""The log: follows, detaches when scrolled, filters by kind, searches; draws only the lines in view."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

CAPACITY = 100_000  # lines kept in view; older ones stay in the file on the host


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the server's log, already classified; `shown` is safe text.

    `fields` gives what the parser read from it: asked of one line in thousands, so not made before.
    """

    number: int
    kind: str
    shown: str
    fields: Callable[[], tuple[tuple[str, str], ...]] = tuple


# kind -> (component class, key that shows only this kind)
KINDS = {
    "decode": "logview--decode",
    "prefill": "logview--prefill",
    "phase": "logview--phase",
    "warning": "logview--warning",
    "error": "logview--error",
    "other": "logview--other",
}


class LogView(ScrollView, can_focus=True):
    """A tail over a ring of lines. Scrolling up detaches; `F` follows again."""

    DEFAULT_CSS = """
    LogView { background: $background; scrollbar-size-horizontal: 0; scrollbar-size-vertical: 1; }
    LogView > .logview--decode { color: $foreground; }
    LogView > .logview--prefill { color: $text-muted; }
    LogView > .logview--phase { color: $accent; text-style: bold; }
    LogView > .logview--warning { color: $warning; }
    LogView > .logview--error { color: $error; text-style: bold; }
    LogView > .logview--other { color: $text-muted; }
    LogView > .logview--found { background: $warning 40%; color: $foreground; }
    LogView > .logview--cursor { background: $primary 25%; }
    """
    COMPONENT_CLASSES = {*KINDS.values(), "logview--found", "logview--cursor"}
    BINDINGS = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "move_page(-1)", "Page up", show=False),
        Binding("pagedown", "move_page(1)", "Page down", show=False),
        Binding("home", "first", "First", show=False),
        Binding("end,F", "follow", "Follow", show=False),
        Binding("enter", "inspect", "Fields", show=False),
    ]

    following: reactive[bool] = reactive(True)

    @dataclass
    class Inspected(Message):
        """The line under the cursor was opened."""

        line: LogLine

    @dataclass
    class Changed(Message):
        """Follow, filter or search changed; the title above the log says so."""

        def can_replace(self, message: Message) -> bool:
            """Only the last one matters."""
            return isinstance(message, LogView.Changed)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: deque[LogLine] = deque(maxlen=CAPACITY)
        self._visible: deque[LogLine] = deque(maxlen=CAPACITY)
        self._kinds: frozenset[str] = frozenset(KINDS)
        self._search: re.Pattern[str] | None = None
        self._cursor = -1
        self._width = 0

    # -- content -----------------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """Lines held, before filtering."""
        return len(self._lines)

    @property
    def filter_words(self) -> str:
        """The kinds shown, in words."""
        return "all" if self._kinds == frozenset(KINDS) else ", ".join(kind for kind in KINDS if kind in self._kinds)

    @property
    def search_words(self) -> str:
        """The pattern searched for, empty when none."""
        return self._search.pattern if self._search else ""

    def add(self, lines: Iterable[LogLine]) -> None:
        """Append a batch and, when following, show its end."""
        fresh = list(lines)
        if not fresh:
            return
        self._lines.extend(fresh)
        shown = [line for line in fresh if line.kind in self._kinds]
        dropped = max(0, len(self._visible) + len(shown) - CAPACITY)
        self._visible.extend(shown)
        self._cursor = max(-1, self._cursor - dropped) if not self.following else len(self._visible) - 1
        self._measure(shown)
        self.post_message(self.Changed())

    def show_kinds(self, kinds: Iterable[str]) -> None:
        """Show only these kinds; an empty set means all of them."""
        self._kinds = frozenset(kinds) or frozenset(KINDS)
        self._refilter()

    def toggle_kind(self, kind: str) -> None:
        """Show only this kind, or add it to the kinds shown, or take it away."""
        every = frozenset(KINDS)
        self.show_kinds({kind} if self._kinds == every else self._kinds ^ {kind})

    def search(self, pattern: str) -> bool:
        """Search for a regular expression; False when it is not one. An empty pattern ends the search."""
        try:
            self._search = re.compile(pattern, re.IGNORECASE) if pattern else None
        except re.error:
            return False
        self.refresh()
        self.post_message(self.Changed())
        return True

    def jump(self, direction: int, *, kind: str | None = None) -> bool:
        """Move to the next (+1) or previous (-1) line of a kind, or that the search finds. False when there is none."""
        start = self._cursor if self._cursor >= 0 else len(self._visible)
        span = range(start + direction, len(self._visible) if direction > 0 else -1, direction)
        for index in span:
            line = self._visible[index]
            if line.kind == kind if kind else bool(self._search and self._search.search(line.shown)):
                self._go(index)
                return True
        return False

    # -- drawing -----------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """Draw one row; only rows in view are ever drawn."""
        index = y + round(self.scroll_offset.y)
        width = self.scrollable_content_region.width
        if index >= len(self._visible):
            return Strip.blank(width, self.rich_style)
        line = self._visible[index]
        style = self.get_component_rich_style(KINDS.get(line.kind, "logview--other"))
        if index == self._cursor and self.has_focus and not self.following:
            style = style + self.get_component_rich_style("logview--cursor", partial=True)
        strip = Strip(self._segments(line.shown, style))
        left = round(self.scroll_offset.x)
        return strip.crop(left, left + width).adjust_cell_length(width, style)

    def _segments(self, text: str, style: Style) -> list[Segment]:
        if self._search is None:
            return [Segment(text, style)]
        found = self.get_component_rich_style("logview--found", partial=True)
        segments, last = [], 0
        for match in self._search.finditer(text):
            segments += [Segment(text[last : match.start()], style), Segment(match.group(), style + found)]
            last = match.end()
        return [*segments, Segment(text[last:], style)]

    # -- moving ------------------------------------------------------------------------------------------------

    def action_move(self, rows: int) -> None:
        """Move the cursor; moving up detaches from the tail."""
        self._go(
            min(max((self._cursor if self._cursor >= 0 else len(self._visible) - 1) + rows, 0), len(self._visible) - 1)
        )

    def action_move_page(self, pages: int) -> None:
        """Move the cursor by a screenful."""
        self.action_move(pages * max(self.size.height - 1, 1))

    def action_first(self) -> None:
        """Go to the oldest line held."""
        self._go(0)

    def action_follow(self) -> None:
        """Follow the tail again."""
        self.following = True
        self._cursor = len(self._visible) - 1
        self._show_end()
        self.post_message(self.Changed())

    def action_inspect(self) -> None:
        """Open the fields of the line under the cursor."""
        if 0 <= self._cursor < len(self._visible):
            self.post_message(self.Inspected(self._visible[self._cursor]))

    def _on_mouse_scroll_up(self, event: object) -> None:
        self.following = False
        self.post_message(self.Changed())
        super()._on_mouse_scroll_up(event)  # type: ignore[arg-type]

    def _go(self, index: int) -> None:
        if index < 0:
            return
        self._cursor = index
        self.following = index >= len(self._visible) - 1
        top, height = round(self.scroll_offset.y), max(self.size.height, 1)
        if not top <= index < top + height:
            self.scroll_to(y=max(0, index - height // 2), animate=False, force=True)
        self.refresh()
        self.post_message(self.Changed())

    def _refilter(self) -> None:
        self._visible = deque((line for line in self._lines if line.kind in self._kinds), maxlen=CAPACITY)
        self._cursor = len(self._visible) - 1
        self._width = 0
        self.following = True
        self._measure(self._visible)
        self.post_message(self.Changed())

    def _measure(self, lines: Iterable[LogLine]) -> None:
        self._width = max(self._width, max((len(line.shown) for line in lines), default=0))
        self.virtual_size = Size(self._width, len(self._visible))
        self._show_end() if self.following else self.refresh()

    def _show_end(self) -> None:
        self.scroll_end(animate=False, force=True, x_axis=False)
        self.refresh()
