"""Untrusted text made safe to print: no terminal escape, control or direction mark from a host reaches a terminal."""

from __future__ import annotations

import unicodedata

# Marks that turn the reading direction around: invisible, and able to make a line read as another one.
_DIRECTIONS = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def plain(text: str, keep: str = "\n\t") -> str:
    """`text` with control, direction and surrogate characters written out as `\\x1b`; those in `keep` stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in keep or _harmless(char) else _written_out(char) for char in text)


def one_line(text: str) -> str:
    """`text` for a place that holds one line: line breaks are written out too."""
    return plain(text, keep="")


def _harmless(char: str) -> bool:
    return char not in _DIRECTIONS and unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp")


def _written_out(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
