"""One walk over a cache's samples, whose facts all checks of the family share: each sample is opened once.

Bounded: of many samples only ids and masks are looked at, of few the states, and of those some stretches of rows.
Asking for all samples reads everything, which may take a day: what was seen is kept until the run has ended, so that
one that is interrupted goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from checks.caches import Cache, CacheSample
from checks.caches.cache import Place, Samples
from checks.data.kept import Kept
from checks.data.seen import Fault, Seen, Turn
from checks.data.stored import Oddness, oddness
from checks.errors import BadTensors, NeedsLibrary, OtherShape, Unpaired
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict
from checks.tensors import Values
from checks.tiles import largest

LIGHT = 8
"""Samples whose ids and mask are looked at, for each one whose states are."""

ROWS, STRETCH = 256, 32
"""Rows of a sample whose states are read, and how many of them side by side."""

# Window of tokens kept around the first masked-in ones of a sample, and how many such turns.
BEFORE, AFTER, TURNS = 48, 8, 4

MARK = 64
"""Numbers of a row that are kept, to see whether a later one may be the same."""


@dataclass(frozen=True)
class Scan:
    """All that was seen of a cache, in its order."""

    cache: Cache
    seen: tuple[Seen, ...]
    earlier: int = 0
    """Samples that a run which was interrupted had read, and that were not changed since."""
    trouble: str = ""
    """Why this walk could not be continued, were it interrupted."""

    @property
    def read(self) -> tuple[Seen, ...]:
        """The samples that could be opened."""
        return tuple(item for item in self.seen if not item.problem)

    @property
    def deep(self) -> tuple[Seen, ...]:
        """The samples whose states were read."""
        return tuple(item for item in self.read if item.rows)

    def coverage(self) -> dict[str, Any]:
        """How much of the cache this is, for evidence."""
        return {
            "files": self.cache.files,
            "opened": len(self.seen),
            "states_of": len(self.deep),
            "rows": sum(item.rows for item in self.deep),
            **({"read_before_interruption": self.earlier} if self.earlier else {}),
            **({"note": self.trouble} if self.trouble else {}),
        }


def scan(evidence: Evidence, cache: Cache) -> Scan:
    """The facts of a cache's samples; memoised. Raises NeedsLibrary."""
    found: Scan = evidence.memo(("data", str(cache.path)), lambda: _scan(evidence, cache))
    return found


def scans(evidence: Evidence, check_id: str) -> Iterator[Scan | Finding]:
    """The scan of every cache that was recognised; a finding in its place where a library is missing to read one."""
    for cache in evidence.caches:
        try:
            yield scan(evidence, cache)
        except NeedsLibrary as error:
            facts = {"needs": [f"{error.library} in the python that runs the checks"], **place(evidence, cache)}
            yield Finding(check_id, Verdict.UNKNOWN, f"not checked: {error}", facts)


def no_cache(evidence: Evidence, check_id: str) -> Finding:
    """What a check says that could look at a cache itself, and was given none."""
    reason = evidence.missing(Need.CACHE)
    return Finding(check_id, Verdict.UNKNOWN, f"not checked: {reason}", {"needs": [Need.CACHE.value]})


def place(evidence: Evidence, cache: Cache) -> dict[str, str]:
    """Which cache a finding speaks of, where there are several."""
    return {"cache": str(cache.path)} if len(evidence.request.caches) > 1 else {}


def _scan(evidence: Evidence, cache: Cache) -> Scan:
    request = evidence.request
    deep: Samples = cache.samples(request.samples, request.seed)
    # Unpacking a sample to see its ids costs as much as reading it.
    packed = any(place.path.name.endswith(".gz") for place in cache.places[:1])
    light = deep if packed else cache.samples(request.samples * LIGHT, request.seed + 1)
    thorough = request.samples == 0
    kept = _kept(evidence, cache) if thorough else None
    wanted = {cache.name(place) for place in deep.places}
    seen: dict[str, Seen] = {}
    total = len(deep) + sum(cache.name(place) not in wanted for place in light.places)
    for chosen, full in ((deep, True), (light, False)):
        for index, where in enumerate(chosen.places):
            name = cache.name(where)
            if name in seen:
                continue
            seen[name] = _once(kept, where, name, partial(_look, chosen, index, name, full, thorough, cache))
            before = f" ({kept.taken} read before the interruption)" if kept is not None and kept.taken else ""
            evidence.progress(len(seen), total, f"reading {name}{before}")
    order = {cache.name(where): number for number, where in enumerate((*deep.places, *light.places))}
    every = tuple(sorted(seen.values(), key=lambda item: order[item.name]))
    return Scan(cache, every, kept.taken, kept.trouble) if kept is not None else Scan(cache, every)


