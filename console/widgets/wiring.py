"""The wiring strip: the target as a line of its states, trained marks above, served marks below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from console.glyphs import Glyphs, glyphs
from console.plain import one_line
from console.wiring import BAD, OK, UNKNOWN, Slot, Wiring

_STYLES = {OK: "bold $success", BAD: "bold $error", UNKNOWN: "bold $accent"}
_ASK = "run the checks: 3, then c"
_GUTTER = 9  # width of the words "trained " and "served  " to the left of the axis


@dataclass(frozen=True, slots=True)
class _Cell:
    glyph: str
    style: str


class _Row:
    """One line of cells that later marks may overwrite."""

    def __init__(self, width: int, label: str) -> None:
        self._cells = [_Cell(" ", "")] * width
        self.put(0, label, "$foreground-muted")

    def put(self, column: int, text: str, style: str) -> None:
        for offset, glyph in enumerate(text):
            if 0 <= column + offset < len(self._cells):
                self._cells[column + offset] = _Cell(glyph, style)

    def content(self) -> Content:
        return Content.assemble(*((cell.glyph, cell.style) if cell.style else cell.glyph for cell in self._cells))


class WiringStrip(Widget):
    """Shows which states the draft was trained on and which ones this engine feeds it.

    A mismatched slot is drawn in the error colour, with an arrow from the state that is fed to the one it was trained
    on. What is not known is said, never guessed.
    """

    DEFAULT_CSS = "WiringStrip { height: auto; min-height: 4; }"

    wiring: reactive[Wiring | None] = reactive(None, layout=True)
    note: reactive[str] = reactive("", layout=True)
    """What is under way that may tell what is not known yet."""

    def render(self) -> Content:
        """The strip at the widget's present width."""
        return strip(self.wiring, max(self.size.width, 30), glyphs(), self.note)


def strip(wiring: Wiring | None, width: int, g: Glyphs, note: str = "") -> Content:
    """Draw the wiring `width` cells wide: three rows of marks and one or more rows of words.

    What is not known yet is said with `note`, what is under way, or else with how to learn it.
    """
    how = note or _ASK
    if wiring is None or wiring.n is None:
        return Content.styled(f"not known yet: {how}", "$foreground-muted")
    n = wiring.n
    axis = range(_GUTTER, width - len(str(n)) - 2)
    above, line, below = _Row(width, "trained"), _Row(width, ""), _Row(width, "served")
    line.put(axis.start - 2, "0", "$foreground-muted")
    line.put(axis.start, g.line * len(axis), "$foreground-muted")
    line.put(axis.stop + 1, str(n), "$foreground-muted")
    free_above = free_below = 0
    for slot in wiring.slots:
        style = _STYLES[slot.state]
        if slot.trained is not None:
            free_above = _mark(above, axis, slot.trained, n, f"{g.trained}{slot.trained}", style, free_above)
            line.put(_column(axis, slot.trained, n), g.cross, style)
        if slot.served is not None:
            before = free_below
            free_below = _mark(below, axis, slot.served, n, f"{g.served}{slot.served}", style, free_below)
            line.put(_column(axis, slot.served, n), g.cross, style)
            if slot.state == BAD and slot.trained is not None:
                forward = slot.served < slot.trained
                free_below = _arrow(below, axis, slot.trained, n, before, free_below, forward, g)
    return Content("\n").join([above.content(), line.content(), below.content(), *_words(wiring, width, g, how)])


def _column(axis: range, k: int, n: int) -> int:
    return axis.start + round(k / max(n, 1) * (len(axis) - 1))


def _mark(row: _Row, axis: range, k: int, n: int, text: str, style: str, taken: int) -> int:
    column = max(_column(axis, k, n), taken)
    row.put(column, text, style)
    return column + len(text) + 1


def _arrow(row: _Row, axis: range, to: int, n: int, before: int, after: int, forward: bool, g: Glyphs) -> int:
    """Join a shifted mark with the state it should be; the arrow never covers another mark."""
    target = _column(axis, to, n)
    if forward:
        head = max(target, after)
        row.put(after - 1, g.span * (head - after + 1) + g.right, "$error")
        return head + 2
    tail = min(after - 4, target)
    if tail >= before:
        row.put(tail, g.left, "$error")
    else:
        row.put(after - 1, g.left, "$error")
        return after + 1
    return after


def _words(wiring: Wiring, width: int, g: Glyphs, how: str) -> list[Content]:
    if not wiring.since:
        return _state_words(wiring, width, g, how)
    after = f"after a restart: fed {_list(wiring.after)}" if wiring.after else "a restart changes it"
    started = f"config.json was written after the start ({one_line(wiring.since)[:40]})"
    if wiring.served is not None:
        return [
            *_state_words(wiring, width, g, how),
            *_flow([(started, "$warning"), (after, "$warning")], width, f" {g.dot} "),
        ]
    trained = f"trained on {_list(wiring.trained)}" if wiring.trained else f"trained on: not measured yet ({how})"
    parts = [f"{trained}; what is fed now is not known", started, after]
    return _flow([(part, "$warning") for part in parts], width, f" {g.dot} ")


def _state_words(wiring: Wiring, width: int, g: Glyphs, how: str) -> list[Content]:
    if wiring.trained is None and wiring.served is None:
        return [Content.styled(f"neither side is known yet: {how}", "$foreground-muted")]
    if wiring.trained is None:
        return [Content.styled(f"fed {_list(wiring.served)}; trained on: not measured yet ({how})", "$warning")]
    if wiring.served is None:
        return [Content.styled(f"trained on {_list(wiring.trained)}; what is fed is not known ({how})", "$warning")]
    if wiring.state == OK:
        return [Content.styled(f"{g.ok} every slot is fed the state it was trained on", "bold $success")]
    return _flow([_slot_words(slot, g) for slot in wiring.slots], width, f" {g.dot} ")


def _slot_words(slot: Slot, g: Glyphs) -> tuple[str, str]:
    if slot.served is None:
        return f"slot {slot.index}: trained on {slot.trained}, not fed", "$error"
    if slot.trained is None:
        return f"slot {slot.index}: fed {slot.served}, not trained", "$error"
    if slot.state == OK:
        return f"slot {slot.index}: {slot.served} {g.ok}", "$success"
    return f"slot {slot.index}: fed {slot.served}, trained on {slot.trained}, {slot.words}", "bold $error"


def _flow(parts: Sequence[tuple[str, str]], width: int, joint: str) -> list[Content]:
    rows: list[Content] = []
    row = Content("")
    for text, style in parts:
        piece = Content.styled(text, style)
        if row.cell_length and row.cell_length + len(joint) + piece.cell_length > width:
            rows.append(row)
            row = Content("")
        row = row + Content.styled(joint, "$foreground-muted") + piece if row.cell_length else piece
    return [*rows, row]


def _list(states: Sequence[int] | None) -> str:
    return ", ".join(str(k) for k in states or ())
