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
    """Denser is closer. `[▓]` is the best match; `◆` is the state the engine feeds this slot."""

    DEFAULT_CSS = "HeatMap { height: auto; }"

    evidence: reactive[dict[str, Any] | None] = reactive(None, layout=True)

    def render(self) -> Content:
        """One row a slot; wide targets are folded to the columns near each best match."""
        if not self.evidence:
            return Content("")
        return heat(self.evidence, max(self.size.width, 20))


def heat(evidence: dict[str, Any], width: int) -> Content:
    """Draw the `matrix` of relative L2 errors, slots × states, within `width` cells.

    States are numbers or names as findings have them: 7 and "R_7" are the same one, drawn as 7.
    """
    matrix: Sequence[Sequence[float | None]] = evidence.get("matrix") or []
    states = [_short(state) for state in evidence.get("states") or range(len(matrix[0]) if matrix else 0)]
    best = [_short(state) for state in evidence.get("best") or [None] * len(matrix)]
    expected = [_short(state) for state in evidence.get("expected") or [None] * len(matrix)]
    cell = max(2, *map(len, states), 0) + 2
    columns = _columns(states, [*best, *expected], max((width - _LABEL) // cell, 3))
    rows = [_header(states, columns, cell)]
    for slot, errors in enumerate(matrix):
        row = Content.styled(f"slot {slot:<3} ", "$foreground-muted")
        for column in columns:
            text, style = _cell(errors[column], states[column], _at(best, slot), _at(expected, slot))
            row = row + Content.styled(text.rjust(cell), style)
        rows.append(row)
    g = glyphs()
    rows.append(Content.styled(f"[{g.full}] best  {g.mark} fed  denser is closer", "$foreground-muted"))
    return Content("\n").join(rows)


_LABEL = 9
"""Cells of the words in front of a row."""


def _short(state: object) -> str:
    return "" if state is None else str(state).removeprefix("R_")


def _columns(states: list[str], wanted: Sequence[str], room: int) -> list[int]:
    """The indices to draw: all when they fit, else those around every state that matters."""
    if len(states) <= room:
        return list(range(len(states)))
    centres = [states.index(k) for k in wanted if k in states]
    ranked = sorted(range(len(states)), key=lambda i: min((abs(i - c) for c in centres), default=i))
    return sorted(ranked[:room])


def _header(states: Sequence[str], columns: Sequence[int], cell: int) -> Content:
    row, last = Content.styled("state    ", "$foreground-muted"), None
    for column in columns:
        gap = last is not None and column != last + 1
        label = f"{states[column]} ".rjust(cell - 1)
        row = row + Content.styled(f"{'|' if gap else ' '}{label}", "$foreground-muted")
        last = column
    return row


def _cell(error: float | None, state: str, best: str, expected: str) -> tuple[str, str]:
    """The four cells of an error and their style."""
    g = glyphs()
    if error is None or not math.isfinite(error):
        return "  ? ", "$foreground-muted"
    level = min(len(g.shades) - 1, max(0, round((1.0 - min(error, 1.0)) * (len(g.shades) - 1))))
    if state == best:
        box = f"[{g.full}{g.mark}]" if state == expected else f"[{g.full}] "
        return box, "bold $success" if expected in ("", best) else "bold $warning"
    if state == expected:
        return f" {g.shades[level]}{g.mark} ", "bold $error"
    return f" {g.shades[level] * 2} ", "$primary"


def _at(values: Sequence[str], index: int) -> str:
    return values[index] if index < len(values) else ""