def _kept(evidence: Evidence, cache: Cache) -> Kept:
    """What an interrupted walk over this cache left, and where this one keeps its own.

    It is gone once every check has said its part: there is nothing left to continue.
    """
    asked = sorted({item.layout for item in evidence.request.caches})
    kept = Kept(cache, "|".join(asked))
    evidence.at_end(kept.drop)
    return kept


def _once(kept: Kept | None, where: Place, name: str, look: Callable[[], Seen]) -> Seen:
    """The sample as an earlier run saw it, else by looking now."""
    if kept is None:
        return look()
    if (known := kept.take(name, where)) is not None:
        return known
    stamp, found = kept.stamp(where), look()
    if found.problem != "damaged":  # which may pass: it is tried again
        kept.add(found, stamp)
    return found


def _look(chosen: Sequence[CacheSample], index: int, name: str, full: bool, thorough: bool, cache: Cache) -> Seen:
    seen = Seen(name)
    try:
        sample = chosen[index]
        _tokens(sample, seen)
        _mask(sample, seen)
        _row_of_dataset(sample, seen)
        if full:
            _states(sample, cache, seen, thorough)
    except OtherShape as error:
        seen.problem, seen.error, seen.found = "shape", str(error), error.found
    except Unpaired as error:
        seen.problem, seen.error = "unpaired", str(error)
    except BadTensors as error:
        seen.problem, seen.error = "damaged", str(error)
    return seen


# -- ids and masks -----------------------------------------------------------------------------------------------------


def _tokens(sample: CacheSample, seen: Seen) -> None:
    ids = sample.token_ids
    seen.length, seen.dtype = len(ids), sample.dtype
    if not len(ids):
        return
    seen.text = int.from_bytes(blake2b(ids.tobytes(), digest_size=8).digest(), "little")
    low, high = int(ids.argmin()), int(ids.argmax())
    seen.low, seen.high = (low, int(ids[low])), (high, int(ids[high]))
    other = np.flatnonzero(ids != ids[-1])
    run = len(ids) - (int(other[-1]) + 1 if len(other) else 0)
    seen.tail = (int(ids[-1]), run, 0)


def _mask(sample: CacheSample, seen: Seen) -> None:
    mask = sample.loss_mask
    if mask is None:
        return
    seen.mask_length, seen.masked_in = len(mask), int(np.count_nonzero(mask))
    seen.mask_values = tuple(sorted(set(mask.tolist()))[:4])
    if len(mask) != seen.length:
        return
    pad, run, _ = seen.tail
    seen.tail = (pad, run, int(np.count_nonzero(mask[seen.length - run :])))
    on = mask != 0
    starts = np.flatnonzero(on[1:] & ~on[:-1]) + 1
    turns = []
    for start in starts[:TURNS].tolist():
        begin = min(start, BEFORE)
        turns.append(Turn(seen.name, sample.token_ids[start - begin : start + AFTER].copy(), begin, start))
    seen.turns = tuple(turns)


def _row_of_dataset(sample: CacheSample, seen: Seen) -> None:
    expected = sample.paired_ids()
    if expected is None:
        return
    seen.paired = True
    ids = sample.token_ids
    if np.array_equal(expected, ids):
        return
    # A server that was given fewer tokens than the row has, or more, still had the right row.
    common = min(len(expected), len(ids))
    if common and np.array_equal(expected[:common], ids[:common]):
        seen.pairing = f"{len(ids)} token ids, and its row of the dataset has {len(expected)}"
        return
    for offset in (-1, 1, -2, 2, -3, 3):
        near = sample.paired_ids(offset)
        if near is not None and np.array_equal(near, ids):
            seen.pairing = f"its token ids are those of row {offset:+d} from its own number: the index slipped"
            return
    seen.pairing = (
        "its token ids are not those of its row of the dataset, nor of the three rows around it"
        if len(expected)
        else "the dataset has no such row"
    )


# -- states ------------------------------------------------------------------------------------------------------------


