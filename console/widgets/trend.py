"""A headline value with its history: one number to read from across the room, and how it got there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from console.glyphs import glyphs


@dataclass(frozen=True, slots=True)
class TrendValue:
    """What a trend shows: the number, what it is out of, its history (oldest first), and the lines below."""

    headline: str
    suffix: str = ""
    history: tuple[float, ...] = ()
    low: float = 0.0
    high: float | None = None
    below: str = ""
    last: str = ""
    style: str = "$foreground"
    age: str = ""


class Trend(Widget):
    """A headline and a sparkline. Stale values are grey and carry their age."""

    DEFAULT_CSS = "Trend { height: 3; }"

    value: reactive[TrendValue] = reactive(TrendValue("–"))

    def render(self) -> Content:
        """Headline and sparkline on one row, the detail below."""
        value, width = self.value, max(self.size.width, 10)
        style = "$foreground-muted" if value.age else f"bold {value.style}"
        head = Content.styled(value.headline, style) + Content.styled(f"{value.suffix} ", "$foreground-muted")
        if value.age:
            head = head + Content.styled(f"{value.age} ", "$warning")
        room = width - head.cell_length
        graph = sparkline(value.history, room, value.low, value.high) if room > 3 else ""
        rows = [head + Content.styled(graph, "$foreground-muted" if value.age else value.style)]
        rows += [Content.styled(fit(text, width), "$foreground-muted") for text in (value.below, value.last) if text]
        return Content("\n").join(rows)


def sparkline(values: Sequence[float], width: int, low: float = 0.0, high: float | None = None) -> str:
    """The last `width` values as bars between `low` and `high` (default: the largest of them)."""
    bars = glyphs().bars
    shown = list(values)[-width:]
    top = high if high is not None else max(shown, default=0.0)
    span = (top - low) or 1.0
    return "".join(bars[min(len(bars) - 1, max(0, int((value - low) / span * len(bars))))] for value in shown)


def fit(text: str, width: int) -> str:
    """Cut to `width` cells, but not within a word that has a digit: what is left would read as another number."""
    if len(text) <= width:
        return text
    end = max(0, width - 1)
    begin = text.rfind(" ", 0, end) + 1
    word = text[begin:].partition(" ")[0]
    if begin + len(word) > end and begin and any(letter.isdigit() for letter in word):
        end = begin
    return text[:end].rstrip() + glyphs().ellipsis
