"""Where an assistant's turn begins: the headers of chat templates, found in the tokens around a mask's first token."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from checks.data.seen import Turn
from checks.regular import open_regular

# What stands right before the first token an assistant says, by chat template; white space at the end left out.
HEADERS = (
    "<|im_start|>assistant", "<|start_header_id|>assistant<|end_header_id|>", "<｜Assistant｜>",
    "<|im_assistant|>assistant<|im_middle|>", "<start_of_turn>model", "<|assistant|>", "[/INST]", "ASSISTANT:",
    "<|start|>assistant<|channel|>final<|message|>", "<|start|>assistant<|channel|>analysis<|message|>", "]~b]ai",
    "<|turn>model", "<|start_of_role|>assistant<|end_of_role|>", "<|role_start|>assistant<|role_end|>",
)  # fmt: skip

# What a trainer may leave out of a turn's beginning on purpose.
THINKING = ("", "<think>", "<think></think>", "</think>")

REACH = 3
"""How many tokens a mask may be off and still be told as shifted: shifts are by one, or by two."""

MAX_TOKENIZER = 64_000_000


def read_tokens(folder: Path) -> dict[int, bytes] | None:
    """The UTF-8 of every token id, from a tokenizer.json; None when there is none that can be read so."""
    try:
        with open_regular(folder / "tokenizer.json") as file:
            data = file.read(MAX_TOKENIZER + 1)
        if len(data) > MAX_TOKENIZER:
            return None
        raw = json.loads(data)
        vocab, added = raw["model"]["vocab"], raw.get("added_tokens") or []
        byte_level = "ByteLevel" in json.dumps([raw.get("decoder"), raw.get("pre_tokenizer")])
        pairs = vocab.items() if isinstance(vocab, dict) else ((item[0], number) for number, item in enumerate(vocab))
        texts = {int(number): _plain(str(piece), byte_level) for piece, number in pairs}
        texts.update({int(item["id"]): str(item["content"]).encode() for item in added})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return None  # without it the shift is told from the tokens alone, or not at all
    return texts


def offsets(turns: Sequence[Turn], texts: dict[int, bytes]) -> list[tuple[Turn, int]]:
    """The turns with a known header near their first masked-in token, and how many tokens late their masks begin.

    0 is right, a negative number early.
    """
    return [(turn, offset) for turn in turns if (offset := _offset(turn, texts)) is not None]


def _offset(turn: Turn, texts: dict[int, bytes]) -> int | None:
    for distance in sorted(range(-REACH, REACH + 1), key=abs):
        end = turn.begin - distance
        if not 0 < end <= len(turn.ids):
            continue
        if not _text(turn, texts, 0, end).rstrip().endswith(HEADERS):
            continue
        # White space after a header belongs to it: the turn begins behind it, wherever the tokens are cut.
        while end < len(turn.ids) and _text(turn, texts, end, end + 1).strip() == "":
            end += 1
        if end < turn.begin and _text(turn, texts, end, turn.begin).replace("\n", "").strip() in THINKING:
            return 0
        if end > turn.begin and _text(turn, texts, turn.begin, end).strip() == "":
            return 0
        return turn.begin - end
    return None


def late_by_constancy(turns: Sequence[Turn]) -> int | None:
    """Without a tokenizer: 1 or 2 when the tokens right before the mask vary and those before them never do.

    A header is the same in every turn, and what an assistant says first is not. None when too few turns tell.
    """
    if len(turns) < 8:
        return None
    if _constancy(turns, -1) >= 0.9:
        return 0
    for late in (1, 2):
        if all(_constancy(turns, -at) <= 0.6 for at in range(1, late + 1)) and _constancy(turns, -late - 1) >= 0.95:
            return late
    return None


def _constancy(turns: Sequence[Turn], at: int) -> float:
    """The share of the most frequent token at a distance from the first masked-in one."""
    tokens = [int(turn.ids[turn.begin + at]) for turn in turns if 0 <= turn.begin + at < len(turn.ids)]
    return Counter(tokens).most_common(1)[0][1] / len(tokens) if tokens else 0.0


def _text(turn: Turn, texts: dict[int, bytes], start: int, stop: int) -> str:
    return b"".join(texts.get(int(token), b"?") for token in turn.ids[start:stop]).decode("utf-8", "replace")


def _plain(piece: str, byte_level: bool) -> bytes:
    if not byte_level:
        return piece.replace("▁", " ").encode("utf-8", "replace")
    table = _bytes()
    return b"".join(bytes([table[char]]) if char in table else char.encode("utf-8", "replace") for char in piece)


@lru_cache(maxsize=1)
def _bytes() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others from U+0100 on, in order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    out = {chr(value): value for value in plain}
    others = [value for value in range(256) if value not in set(plain)]
    out.update({chr(0x100 + number): value for number, value in enumerate(others)})
    return out