def stretches(length: int, thorough: bool) -> Iterator[tuple[int, int]]:
    """The rows to read: all of them, or stretches from the first row to the last."""
    if thorough or length <= ROWS:
        yield from ((start, min(start + STRETCH, length)) for start in range(0, length, STRETCH))
        return
    for start in np.linspace(0, length - STRETCH, ROWS // STRETCH).astype(int).tolist():
        yield start, start + STRETCH


def _states(sample: CacheSample, cache: Cache, seen: Seen, thorough: bool) -> None:
    walks = [_Walk(f"slot {index}", seen) for index in range(cache.slots)]
    if cache.final != "none":
        walks.append(_Walk("final", seen))
    copies = _Copies(sample, cache.slots) if len(walks) > 1 else None
    for start, stop in stretches(seen.length, thorough):
        parts = sample.stored(cache.slots, start, stop)
        finite = [walk.take(part, start) for walk, part in zip(walks, parts)]
        if copies is not None and len(parts) == len(walks):
            copies.take(parts[-1], start, finite[-1])
        seen.rows += len(parts[0]) if parts else 0
    for walk in walks:
        walk.close()
    if copies is not None and copies.pairs:
        first, again = copies.pairs[0]
        seen.repeated.append(Fault(walks[-1].where, len(copies.pairs), again, f"the same state as row {first}"))


class _Walk:
    """Takes the rows of one block, stretch by stretch, and notes what is wrong with them."""

    def __init__(self, where: str, seen: Seen) -> None:
        self.where = where
        self._seen = seen
        self._found: dict[str, list[int]] = {"nan": [], "inf": [], "zero": [], "saturated": []}
        self._odd: Oddness | None = None
        self._begun = False

    def take(self, part: Values, start: int) -> npt.NDArray[np.bool_]:
        """Rows from `start` on, [rows, H] as they lie; which of them are finite and not zero, [rows]."""
        if not self._begun:
            self._begun = True
            self._odd = oddness(part, self._seen.dtype)
        peak = largest(part)
        good = (peak > 0) & (peak < np.inf)
        half = self._seen.dtype == "F16"
        if half or not good.all():
            for kind, wrong in (
                ("nan", np.isnan(peak)),
                ("inf", np.isinf(peak)),
                ("zero", peak == 0),
                ("saturated", good & (peak >= 65504) if half else np.zeros(0, bool)),
            ):
                self._found[kind].extend((np.flatnonzero(wrong) + start).tolist())
        return good

    def close(self) -> None:
        """Write down what was found."""
        seen, found = self._seen, self._found
        for kind, into in (
            ("nan", seen.broken), ("inf", seen.broken), ("zero", seen.zero), ("saturated", seen.saturated),
        ):  # fmt: skip
            if found[kind]:
                note = kind if into is seen.broken else ""
                into.append(Fault(self.where, len(found[kind]), min(found[kind]), note))
        if self._odd is not None:
            seen.strange.append(Fault(self.where, 0, 0, self._odd.words))


class _Copies:
    """Rows of a sample's last block that are bit for bit an earlier row: for one token in one context that may be."""

    def __init__(self, sample: CacheSample, slots: int) -> None:
        self.pairs: list[tuple[int, int]] = []
        """The earlier row and its copy."""
        self._sample = sample
        self._slots = slots
        self._ids = sample.token_ids
        self._rows: dict[bytes, int] = {}

    def take(self, part: Values, start: int, finite: npt.NDArray[np.bool_]) -> None:
        """Rows from `start` on, [rows, H]. Those alike in a few places are read again, to be held to each other."""
        marks = part[:, :: max(part.shape[1] // MARK, 1)].tobytes()
        size = len(marks) // max(len(part), 1)
        for offset in np.flatnonzero(finite).tolist():
            row, mark = start + offset, marks[offset * size : (offset + 1) * size]
            earlier = self._rows.setdefault(mark, row)
            if earlier != row and not self._same_context(earlier, row) and self._same(earlier, part[offset]):
                self.pairs.append((earlier, row))

    def _same(self, earlier: int, row: Values) -> bool:
        before = self._sample.stored(self._slots, earlier, earlier + 1)[-1]
        same: bool = before[0].tobytes() == row.tobytes()
        return same

    def _same_context(self, a: int, b: int) -> bool:
        ids = self._ids
        return bool(ids[a] == ids[b]) and (a == 0 or bool(ids[a - 1] == ids[b - 1]))
