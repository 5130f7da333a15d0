"""Comparing rows of hidden states: distance and cosine per token, and which rows of two files are the same text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from checks.errors import BadTensors, NeedsLibrary
from checks.tiles import TILE, row_products

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

MIN_COMMON = 16
"""Tokens two samples must share from their beginning to be taken for the same text."""


class Rows(Protocol):
    """Anything that gives rows [start, stop) of one slot, float32 [rows, H]."""

    def __call__(self, slot: int, start: int, stop: int) -> Any: ...


def relative(cached: Floats, state: Floats) -> npt.NDArray[np.float64]:
    """|cached - state| / |cached| of each row, [P]. NaN where a row is not finite or the cached one is zero.

    The norm of the cached row divides for every state alike, so the least value is the nearest state.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        gap = cached - state
        out = np.sqrt(row_products(gap, gap).astype(np.float64) / row_products(cached, cached))
    out[~np.isfinite(out)] = np.nan
    return out


def cosine(cached: Floats, state: Floats) -> npt.NDArray[np.float64]:
    """The cosine of each pair of rows, [P]; NaN where it has none."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        product = row_products(cached, cached).astype(np.float64) * row_products(state, state)
        out: npt.NDArray[np.float64] = row_products(cached, state) / np.sqrt(product)
    out[~np.isfinite(out)] = np.nan
    return out


def lean(cached: Floats, state: Floats, rival: Floats) -> npt.NDArray[np.float64]:
    """How far along the way from `state` to `rival` each cached row lies, [P]: 0 at the state, 1 at the rival.

    Noise has no direction among as many as H, so it moves the distance to a state and leaves this alone. NaN where the
    two are one, or a row is not finite.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        way = rival - state
        out: npt.NDArray[np.float64] = row_products(cached - state, way).astype(np.float64) / row_products(way, way)
    out[~np.isfinite(out)] = np.nan
    return out


