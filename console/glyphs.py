"""The glyphs drawn on screen, in Unicode and in ASCII for locales that cannot show it."""

from __future__ import annotations

import locale
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Every non-ASCII character a widget draws, one name each."""

    trained: str = "▼"
    served: str = "▲"
    line: str = "─"
    cross: str = "┼"
    tick: str = "┴"
    right: str = "▶"
    left: str = "◀"
    span: str = "╌"
    dot: str = "·"
    up: str = "●"
    down: str = "◌"
    ok: str = "✓"
    bad: str = "✗"
    warn: str = "▲"
    unknown: str = "?"
    info: str = "i"
    running: str = "◐"
    bars: str = "▁▂▃▄▅▆▇█"
    full: str = "█"
    empty: str = "░"
    shades: str = " ░▒▓█"
    ellipsis: str = "…"
    arrow: str = "→"
    mark: str = "◆"


UNICODE = Glyphs()
ASCII = Glyphs(
    trained="v", served="^", line="-", cross="+", tick="+", right=">", left="<", span="~", dot="-", up="*", down="o",
    ok="+", bad="x", warn="!", running="*", bars="_.-:=+*#", full="#", empty=".", shades=" .:+#", ellipsis="~",
    arrow="->", mark="#",
)  # fmt: skip


def glyphs() -> Glyphs:
    """The set this terminal's locale can show."""
    encoding = (locale.getpreferredencoding(False) or "").lower().replace("-", "")
    return UNICODE if encoding in {"utf8", "utf_8"} else ASCII
