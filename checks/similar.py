"""Which known word a wrong one may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def similar(word: str, known: Iterable[str], least: float) -> str:
    """The one of `known` most like `word`, "" where none is by `least` (0 nothing in common, 1 the same)."""
    # Here, because there is seldom a wrong word, and every run would import it.
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), 1, least)), "")
