"""Which of several states a slot is nearest to, and how surely: distances, and how far it leans to a rival."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from checks.distance import SameText, lean, median, medians, middle, quantiles, relative
from checks.tiles import row_products

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

LEAN_ROWS = 64
"""Tokens a text over which the way from the nearest state to its rivals is measured."""

NAMED, SPLIT, ENOUGH = 0.40, 0.15, 256
"""How far along the way to a rival a slot may lie, halfway being no man's land; and from where on, over so many rows,
it is no state but a part of one. Noise has no direction: over 500 rows it leans 0.03 under 4-bit weights and 0.07 for
weights a fifth off, over 16 rows up to 0.18."""

SURE = 3.0
"""Standard errors by which a lean has to be clear of its limit."""

NO_FIT = 0.5
"""Farther than this from every state, a slot is none of them: unrelated vectors are about 1 apart or more."""

ROUNDING = 0.02
"""Up to here the difference is rounding and kernels: a cast to bfloat16 is 0.002, a whole run in it 0.01."""

SCALED = 3.0
"""A slot that is this much farther in length than in direction is a multiple of its state."""

CLOSE = 0.05
"""Nearer than this, |a|^2 + |b|^2 - 2ab has lost its digits in float32, and the difference itself is taken."""

STRAY, OFF = 0.02, 10.0
"""The share of rows that may lie off the state of the others: this many times farther than they do, and fitting none.
"""

SERVED_SAME, SERVED_OTHER = 0.03, 0.18
"""With only the served slots to compare with, a neighbour of the true state has no rival: then distance itself decides.
A run in bfloat16 is up to 0.01 away, one under 4-bit weights up to 0.17."""


@dataclass(frozen=True)
class Columns:
    """The states slots are compared with. `served`: they are the few an engine feeds. `edge`: see `judge`."""

    labels: tuple[str, ...]
    ks: tuple[int | None, ...]
    norm: Any | None = None
    edge: int | None = None
    served: bool = False

    def rows(self, text: SameText, column: int) -> Any:
        """The captured rows of a column, [P, H]; the last one is made by the norm, where there is one."""
        made = self.norm is not None and column == len(self.labels) - 1
        state = text.captured_rows(column - 1 if made else column)
        return self.norm(state) if made and self.norm is not None else state

    def blocks(self, text: SameText) -> Iterator[tuple[slice, Any]]:
        """The captured rows of all columns, [P, states, H], each block with the columns it is: one read of the file."""
        states = text.captured_states()
        captured = states.shape[1]
        yield slice(0, captured), states
        if self.norm is not None:
            yield slice(captured, captured + 1), self.norm(states[:, -1])[:, None]


def compare(
    texts: Sequence[SameText], m: int, width: int, columns: Columns, evidence: Any = None
) -> tuple[Doubles, Doubles, int]:
    """Median relative distance and cosine per sample, slot and state, each [samples, m, states], and the rows used.

    `width` is H, by which the rows are read in tiles: memory does not grow with it, nor with the length of texts.
    """
    shape = (len(texts), m, len(columns.labels))
    apart, alike, rows = np.full(shape, np.nan), np.full(shape, np.nan), 0
    for index, text in enumerate(texts):
        sample, pieces = text.open(), []
        for part in text.tiles(width):
            cached = np.stack([part.cached_rows(sample, slot) for slot in range(m)])
            pieces.append(_apart(cached, part, columns))
        rows += len(text.positions)
        apart[index], alike[index] = medians(np.concatenate(pieces, axis=-1))
        if evidence is not None:
            evidence.progress(index + 1, len(texts), "comparing states")
    return apart, alike, rows


def _apart(cached: Floats, part: SameText, columns: Columns) -> Doubles:
    """Distance and cosine of each row of m slots [m, P, H] to its row of every state, [2, m, states, P]."""
    m, count, width = cached.shape
    found = np.empty((2, m, len(columns.labels), count))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        own, at = row_products(cached, cached).astype(np.float64), 0
        for piece in part.tiles(width * len(columns.labels)):
            rows = slice(at, at + len(piece.positions))
            for which, states in columns.blocks(piece):
                found[0, :, which, rows], found[1, :, which, rows] = _measured(cached[:, rows], own[:, rows], states)
            at = rows.stop
    found[~np.isfinite(found)] = np.nan
    return found


def _measured(cached: Floats, own: Doubles, states: Floats) -> tuple[Doubles, Doubles]:
    """`_apart` of rows [m, P, H] of squared length `own` [m, P] and states [P, states, H] that are at hand.

    All slots and states of a row in one product: at these sizes a call costs as much as its arithmetic.
    """
    product = np.matmul(cached.transpose(1, 0, 2), states.transpose(0, 2, 1)).astype(np.float64)
    product = product.transpose(1, 2, 0)
    squares = row_products(states, states).astype(np.float64).T
    gap = own[:, None] + squares - 2 * product
    for slot, column in zip(*np.nonzero((gap < CLOSE**2 * own[:, None]).any(axis=-1))):
        difference = cached[slot] - states[:, column]
        gap[slot, column] = row_products(difference, difference)
    return np.sqrt(np.maximum(gap, 0) / own[:, None]), product / np.sqrt(own[:, None] * squares)


def over_texts(values: Doubles) -> Doubles:
    """The median over texts [slots, states] of [samples, slots, states]; infinite where no text has a number."""
    return middle(np.moveaxis(values, 0, -1))


def judge(
    distances: Doubles,
    served: bool = False,
    edge: int | None = None,
    leaning: tuple[float, float, int] = (0.0, 0.0, 0),
) -> tuple[int, int, str]:
    """(nearest, runner-up, kind) of one slot's distances to every state; the rule of `NamedSlot.kind`.

    `served`: the columns are the few served slots. `edge`: the column beyond which the capture ends, so that the true
    state may be missing. `leaning`: the lean to the worst rival, its standard error, and the rows it
    stands on.
    """
    if not np.isfinite(distances).any():
        return 0, 0, "empty"
    order = np.argsort(np.where(np.isfinite(distances), distances, np.inf))
    best, second = int(order[0]), int(order[1]) if len(order) > 1 else int(order[0])
    near = float(distances[best])
    far = float(distances[second]) if second != best and np.isfinite(distances[second]) else 2.0
    if served:
        kind = "same" if near <= SERVED_SAME and near <= far / 2 else "none"
        return best, second, "between" if kind == "none" and near < SERVED_OTHER else kind
    if near > NO_FIT:
        return best, second, "none"
    if best == edge and near > ROUNDING:
        return best, second, "between"
    value, error, rows = leaning
    if rows >= ENOUGH and value - SURE * error >= SPLIT:
        return best, second, "split"
    if not value + SURE * error <= NAMED:
        return best, second, "between"
    return best, second, "same" if near <= ROUNDING else "near"


def alone(distances: Doubles, columns: Columns) -> int | None:
    """The state one text alone speaks for: a column, -1 for none of them, None where it does not decide."""
    best, second, kind = judge(distances, columns.served, columns.edge)
    if kind in ("none", "empty"):
        return -1
    return best if kind in ("same", "near") and distances[best] <= distances[second] / 2 else None


@dataclass(frozen=True)
class Leaning:
    """A slot's lean to the rival it leans to most, with its standard error; the rows off its nearest state."""

    worst: tuple[float, float, int] = (0.0, 0.0, 0)
    strays: int = 0
    rows: int = 0


