"""Whether a server of several ranks feeds its draft the same states however a text is computed.

Fused all-reduce, which engines use for up to FUSED tokens at once, leaves the sum over the ranks to the layer after:
where a model's source takes the state before that, each rank captures its own part of it. Longer batches are summed at
once. So one text by itself and the same text at the head of a longer one tell, and so do the ranks among themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checks.capture_folder import Again, Capture, CaptureSample, Ids
from checks.distance import common_prefix, median, relative

FUSED = 2048
"""Tokens of a batch up to which the all-reduce is fused, in every SGLang that fuses it."""
LONG = FUSED + 256
APART = 0.05
"""Rounding in another order stays below this, in bf16 too; the part of one of two ranks lies far above."""
ROWS = 256

NO_FUSION = "enforce-disable-flashinfer-allreduce-fusion"


@dataclass(frozen=True)
class Difference:
    """How far a text's states are apart when it is taken another way: the median relative distance of each slot."""

    how: str
    slots: tuple[float, ...]
    rows: int

    @property
    def apart(self) -> bool:
        """Whether it is more than rounding; a distance that cannot be told (nothing finite) counts."""
        return self.rows > 0 and not all(distance <= APART for distance in self.slots)


def ranks_of(info: Mapping[str, Any]) -> int:
    """Tensor-parallel ranks, by what a server says of itself; 1 where it does not."""
    size = info.get("tp_size")
    return size if isinstance(size, int) and size > 1 else 1


def longest_prompt(info: Mapping[str, Any]) -> int:
    """Tokens a server computes at once: a longer prompt is cut in chunks, or refused. A large number when not known."""
    room = (info.get("context_length"), info.get("max_total_num_tokens"))
    limits = [value - 1 for value in room if isinstance(value, int) and value > 1]
    chunk = info.get("chunked_prefill_size")
    if isinstance(chunk, int) and chunk > 0:
        limits.append(chunk)
    return min(limits, default=1 << 20)


def compares_long(info: Mapping[str, Any]) -> bool:
    """Whether a longer text tells something: there are ranks to sum over, and the server computes so many at once."""
    return ranks_of(info) > 1 and longest_prompt(info) >= LONG


def at_once(tokens: int) -> str:
    """How a long text was taken, in words."""
    return f"{tokens} tokens at once"


def long_text(texts: Sequence[Ids], length: int = LONG) -> Ids:
    """The first text and behind it the others, over again as often as it takes: int64 [length]."""
    return np.resize(np.concatenate(list(texts)), length)


def differences(capture: Capture) -> tuple[Difference, ...]:
    """Each text that was taken again against itself. Raises BadTensors."""
    return tuple(_between(capture.samples[item.of], item, capture.slots) for item in capture.again)


def _between(first: CaptureSample, again: Again, slots: int) -> Difference:
    shared = common_prefix(first.token_ids, again.sample.token_ids)
    both = np.intersect1d(first.positions, again.sample.positions)
    both = both[both < shared][-ROWS:]
    if not len(both) or again.sample.states.shape[1:] != first.states.shape[1:]:
        return Difference(again.how, (), 0)
    distances = []
    for slot in range(slots):
        rows = []
        for sample in (first, again.sample):
            at = np.searchsorted(sample.positions, both)
            rows.append(sample.slot(slot, int(at[0]), int(at[-1]) + 1)[at - at[0]])
        distances.append(median(relative(rows[0], rows[1])))
    return Difference(again.how, tuple(distances), len(both))
