"""The speculators >= 0.5 layout: safetensors with `hidden_states [S, m+1, H]` and `token_ids [S]`, by any name.

The same two keys are what vLLM's hidden-states connector writes; speculators moves those files to `hs_{i}.safetensors`
beside an arrow dataset, which keeps the loss mask. No file says which states it holds. In speculators' own files the
last block is the final state before the norm; in a file by any other name it is one unless the draft reads as many
states as there are blocks. What the user names decides over both.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np

from checks.caches.cache import Cache, CacheSample, claimed
from checks.caches.listing import Listing
from checks.errors import BadTensors
from checks.tensors import Floats, Ids, TensorInfo, read_header, read_rows, read_slot_rows

STATES, IDS, MASK = "hidden_states", "token_ids", "loss_mask"
_FLOATS = ("BF16", "F16", "F32", "F64")
_INTEGERS = ("I64", "I32", "U8", "BOOL")

# How many files may be damaged or foreign before the folder as a whole is taken to be something else.
_TRIES = 8


class _Reader:
    layout = "speculators"

    def open(self, listing: Listing, states: tuple[int, ...], slots: int) -> Cache | None:
        files = listing.having(".safetensors")
        first = _first(files)
        if first is None:
            return None
        blocks, hidden = first.shape[1:]
        own = first.file.name.startswith("hs_")
        with_final = blocks > 1 and blocks != len(states) and (own or blocks != slots)
        # A file that is not speculators' own promises nothing of the last block's norm.
        final = "none" if not with_final else "pre" if own else "unknown"
        aux = blocks - 1 if with_final else blocks
        return Cache(
            listing.path, self.layout, files, aux, hidden, final, claimed(states, None), _Open(aux, hidden, with_final)
        )


class _Open:
    """Opens a sample and holds it to the shape the first file had."""

    def __init__(self, aux: int, hidden: int, with_final: bool) -> None:
        self._aux = aux
        self._hidden = hidden
        self._with_final = with_final

    def __call__(self, path: Path) -> CacheSample:
        header = read_header(path)
        states = _fits(header)
        if states is None:
            raise BadTensors(f"{path}: has no {STATES} [S, m, H] and {IDS} [S], unlike the rest of the cache")
        expected = (self._aux + self._with_final, self._hidden)
        if states.shape[1:] != expected:
            raise BadTensors(
                f"{path}: {STATES} is {list(states.shape)}, and the rest of the cache [S, {expected[0]}, {expected[1]}]"
            )
        return _Sample(path, header, self._aux, self._with_final)


class _Sample(CacheSample):
    def __init__(self, path: Path, header: dict[str, TensorInfo], aux: int, with_final: bool) -> None:
        self.name = path.name
        self._header = header
        self._aux = aux
        self._with_final = with_final

    @cached_property
    def token_ids(self) -> Ids:
        info = self._header[IDS]
        return np.asarray(read_rows(info, 0, info.rows), dtype=np.int64)

    @cached_property
    def loss_mask(self) -> Ids | None:
        info = self._header.get(MASK)
        if info is None or info.dtype not in _INTEGERS or info.shape != self._header[IDS].shape:
            return None
        return np.asarray(read_rows(info, 0, info.rows), dtype=np.int64)

    def slot(self, index: int, start: int, stop: int) -> Floats:
        if not 0 <= index < self._aux:
            raise BadTensors(f"{self.name}: has no aux slot {index}, only {self._aux}")
        return read_slot_rows(self._header[STATES], start, stop, index)

    def final(self, start: int, stop: int) -> Floats | None:
        return read_slot_rows(self._header[STATES], start, stop, self._aux) if self._with_final else None


def _first(files: tuple[Path, ...]) -> TensorInfo | None:
    """The states of the first file of this layout. One damaged file must not hide a cache; all damaged ones do."""
    damaged: BadTensors | None = None
    for file in files[:_TRIES]:
        try:
            states = _fits(read_header(file))
        except BadTensors as error:
            damaged = damaged or error
            continue
        if states is not None:
            return states
    if damaged is not None:
        raise damaged
    return None


def _fits(header: dict[str, TensorInfo]) -> TensorInfo | None:
    """The states when the header is of this layout; keys beyond the two are no hindrance."""
    states, ids = header.get(STATES), header.get(IDS)
    if states is None or ids is None or len(states.shape) != 3 or len(ids.shape) != 1:
        return None
    right = states.dtype in _FLOATS and ids.dtype in _INTEGERS and states.shape[0] == ids.shape[0]
    return states if right and states.shape[1] > 0 and states.shape[2] > 0 else None


READER = _Reader()