def leaning_of(texts: Sequence[SameText], columns: Columns, width: int, distances: Doubles) -> tuple[Leaning, ...]:
    """Of each slot: is it the state it is nearest to, or only on the way there? Over fewer rows than the distances."""
    nearest = [_nearest(row) for row in distances]
    if columns.served:
        return tuple(Leaning() for _ in nearest)
    leans: list[dict[int, list[Doubles]]] = [{j: [] for j in rivals} for _, rivals in nearest]
    off: list[list[Doubles]] = [[] for _ in nearest]
    for text in texts:
        sample = text.open()
        for part, (slot, (best, rivals)) in product(text.limited(LEAN_ROWS).tiles(width), enumerate(nearest)):
            if not distances[slot, best] <= NO_FIT:
                continue
            cached, state = part.cached_rows(sample, slot), columns.rows(part, best)
            off[slot].append(relative(cached, state))
            for rival in rivals:
                leans[slot][rival].append(lean(cached, state, columns.rows(part, rival)))
    return tuple(_worst(each, np.concatenate(rows)) if rows else Leaning() for each, rows in zip(leans, off))


def _nearest(distances: Doubles) -> tuple[int, list[int]]:
    """The nearest column and those it could be taken for: the next nearest, and the two layers beside it."""
    order = np.argsort(np.where(np.isfinite(distances), distances, np.inf)).tolist()
    best = order[0]
    beside = {order[1]} if len(order) > 1 else set()
    return best, sorted((beside | {best - 1, best + 1}) & set(range(len(distances))) - {best})


def _worst(leans: dict[int, list[Doubles]], off: Doubles) -> Leaning:
    """The largest median with the standard error of a median, from the quartiles (normal: 0.93 of their range)."""
    worst = (0.0, 0.0, 0)
    for parts in leans.values():
        values = np.concatenate(parts)
        values = values[np.isfinite(values)]
        if not len(values):
            continue  # the two states are the same numbers, so neither name is wrong
        low, half, high = quantiles(values, 0.25, 0.5, 0.75)
        found = (float(half), float(0.93 * (high - low) / np.sqrt(len(values))), len(values))
        worst = max(worst, found)
    return Leaning(worst, int(np.count_nonzero(~(off <= max(NO_FIT, OFF * median(off))))), len(off))
