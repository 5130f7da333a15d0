"""What every reader gives: a cache, its samples, and what it claims of itself."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from checks.caches.array import Value
from checks.caches.listing import Listing
from checks.errors import CheckError
from checks.tensors import Floats, Ids, Values

FINALS = ("pre", "post", "none", "unknown")


@dataclass(frozen=True)
class Claim:
    """The states `R_k` a cache is said to hold, slot by slot, and by whom: a side file or the deployment."""

    states: tuple[int, ...]
    by: str


class CacheSample(ABC):
    """One cached sequence of S tokens. Reads on demand and keeps only ids and mask."""

    name: str

    @property
    @abstractmethod
    def token_ids(self) -> Ids:
        """int64 `[S]`."""

    @property
    @abstractmethod
    def loss_mask(self) -> Ids | None:
        """int64, 1 where training looked, by the token's own position; None when the cache has none.

        `[S]` in a right cache; as long as it is stored in a wrong one.
        """

    @abstractmethod
    def slot(self, index: int, start: int, stop: int) -> Floats:
        """Rows `start` to `stop` of an aux slot, float32 `[rows, H]`. Raises BadTensors."""

    @abstractmethod
    def final(self, start: int, stop: int) -> Floats | None:
        """Rows of the final state, or None when the cache has none. Raises BadTensors."""

    def stored(self, slots: int, start: int, stop: int) -> list[Values]:
        """Rows of `slots` slots, then of the final state where there is one, `[rows, H]` each, as they lie.

        As in `Array.stored`; what stands side by side is read together. Raises BadTensors.
        """
        final = self.final(start, stop)
        return [*(self.slot(index, start, stop) for index in range(slots)), *([] if final is None else [final])]

    @property
    def length(self) -> int:
        """S."""
        return int(self.token_ids.shape[0])

    @property
    def dtype(self) -> str:
        """How the states are stored: BF16, F16, F32; empty when that is not known."""
        return ""

    def paired_ids(self, offset: int = 0) -> Ids | None:
        """The token ids at this sample's number plus `offset` in the dataset that holds its loss mask; None without."""
        return None


@dataclass(frozen=True)
class Place:
    """Where a sample stands: a file, and which of its samples where a file has several."""

    path: Path
    index: int = 0


@dataclass(frozen=True)
class Cache:
    """A recognised cache: m = `slots` aux slots of width `hidden`, and whether a final state stands beside them.

    `final` is what the layout says of its norm: pre (R_n), post (N), none, or unknown; numbers decide in doubt.
    """

    path: Path
    layout: str
    places: tuple[Place, ...]
    """One for each file, or for each sample where an index lists them."""
    slots: int
    hidden: int
    final: str
    claim: Claim | None
    open_sample: Callable[[Place], CacheSample]
    label: Callable[[Path], str] = str
    count: Callable[[Path], int] | None = None
    """How many samples a file has, in layouts where that may be more than one. Raises CheckError."""
    note: str = ""
    """What the reader has to say of this cache beyond what it holds."""
    trouble: str = ""
    """What makes it unusable, where the layout itself is at fault."""
    proof: Callable[[], Sequence[tuple[str, str]]] | None = None
    """Files of the layout's own kind that are damaged, each with why; for layouts whose files no other proof knows."""

    @property
    def files(self) -> int:
        """How many files it has, or samples where an index lists them."""
        return len(self.places)

    def samples(self, count: int, seed: int) -> Samples:
        """`count` samples spread evenly over the cache, the same ones for the same seed; 0 means all.

        Each is opened when it is indexed, and again when it is indexed again, so that a long walk holds one open.
        """
        return Samples(self, self._spread(count, seed))

    def name(self, place: Place) -> str:
        """The sample's name within the cache."""
        name = self.label(place.path)
        return f"{name}#{place.index}" if self.count is not None or place.index else name

    def _spread(self, count: int, seed: int) -> tuple[Place, ...]:
        if self.count is None:
            return spread(self.places, count, seed)
        if 0 < count <= len(self.places):
            chance = random.Random(seed)
            chosen = spread(self.places, count, seed)
            return tuple(Place(place.path, chance.randrange(max(self._held(place), 1))) for place in chosen)
        return spread(
            [Place(place.path, index) for place in self.places for index in range(max(self._held(place), 1))],
            count,
            seed,
        )

    def _held(self, place: Place) -> int:
        """The samples of a file; 1 for one that cannot be opened, so that opening it says why."""
        assert self.count is not None
        try:
            return self.count(place.path)
        except CheckError:
            return 1


@dataclass(frozen=True)
class Hints:
    """What is known beside the cache and helps where its files do not say; zeros and () mean not known.

    `states`: what the user believes it holds. `slots`: how many states the draft reads. `hidden`, `vocab`, `layers`:
    the target's.
    """

    states: tuple[int, ...] = ()
    slots: int = 0
    hidden: int = 0
    vocab: int = 0
    layers: int = 0


@dataclass(frozen=True)
class Look:
    """What a reader looks at: the listing, the hints, and what one of the files holds (None: none could be read)."""

    listing: Listing
    hints: Hints
    path: Path | None = None
    value: Value = None


class Reader(Protocol):
    """One layout: its name, and how to open a listing as it."""

    @property
    def layout(self) -> str:
        """Its name, as reports and deployments spell it."""
        ...

    def open(self, look: Look) -> Cache | None:
        """The cache, or None when the files are not of this layout. Raises UnknownLayout when it is this layout and
        something that cannot be guessed is missing, BadTensors."""
        ...


def claimed(states: tuple[int, ...], side: Claim | None) -> Claim | None:
    """What the user believes comes before what a side file says; both are only claims."""
    return Claim(states, "deployment") if states else side


def spread(places: Sequence[Place], count: int, seed: int) -> tuple[Place, ...]:
    """`count` of the places, one from each of as many equal stretches, at a point the seed chooses."""
    if count <= 0 or count >= len(places):
        return tuple(places)
    chance = random.Random(seed)
    edges = [len(places) * part // count for part in range(count + 1)]
    return tuple(places[chance.randrange(low, high)] for low, high in zip(edges, edges[1:]))


class Samples(Sequence[CacheSample]):
    """Samples of a cache at `places`, opened when they are indexed."""

    def __init__(self, cache: Cache, places: tuple[Place, ...]) -> None:
        self._cache = cache
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return Samples(self._cache, self.places[index])
        place = self.places[index]
        sample = self._cache.open_sample(place)
        sample.name = self._cache.name(place)
        return sample