def middle(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The median of what is finite along the last axis; infinite where nothing is."""
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.inf)
    finite = np.isfinite(values)
    ordered = np.sort(np.where(finite, values, np.inf), axis=-1)
    count = np.count_nonzero(finite, axis=-1)[..., None]
    low, high = (np.take_along_axis(ordered, at, axis=-1) for at in (np.maximum(count - 1, 0) // 2, count // 2))
    out: npt.NDArray[np.float64] = ((low + high) / 2)[..., 0]
    return out


def medians(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """`middle`, and NaN where less than half is finite, for then it speaks for too little."""
    few = 2 * np.count_nonzero(np.isfinite(values), axis=-1) < max(values.shape[-1], 1)
    return np.where(few, np.nan, middle(values))


def median(values: npt.NDArray[np.float64]) -> float:
    """`medians` of a list of numbers."""
    return float(medians(values))


def quantiles(values: npt.NDArray[np.float64], *shares: float) -> npt.NDArray[np.float64]:
    """What np.quantile gives for finite numbers; its first call imports numpy.ma, which takes longer than a check."""
    found: npt.NDArray[np.float64] = np.interp(
        np.array(shares) * (len(values) - 1), np.arange(len(values)), np.sort(values)
    )
    return found


def common_prefix(a: Ints, b: Ints) -> int:
    """How many leading tokens two texts share."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


@dataclass(frozen=True)
class SameText:
    """A cached and a captured sample of one text, and the rows both hold.

    `captured` [P] are indices into the capture's rows, `positions` [P] the places in the text: they are indices into
    the cache's rows. Ascending. The cached sample is opened by `open`, so that a list of texts holds no states.
    """

    cache: Sequence[Any]
    index: int
    capture: Any
    captured: Ints
    positions: Ints

    def open(self) -> Any:
        """The cached sample."""
        return self.cache[self.index]

    def only(self, chosen: Ints) -> SameText:
        """The rows at these indices of `positions`."""
        return replace(self, captured=self.captured[chosen], positions=self.positions[chosen])

    def limited(self, rows: int) -> SameText:
        """At most `rows` of the rows: a block from the middle, so that only that is read."""
        first = max(len(self.positions) - rows, 0) // 2
        return self.only(np.arange(first, min(first + rows, len(self.positions)), dtype=np.int64))

    def tiles(self, width: int) -> Iterator[SameText]:
        """The rows in pieces whose states, `width` wide, stay in the processor's cache."""
        count = max(4 * TILE // max(width, 1), 1)
        for start in range(0, len(self.positions), count):
            yield self.only(np.arange(start, min(start + count, len(self.positions)), dtype=np.int64))

    def cached_rows(self, sample: Any, slot: int, shift: int = 0) -> Floats:
        """Rows of a slot of the opened cached sample at `positions` + shift, clipped to it, [P, H]."""
        return pick(sample.slot, slot, np.clip(self.positions + shift, 0, sample.length - 1))

    def captured_rows(self, slot: int) -> Floats:
        """Rows of a captured slot, [P, H]."""
        return pick(self.capture.slot, slot, self.captured)

    def captured_states(self) -> Floats:
        """Rows of all captured slots, [P, m, H], as they lie in the file: a read for each stretch of them."""
        return pick(lambda _, start, stop: self.capture.block(start, stop), 0, self.captured, len(self.captured) + 1)


def pick(rows: Rows, slot: int, at: Ints, reach: int = 256) -> Floats:
    """The rows at ascending indices `at` of one slot, read in pieces of at most `reach` rows."""
    if len(at) and at[-1] - at[0] == len(at) - 1 < reach:
        whole: Floats = rows(slot, int(at[0]), int(at[-1]) + 1)
        return whole
    pieces = []
    for start, stop in _runs(at, reach):
        base = int(at[start])
        block = rows(slot, base, int(at[stop - 1]) + 1)
        pieces.append(block[at[start:stop] - base])
    return np.concatenate(pieces) if pieces else np.zeros((0, 0), dtype=np.float32)


def readable(samples: Sequence[Any], heads: Set[bytes] | None = None) -> tuple[dict[int, Ints], dict[str, str]]:
    """Token ids by index of the samples that can be opened, and why the others cannot, by index in words.

    With `heads`, only the ids of those that begin like one of them: the ids of all of a cache may take gigabytes.
    """
    ids: dict[int, Ints] = {}
    damaged: dict[str, str] = {}
    for index in range(len(samples)):
        try:
            tokens = samples[index].token_ids
            if heads is None or _head(tokens) in heads:
                ids[index] = tokens
        except (BadTensors, NeedsLibrary) as error:
            damaged[str(index)] = str(error)
    return ids, damaged


def same_texts(cached: Sequence[Any], captures: Sequence[Any]) -> Iterator[SameText]:
    """Pairs of samples of one text, by their token ids alone: names and order of files say nothing.

    States of a prefix do not depend on what follows, so a captured prefix of a cached text counts. Cached samples that
    cannot be read are left out.
    """
    ids = readable(cached, {_head(capture.token_ids) for capture in captures})[0]
    for capture in captures:
        shared = {index: common_prefix(tokens, capture.token_ids) for index, tokens in ids.items()}
        best = max(shared, key=lambda index: shared[index], default=None)
        if best is None or shared[best] < MIN_COMMON:
            continue
        rows = np.flatnonzero(capture.positions < shared[best])
        if len(rows):
            del ids[best]
            yield SameText(cached, best, capture, rows.astype(np.int64), capture.positions[rows].astype(np.int64))


def _head(tokens: Ints) -> bytes:
    """What two texts have in common at least, when they are the same."""
    return np.asarray(tokens[:MIN_COMMON], dtype=np.int64).tobytes()


def _runs(at: Ints, reach: int) -> Iterator[tuple[int, int]]:
    start = 0
    for index in range(1, len(at) + 1):
        if index == len(at) or at[index] - at[start] >= reach:
            yield start, index
            start = index
