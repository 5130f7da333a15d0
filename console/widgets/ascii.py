"""What a terminal without UTF-8 is sent: every cell as ASCII, borders and text alike, no cell more or less."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

# ASCII -> the cells that Textual and our own texts draw; anything else becomes a question mark a cell.
_DRAWN = {
    "+": "╭╮╰╯┌┐└┘├┤┬┴┼✓",
    "-": "─━–—·",
    "|": "│┃▌▐▎▏▍",
    "~": "…╌",
    "#": "█▇▉▊▋◆▓▒",
    "_": "▁▂▔",
    "=": "▃▄▅▆",
    ".": "░",
    "*": "●◐•",
    "o": "○◌°",
    "^": "▲↑",
    "v": "▼↓",
    ">": "▶→≥",
    "<": "◀←≤",
    "x": "✗×",
    " ": "\u00a0",
}
_CELLS = {ord(char): ascii for ascii, chars in _DRAWN.items() for char in chars}


class AsciiFilter(LineFilter):
    """Rewrites each line drawn, after layout: widths stay as they are."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same cells in ASCII."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]


def to_ascii(text: str) -> str:
    """`text` in as many cells of ASCII."""
    if text.isascii():
        return text
    return "".join(char if char.isascii() else "?" * cell_len(char) for char in text.translate(_CELLS))
