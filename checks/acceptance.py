"""From hits to acceptance: walking a text as an engine's verify loop would, and intervals over samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Hits = npt.NDArray[np.bool_]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.float64]

REPLAYED = "replayed accept length"
"""What the replay leaves among the evidence for `log.expected`: its Estimate under the served wiring and steps."""


BLOCK = 32
"""Anchors that make a unit of the interval when there are too few samples to be units themselves."""

ENOUGH_SAMPLES = 8


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval, and the units it stands on; the interval is NaN with fewer than two units."""

    mean: float
    low: float
    high: float
    units: int


def walk(hits: Hits, valid: Flags) -> list[tuple[int, int]]:
    """(anchor, accepted) of each verify round along a text: t += accepted + 1.

    `hits` [steps, A] says whether step j at anchor t proposed what the target says; `valid` [A] where a round may
    start. Averaging over all anchors instead is too low or too high: after a rejection the next anchor sits behind a
    hard token, and easy tokens are skipped over.
    """
    accepted = accepted_counts(hits)
    rounds, t = [], 0
    while t < len(valid):
        if not valid[t]:
            t += 1
            continue
        rounds.append((t, int(accepted[t])))
        t += int(accepted[t]) + 1
    return rounds


def accepted_counts(hits: Hits) -> npt.NDArray[np.int64]:
    """Leading hits of each anchor [A]: the tokens a round that starts there gets accepted."""
    counts: npt.NDArray[np.int64] = np.cumprod(hits.astype(np.int64), axis=0).sum(axis=0)
    return counts


@dataclass(frozen=True)
class Accuracy:
    """Per-step accuracy over all valid anchors: `marginal` P(step j hits), `conditional` given all before hit."""

    marginal: tuple[float, ...]
    conditional: tuple[float, ...]
    anchors: int


def accuracy(hits: Sequence[Hits], valid: Sequence[Flags]) -> Accuracy:
    """Accuracy of each step over the valid anchors of every sample; products are per anchor, never of means."""
    chosen = np.concatenate([one[:, flags] for one, flags in zip(hits, valid)], axis=1)
    through = np.cumprod(chosen.astype(np.int64), axis=0)
    reached = np.concatenate([np.ones((1, chosen.shape[1]), dtype=np.int64), through[:-1]]).sum(axis=1)
    with np.errstate(invalid="ignore"):
        conditional = np.where(reached > 0, through.sum(axis=1) / np.maximum(reached, 1), np.nan)
        marginal = chosen.mean(axis=1)
    return Accuracy(tuple(map(float, marginal)), tuple(map(float, conditional)), int(chosen.shape[1]))


def units(valid: Sequence[Flags]) -> list[npt.NDArray[np.int64]]:
    """The unit each anchor belongs to, per sample: the sample itself, or blocks of it when there are few samples."""
    if len(valid) >= ENOUGH_SAMPLES:
        return [np.full(len(flags), index, dtype=np.int64) for index, flags in enumerate(valid)]
    out, base = [], 0
    for flags in valid:
        blocks = np.arange(len(flags), dtype=np.int64) // BLOCK
        out.append(blocks + base)
        base += int(blocks[-1]) + 1 if len(blocks) else 0
    return out


def accept_length(hits: Sequence[Hits], valid: Sequence[Flags]) -> Estimate:
    """Expected accept length: tokens emitted per verify round, the bonus token included, with its 95% interval."""
    tokens, rounds = [], []
    of = units(valid)
    for one, flags, unit in zip(hits, valid, of):
        for t, accepted in walk(one, flags):
            tokens.append((int(unit[t]), accepted + 1.0))
            rounds.append((int(unit[t]), 1.0))
    return _ratio(_by_unit(tokens, of), _by_unit(rounds, of), 0.05)


def paired_gain(ours: Sequence[Hits], theirs: Sequence[Hits], valid: Sequence[Flags], compared: int = 1) -> Estimate:
    """How many more tokens a round gets accepted with `theirs` than with `ours`, over all valid anchors, paired.

    The interval holds at 95% for all of `compared` comparisons together (Bonferroni).
    """
    gained, anchors = [], []
    of = units(valid)
    for one, other, flags, unit in zip(ours, theirs, valid, of):
        difference = accepted_counts(other) - accepted_counts(one)
        for t in np.flatnonzero(flags):
            gained.append((int(unit[t]), float(difference[t])))
            anchors.append((int(unit[t]), 1.0))
    return _ratio(_by_unit(gained, of), _by_unit(anchors, of), 0.05 / max(compared, 1))


def _by_unit(pairs: Sequence[tuple[int, float]], of: Sequence[npt.NDArray[np.int64]]) -> Numbers:
    count = max((int(unit.max()) for unit in of if len(unit)), default=-1) + 1
    sums = np.zeros(count)
    for unit, value in pairs:
        sums[unit] += value
    return sums


def _ratio(top: Numbers, bottom: Numbers, alpha: float) -> Estimate:
    """A ratio of sums with the linearised interval over units (Cochran, Sampling Techniques, 6.4)."""
    used = bottom > 0
    top, bottom, count = top[used], bottom[used], int(used.sum())
    if count == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(top.sum() / bottom.sum())
    if count < 2:
        return Estimate(mean, math.nan, math.nan, count)
    rest = top - mean * bottom
    error = math.sqrt(count / (count - 1) * float((rest * rest).sum())) / float(bottom.sum())
    half = student(1 - alpha / 2, count - 1) * error
    return Estimate(mean, mean - half, mean + half, count)


def student(p: float, degrees: int) -> float:
    """The quantile of Student's t: exact for 1 and 2 degrees, else Hill's approximation (CACM algorithm 396)."""
    if p < 0.5:
        return -student(1 - p, degrees)
    if degrees == 1:
        return math.tan(math.pi * (p - 0.5))
    tail = 2 * (1 - p)
    if degrees == 2:
        return math.sqrt(2 / (tail * (2 - tail)) - 2)
    n = float(degrees)
    a = 1 / (n - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    x = d * tail
    y = x ** (2 / n)
    if y > 0.05 + a:
        z = NormalDist().inv_cdf(tail / 2)
        y = z * z
        if degrees < 5:
            c += 0.3 * (n - 4.5) * (z + 0.6)
        c = (((0.05 * d * z - 5) * z - 7) * z - 2) * z + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * z
        y = math.expm1(a * y * y)
    else:
        y = ((1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1) * (n + 1) / (
            n + 2
        ) + 1 / y
    return math.sqrt(n * y)
