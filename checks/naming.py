"""Naming the states in a cache from numbers: each slot against captured states of the same tokens, slot by slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from checks.distance import SameText, median, readable, relative, same_texts
from checks.errors import CheckError
from checks.evidence import Evidence, Need
from checks.nearest import ROUNDING, SCALED, Columns, alone, compare, judge, leaning_of, over_texts

SAMPLES, ROWS = 8, 64
"""Texts and tokens a text that are compared: what is named over sixteen tokens is named over five hundred."""

FINDABLE = 2000
"""Cached samples looked through for the captured texts when the spread ones do not hold them."""


@dataclass(frozen=True)
class NamedSlot:
    """One slot of a cache and the state it was found to be.

    `label` is `R_k`, or `N` for the final norm of R_n, or `served i`. `k` is None where there is no such number.
    `kind`: `same` (the same numbers), `near` (this state by a clear margin, from other weights or precision),
    `between` (nearest, but not clearly), `split` (clearly between two states, as a part of a layer's sum is), `scaled`
    (a multiple of one), `none` (far from everything), `empty` (zeros or not finite). `lean` is how far along the way
    from its state to a rival it lies: 0 for the state with any noise, 1 for the rival. `strays` of `looked` rows lie
    off that state.
    """

    slot: int
    label: str
    k: int | None
    best: float
    runner_up: str
    second: float
    cosine: float
    kind: str
    lean: float = 0.0
    strays: int = 0
    looked: int = 0

    @property
    def decided(self) -> bool:
        """Whether the numbers name it."""
        return self.kind in ("same", "near")

    @property
    def margin(self) -> float:
        """How much farther the runner-up is."""
        return self.second - self.best

    def as_json(self) -> dict[str, Any]:
        """For evidence; distances rounded to 4 places."""
        return {
            "slot": self.slot,
            "best": self.label,
            "k": self.k,
            "distance": number(self.best),
            "runner_up": self.runner_up,
            "runner_up_distance": number(self.second),
            "margin": number(self.margin),
            "cosine": number(self.cosine),
            "lean": number(self.lean),
            "kind": self.kind,
        }


@dataclass(frozen=True)
class Naming:
    """What the numbers say of a cache's slots.

    `matrix` [m][states] is the median relative distance, `labels` names its columns. `how` says what was compared
    with: `all-states`, `reference`, `engine` (only what the engine serves), or `nothing` with the reason in `note`.
    """

    how: str
    slots: tuple[NamedSlot, ...] = ()
    labels: tuple[str, ...] = ()
    matrix: tuple[tuple[float, ...], ...] = ()
    rows: int = 0
    samples: int = 0
    note: str = ""
    mixed: tuple[int, ...] = ()
    """Slots that hold different states in different samples."""
    partial: bool = False
    """The capture does not reach R_n, so a slot that fits nothing may be a higher state."""
    unreadable: tuple[str, ...] = ()
    """Why cached samples were left out."""
    foreign: bool = False
    """The capture's states are of another width: of another target."""
    shifted: int | None = None
    """Rows of the cache that fit when moved by this many tokens, and not in place or much worse."""

    @property
    def states(self) -> tuple[int, ...] | None:
        """The k of every slot in slot order, or None when a slot is not named, is no R_k, or is of another token."""
        whole = self.slots and not self.mixed and self.shifted is None
        if not whole or not all(slot.decided and slot.k is not None for slot in self.slots):
            return None
        return tuple(slot.k for slot in self.slots if slot.k is not None)

    def as_json(self) -> dict[str, Any]:
        """The evidence every check that compares states carries."""
        return {
            "compared_with": self.how,
            "states": list(self.labels),
            "matrix": [[number(value) for value in row] for row in self.matrix],
            "slots": [slot.as_json() for slot in self.slots],
            "rows": self.rows,
            "samples": self.samples,
        }


def number(value: float) -> float | None:
    """A float for JSON: rounded, and None for what JSON does not have."""
    return round(value, 4) if np.isfinite(value) else None


def name_slots(evidence: Evidence, cache: Any | None = None) -> Naming:
    """Name the slots of a cache (the first that has any, by default) with the best capture at hand; memoised.

    An all-states or a reference capture names states outright: a slot is the state nearest to it, by relative L2
    distance per token, median over tokens, when it does not lean to a rival. With only an engine capture a slot is
    `served i` when it is within 3 % of what the engine feeds in slot i, and something else beyond 18 %.
    """
    chosen = cache if cache is not None else next((c for c in evidence.caches if c.slots), evidence.caches[0])
    found: Naming = evidence.memo(("naming", str(chosen.path)), lambda: _name(evidence, chosen))
    return found


def engine_capture(evidence: Evidence) -> Any | None:
    """The capture of what the engine serves, or None."""
    return next((item for item in _captures(evidence)[0] if item.kind == "engine"), None)


def all_states_capture(evidence: Evidence) -> Any | None:
    """The capture with the most states R_0 …, or None."""
    full = [item for item in _captures(evidence)[0] if item.kind in ("all-states", "reference")]
    return max(full, key=lambda item: int(item.slots), default=None)


def texts_of(evidence: Evidence, cache: Any, capture: Any) -> tuple[SameText, ...]:
    """The texts a cache and a capture share; memoised."""

    def find() -> tuple[SameText, ...]:
        spread = cache.samples(evidence.request.samples, evidence.request.seed)
        found = tuple(same_texts(spread, capture.samples))
        if found or len(spread) >= cache.files:
            return found
        return tuple(same_texts(cache.samples(FINDABLE, evidence.request.seed), capture.samples))

    found: tuple[SameText, ...] = evidence.memo(("texts", str(cache.path), id(capture)), find)
    return found


def name_served(evidence: Evidence) -> Naming:
    """Name what the engine really fed, slot by slot, against all states of the same tokens; memoised."""

    def find() -> Naming:
        served, full = engine_capture(evidence), all_states_capture(evidence)
        if served is None or full is None:
            return Naming("nothing", note="needs an engine capture and a capture of all states")
        texts = [text.limited(ROWS) for text in same_texts([_Served(item) for item in served.samples], full.samples)]
        texts = [text for text in map(_both_hold, texts[:SAMPLES]) if len(text.positions)]
        if not texts:
            return Naming("nothing", note="the two captures share no text")
        return _from_texts(evidence, int(served.slots), full, texts)

    return evidence.memo("served slots", find)


class _Served:
    """A sample of an engine capture read by position in the text, as a cached one is."""

    def __init__(self, sample: Any) -> None:
        self._sample = sample
        self.token_ids = sample.token_ids
        self.length = len(sample.token_ids)
        self.positions = sample.positions

    def slot(self, index: int, start: int, stop: int) -> Any:
        """Rows [start, stop) of the text; those the capture lacks are NaN."""
        first, last = np.searchsorted(self.positions, [start, stop])
        rows = self._sample.slot(index, int(first), int(last))
        out = np.full((stop - start, rows.shape[1]), np.nan, dtype=np.float32)
        out[self.positions[first:last] - start] = rows
        return out


def _both_hold(text: SameText) -> SameText:
    return text.only(np.flatnonzero(np.isin(text.positions, text.open().positions)))


# -- one cache ---------------------------------------------------------------------------------------------------------


def _captures(evidence: Evidence) -> tuple[tuple[Any, ...], str]:
    def ask() -> tuple[tuple[Any, ...], str]:
        try:
            return tuple(evidence.captures), ""
        except CheckError as error:
            return (), str(error)

    found: tuple[tuple[Any, ...], str] = evidence.memo("captures or why not", ask)
    return found


def _name(evidence: Evidence, cache: Any) -> Naming:
    if not cache.slots:
        return Naming("nothing", note=f"this {cache.layout} cache holds no states to feed a draft, only a final one")
    foreign = False
    note = _captures(evidence)[1] or (evidence.missing(Need.CAPTURE) if not _captures(evidence)[0] else "") or ""
    for capture in (all_states_capture(evidence), engine_capture(evidence)):
        if capture is None:
            continue
        texts = [text.limited(ROWS) for text in texts_of(evidence, cache, capture)[:SAMPLES]]
        if not texts:
            note = "the captured texts are not among the cached ones (compared by token ids)"
            damaged = readable(cache.samples(evidence.request.samples, evidence.request.seed), frozenset())[1]
            note += f"; {len(damaged)} samples could not be read: {next(iter(damaged.values()))}" if damaged else ""
            continue
        if _width(texts[0].capture) != cache.hidden:
            note = f"captured states are {_width(texts[0].capture)} wide, cached ones {cache.hidden}: another target"
            foreign = True
            continue
        damaged = readable(cache.samples(evidence.request.samples, evidence.request.seed), frozenset())[1]
        return replace(_from_texts(evidence, cache.slots, capture, texts), unreadable=tuple(damaged.values()))
    return Naming("nothing", note=note, foreign=foreign)


def _width(sample: Any) -> int:
    return int(sample.slot(0, 0, 1).shape[1])


def _columns(evidence: Evidence, capture: Any) -> Columns:
    count = int(capture.slots)
    if capture.kind == "engine":
        return Columns(tuple(f"served {i}" for i in range(count)), (None,) * count, served=True)
    labels, ks = tuple(f"R_{k}" for k in range(count)), tuple(range(count))
    n = evidence.target.n if evidence.target is not None else None
    if n is not None and count < n + 1:
        return Columns(labels, ks, edge=count - 1)
    norm = final_norm(evidence)
    return Columns((*labels, "N"), (*ks, None), norm) if norm is not None else Columns(labels, ks)


def final_norm(evidence: Evidence) -> Any | None:
    """A function rows [P, H] -> their final norm, or None without the target's norm weight."""

    def make() -> Any | None:
        target = evidence.target
        if target is None:
            return None
        try:
            if target.weights is None:
                return None
            weight = target.final_norm()
        except CheckError:
            return None
        eps = target.rms_eps
        return lambda rows: rows / np.sqrt((rows * rows).mean(axis=1, keepdims=True) + eps) * weight

    return evidence.memo("final norm", make)


def _from_texts(evidence: Evidence, m: int, capture: Any, texts: Sequence[SameText]) -> Naming:
    columns, width = _columns(evidence, capture), _width(capture.samples[0])
    apart, alike, rows = compare(texts, m, width, columns, evidence)
    distances, cosines = over_texts(apart), over_texts(alike)
    leaning = leaning_of(texts, columns, width, distances)
    slots, mixed = [], []
    for slot in range(m):
        best, second, kind = judge(distances[slot], columns.served, columns.edge, leaning[slot].worst)
        near, like = float(distances[slot, best]), float(cosines[slot, best])
        if kind not in ("same", "empty") and near > SCALED * max(float(np.sqrt(max(1 - like**2, 0.0))), ROUNDING):
            kind = "scaled"
        if len({alone(apart[i, slot], columns) for i in range(len(texts))} - {None}) > 1:
            mixed.append(slot)
        slots.append(
            NamedSlot(
                slot,
                columns.labels[best],
                columns.ks[best],
                near,
                columns.labels[second],
                float(distances[slot, second]),
                like,
                kind,
                leaning[slot].worst[0],
                leaning[slot].strays,
                leaning[slot].rows,
            )
        )
    naming = Naming(
        capture.kind,
        tuple(slots),
        columns.labels,
        tuple(tuple(float(value) for value in row) for row in distances),
        rows,
        len(texts),
        mixed=tuple(mixed),
        partial=columns.edge is not None,
    )
    return _with_shift(naming, texts, columns)


def _with_shift(naming: Naming, texts: Sequence[SameText], columns: Columns) -> Naming:
    """Whether the cache's rows belong to the token beside: a slot then lies much nearer to a state once it is moved.

    Asked of every slot that is not the same numbers as its state: where all tokens have much in common, as in large
    models, or repeat, the state of the token beside may pass for a coarse one of the right token.
    """
    inner = texts[0].only(np.arange(1, len(texts[0].positions) - 1))
    sample = inner.open()
    last = len(columns.labels) - (1 if columns.norm is not None else 0)
    for slot in naming.slots:
        if slot.kind in ("same", "scaled", "empty"):
            continue
        beside = {naming.labels.index(slot.label) + step for step in (-1, 0, 1)} & set(range(last))
        moved = {shift: inner.cached_rows(sample, slot.slot, shift) for shift in (-1, 1)}
        distances: dict[int, list[float]] = {shift: [] for shift in moved}
        for column in sorted(beside if slot.kind == "near" else range(last)):
            state = inner.captured_rows(column)
            for shift, rows in moved.items():
                distances[shift].append(median(relative(rows, state)))
        for shift, found in distances.items():
            named = judge(np.array(found), columns.served)[2] in ("same", "near")
            if named and not np.nanmin(found) > slot.best / 2:
                return replace(naming, shifted=shift)
    return naming
