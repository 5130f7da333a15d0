"""The layout of speculators 0.3 and 0.4: `data_{i}.pt` with a list of states, `data_config.json` beside them.

`hidden_states` is a list of `[S, H]`, ascending; the last one is R_n, before the norm. The side file names the layers
by id, where id means the state after that layer: k = id + 1. It is a claim like any other, and lets the cache be
recognised where torch is missing.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Any

from checks.caches import torchfile
from checks.caches.cache import Cache, CacheSample, Claim, claimed
from checks.caches.listing import Listing
from checks.errors import BadConfig, BadTensors, NeedsLibrary
from checks.jsonfile import read_config, whole
from checks.tensors import Floats, Ids

SIDE = "data_config.json"
STATES, IDS, MASK = "hidden_states", "input_ids", "loss_mask"
_NAME = re.compile(r"data_[0-9]+\.pt")
_TRIES = 8


class _Reader:
    layout = "speculators-v1"

    def open(self, listing: Listing, states: tuple[int, ...], slots: int) -> Cache | None:
        files = listing.having(".pt")
        if not files:
            return None
        side = _side(listing.folder / SIDE)
        # The names and the side file together are proof enough to say what it is; reading a sample still takes torch.
        named = all(_NAME.fullmatch(file.name) for file in files[:_TRIES])
        try:
            shape = _first(files)
        except NeedsLibrary:
            if not (named and side and side.blocks and side.hidden):
                raise
            shape = (side.blocks, side.hidden)
        if shape is None:
            return None
        blocks, hidden = shape
        claim = None
        if side and len(side.layer_ids) == blocks:
            claim = Claim(tuple(layer + 1 for layer in side.layer_ids[:-1]), SIDE)
        return Cache(
            listing.path, self.layout, files, blocks - 1, hidden, "pre", claimed(states, claim), _Open(blocks, hidden)
        )


class _SideFile:
    """What data_config.json says: ids of the layers (k = id + 1), the last one the final state's, and the width."""

    def __init__(self, config: dict[str, Any]) -> None:
        states, model = config.get("hidden_states"), config.get("model")
        ids = states.get("layer_ids") if isinstance(states, dict) else None
        plain = isinstance(ids, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in ids)
        self.layer_ids: tuple[int, ...] = tuple(ids) if plain and isinstance(ids, list) else ()
        self.hidden = (whole(model.get("hidden_size")) or 0) if isinstance(model, dict) else 0
        self.blocks = len(self.layer_ids)


class _Open:
    def __init__(self, blocks: int, hidden: int) -> None:
        self._blocks = blocks
        self._hidden = hidden

    def __call__(self, path: Path) -> CacheSample:
        value = torchfile.load(path)
        if _shape(value) != (self._blocks, self._hidden):
            raise BadTensors(
                f"{path}: is not a list of {self._blocks} states [S, {self._hidden}] with {IDS} [S], as the rest"
            )
        return _Sample(path, value)


class _Sample(CacheSample):
    def __init__(self, path: Path, value: dict[str, Any]) -> None:
        self.name = path.name
        self._value = value

    @cached_property
    def token_ids(self) -> Ids:
        return torchfile.integers(self._value[IDS])

    @cached_property
    def loss_mask(self) -> Ids | None:
        mask: Any = self._value.get(MASK)
        right = torchfile.is_tensor(mask) and mask.shape == self._value[IDS].shape
        return torchfile.integers(mask) if right else None

    def slot(self, index: int, start: int, stop: int) -> Floats:
        states = self._value[STATES]
        if not 0 <= index < len(states) - 1:
            raise BadTensors(f"{self.name}: has no aux slot {index}, only {len(states) - 1}")
        return torchfile.rows(states[index], start, stop)

    def final(self, start: int, stop: int) -> Floats | None:
        return torchfile.rows(self._value[STATES][-1], start, stop)


def _side(path: Path) -> _SideFile | None:
    try:
        return _SideFile(read_config(path)[1]) if path.is_file() else None
    except BadConfig:
        return None  # a damaged side file claims nothing; the states themselves are still there


def _first(files: tuple[Path, ...]) -> tuple[int, int] | None:
    """(blocks, H) of the first file of this layout, or None when none of the first few is."""
    damaged: BadTensors | None = None
    for file in files[:_TRIES]:
        try:
            shape = _shape(torchfile.load(file))
        except BadTensors as error:
            damaged = damaged or error
            continue
        if shape is not None:
            return shape
    if damaged is not None:
        raise damaged
    return None


def _shape(value: Any) -> tuple[int, int] | None:
    """(blocks, H) when it is a sample of this layout: at least one aux state and a final one, all of one shape."""
    if not isinstance(value, dict):
        return None
    states: Any = value.get(STATES)
    ids: Any = value.get(IDS)
    if not isinstance(states, (list, tuple)) or len(states) < 2 or not torchfile.is_tensor(ids) or ids.dim() != 1:
        return None
    if not all(torchfile.is_tensor(state) and state.dim() == 2 for state in states):
        return None
    shapes = {tuple(state.shape) for state in states}
    if len(shapes) != 1 or states[0].shape[0] != ids.shape[0] or not states[0].is_floating_point():
        return None
    return len(states), int(states[0].shape[1])


READER = _Reader()
