"""What every reader gives: a cache, its samples, and what it claims of itself."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from checks.caches.listing import Listing
from checks.tensors import Floats, Ids

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
        """int64 `[S]`, 1 where training looked, by the token's own position; None when the cache has none."""

    @abstractmethod
    def slot(self, index: int, start: int, stop: int) -> Floats:
        """Rows `start` to `stop` of an aux slot, float32 `[rows, H]`. Raises BadTensors."""

    @abstractmethod
    def final(self, start: int, stop: int) -> Floats | None:
        """Rows of the final state, or None when the cache has none. Raises BadTensors."""

    @property
    def length(self) -> int:
        """S."""
        return int(self.token_ids.shape[0])


@dataclass(frozen=True)
class Cache:
    """A recognised cache: m = `slots` aux slots of width `hidden`, and whether a final state stands beside them.

    `final` is what the layout says of its norm: pre (R_n), post (N), none, or unknown; numbers decide in doubt.
    """

    path: Path
    layout: str
    paths: tuple[Path, ...]
    slots: int
    hidden: int
    final: str
    claim: Claim | None
    open_sample: Callable[[Path], CacheSample]

    @property
    def files(self) -> int:
        """How many samples it has; one file each."""
        return len(self.paths)

    def samples(self, count: int, seed: int) -> Sequence[CacheSample]:
        """`count` samples spread evenly over the cache, the same ones for the same seed; 0 means all.

        Each is opened when it is indexed, and again when it is indexed again, so that a long walk holds one open.
        """
        return _Samples(spread(self.paths, count, seed), self.open_sample)


class Reader(Protocol):
    """One layout: its name, and how to open a listing as it."""

    layout: str

    def open(self, listing: Listing, states: tuple[int, ...], slots: int) -> Cache | None:
        """The cache, or None when the files are not of this layout. Raises NeedsLibrary, BadTensors."""
        ...


def claimed(states: tuple[int, ...], side: Claim | None) -> Claim | None:
    """What the user believes comes before what a side file says; both are only claims."""
    return Claim(states, "deployment") if states else side


def spread(paths: Sequence[Path], count: int, seed: int) -> tuple[Path, ...]:
    """`count` of the paths, one from each of as many equal stretches, at a place the seed chooses."""
    if count <= 0 or count >= len(paths):
        return tuple(paths)
    chance = random.Random(seed)
    edges = [len(paths) * part // count for part in range(count + 1)]
    return tuple(paths[chance.randrange(low, high)] for low, high in zip(edges, edges[1:]))


class _Samples(Sequence[CacheSample]):
    def __init__(self, paths: tuple[Path, ...], open_sample: Callable[[Path], CacheSample]) -> None:
        self._paths = paths
        self._open = open_sample

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return _Samples(self._paths[index], self._open)
        return self._open(self._paths[index])
