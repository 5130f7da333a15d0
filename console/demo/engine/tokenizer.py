"""Text to ids and back for byte-level vocabularies: ids 0 … 255 are bytes, the few above are special."""

from __future__ import annotations

from collections.abc import Sequence


def encode(text: str) -> list[int]:
    """The UTF-8 bytes of `text` as token ids; no special token is added."""
    return list(text.encode("utf-8"))


def to_bytes(tokens: Sequence[int]) -> bytes:
    """The bytes `tokens` stand for; special ids are left out."""
    return bytes(token for token in tokens if 0 <= token < 256)


def decode(tokens: Sequence[int]) -> str:
    """Text of `tokens`; bytes that are not UTF-8 become replacement characters."""
    return to_bytes(tokens).decode("utf-8", errors="replace")
