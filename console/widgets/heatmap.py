"""The heat map of `align.states`: slots by states, error by shade, best match boxed, expected match marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from console.glyphs import glyphs


class HeatMap(Widget):
    """Darker is closer. `[▓]` is the best match; `◆` is the state the engine feeds this slot."""

    DEFAULT_CSS = "HeatMap { height: auto; }"

    evidence: reactive[dict[str, Any] | None] = reactive(None, layout=True)

    def render(self) -> Content:
        """One row a slot; wide targets are folded to the columns near each best match."""
        if not self.evidence:
            return Content("")
        return heat(self.evidence, max(self.size.width, 20))


def heat(evidence: dict[str, Any], width: int) -> Content:
    """Draw the `matrix` of relative L2 errors, slots × states, within `width` cells."""
    matrix: Sequence[Sequence[float]] = evidence.get("matrix") or []
    states: Sequence[int] = evidence.get("states") or range(len(matrix[0]) if matrix else 0)
    best: Sequence[int | None] = evidence.get("best") or [None] * len(matrix)
    expected: Sequence[int | None] = evidence.get("expected") or [None] * len(matrix)
    columns = _columns(list(states), [*best, *expected], max((width - 9) // 4, 3))
    rows = [_header(states, columns)]
    for slot, errors in enumerate(matrix):
        row = Content.styled(f"slot {slot:<3} ", "$foreground-muted")
        for column in columns:
            row = row + _cell(errors[column], states[column], best[slot], _at(expected, slot))
        rows.append(row)
    g = glyphs()
    rows.append(
        Content.styled(f"[{g.full}] best match   {g.mark} what the engine feeds   darker = closer", "$foreground-muted")
    )
    return Content("\n").join(rows)


def _columns(states: list[int], wanted: Sequence[int | None], room: int) -> list[int]:
    """The indices to draw: all when they fit, else those around every state that matters."""
    if len(states) <= room:
        return list(range(len(states)))
    centres = [states.index(k) for k in wanted if k in states]
    ranked = sorted(range(len(states)), key=lambda i: min((abs(i - c) for c in centres), default=i))
    return sorted(ranked[:room])


def _header(states: Sequence[int], columns: Sequence[int]) -> Content:
    row, last = Content.styled("state    ", "$foreground-muted"), None
    for column in columns:
        gap = last is not None and column != last + 1
        row = row + Content.styled(f"{'|' if gap else ' '}{states[column]:>2} ", "$foreground-muted")
        last = column
    return row


def _cell(error: float | None, state: int, best: int | None, expected: int | None) -> Content:
    g = glyphs()
    if error is None or not math.isfinite(error):
        return Content.styled("  ? ", "$foreground-muted")
    level = min(len(g.shades) - 1, max(0, round((1.0 - min(error, 1.0)) * (len(g.shades) - 1))))
    shade = g.shades[level] if state != best else g.full
    if state == best:
        return Content.styled(
            f"[{shade}{g.mark if state == expected else ']'}" + ("]" if state == expected else " "),
            "bold $success" if expected in (None, best) else "bold $warning",
        )
    if state == expected:
        return Content.styled(f" {shade}{g.mark} ", "bold $error")
    return Content.styled(f" {shade}{shade} ", "$primary")


def _at(values: Sequence[int | None], index: int) -> int | None:
    return values[index] if index < len(values) else None
