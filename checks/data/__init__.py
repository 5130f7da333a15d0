"""Checks of cached hidden states as data: their files, their numbers, their masks and their tokens."""

from __future__ import annotations

from checks.data import duplicates, files, layout, masks, numbers, pairing, tokens

__all__ = ["duplicates", "files", "layout", "masks", "numbers", "pairing", "tokens"]
