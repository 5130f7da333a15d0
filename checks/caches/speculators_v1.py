"""The layout of speculators 0.3 and 0.4: `data_{i}.pt` with a list of states, `data_config.json` beside them.

`hidden_states` is a list of `[S, H]`, ascending; the last one is R_n, before the norm. The side file names the layers
by id, where id means the state after that layer: k = id + 1. It is a claim like any other, and lets the cache be
recognised where torch is missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks.caches import layout
from checks.caches.array import Array
from checks.caches.cache import Cache, CacheSample, Claim, Hints, Look, Place, claimed
from checks.caches.layout import Block, Layout, Parts, ids_of
from checks.errors import BadConfig
from checks.jsonfile import read_config, whole

SIDE = "data_config.json"
STATES, IDS, MASK = "hidden_states", "input_ids", "loss_mask"
_NAME = re.compile(r"data_[0-9]+\.pt")


def _parts(value: Mapping[str, Any], hints: Hints) -> Parts | None:
    """At least one aux state and a final one, all of one width."""
    ids, states = ids_of(value, IDS), value.get(STATES)
    if ids is None or not isinstance(states, list) or len(states) < 2:
        return None
    arrays = [item for item in states if isinstance(item, Array) and item.floating and len(item.shape) == 2]
    if len(arrays) != len(states) or len({item.shape for item in arrays}) != 1 or not arrays[0].width:
        return None
    blocks = [Block(item, 0) for item in arrays]
    return Parts(ids, ids_of(value, MASK), tuple(blocks[:-1]), blocks[-1], arrays[0].width)


class _SideFile:
    """What data_config.json says: ids of the layers (k = id + 1), the last one the final state's, and the width."""

    def __init__(self, config: dict[str, Any]) -> None:
        states, model = config.get("hidden_states"), config.get("model")
        self.layer_ids = whole_numbers(states.get("layer_ids")) if isinstance(states, dict) else ()
        self.hidden = (whole(model.get("hidden_size")) or 0) if isinstance(model, dict) else 0

    @property
    def states(self) -> tuple[int, ...]:
        return tuple(layer + 1 for layer in self.layer_ids[:-1])


class _Reader:
    layout = "speculators-v1"

    def __init__(self) -> None:
        self._layout = Layout(self.layout, (".pt",), "pre", _parts)

    def open(self, look: Look) -> Cache | None:
        """By what a file holds; where no file could be read, by names and side file together."""
        side = _side(look.listing.side(SIDE))
        cache = self._layout.open(look) if look.path is not None else self._by_names(look, side)
        if cache is None or side is None or len(side.states) != cache.slots:
            return cache
        return layout.with_claim(cache, claimed(look.hints.states, Claim(side.states, SIDE)))

    def _by_names(self, look: Look, side: _SideFile | None) -> Cache | None:
        files = look.listing.having(".pt")
        if not files or side is None or not side.states or not side.hidden:
            return None
        if not all(_NAME.fullmatch(file.name) for file in files[:8]):
            return None

        def open_sample(place: Place) -> CacheSample:
            parts = self._layout.sample(place, look.hints)
            layout.prove_paired(place.path, parts)
            return layout.PartsSample(place.path, parts)

        return Cache(
            look.listing.path,
            self.layout,
            tuple(Place(file) for file in files),
            len(side.states),
            side.hidden,
            "pre",
            claimed(look.hints.states, None),
            open_sample,
            look.listing.label,
        )


def whole_numbers(value: object) -> tuple[int, ...]:
    """A JSON list of whole numbers, negative ones included; () for anything else."""
    if not isinstance(value, list) or not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return ()
    return tuple(value)


def _side(path: Path | None) -> _SideFile | None:
    try:
        return _SideFile(read_config(path)[1]) if path is not None else None
    except BadConfig:
        return None  # a damaged side file claims nothing; the states themselves are still there


READER = _Reader()
