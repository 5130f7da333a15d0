"""The speculators >= 0.5 layout: `hs_{i}.safetensors` with `hidden_states [S, m+1, H]` and `token_ids [S]`.

They are files of vLLM's connector, moved beside an arrow dataset whose row i holds the same ids and the loss mask. The
last block is the final state before the norm. No file says which states the others are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from checks.caches.arrowfile import Rows, open_rows
from checks.caches.cache import Cache, CacheSample, Look, Place
from checks.caches.layout import Layout
from checks.caches.vllm import is_own, parts
from checks.errors import NeedsLibrary, Unreadable
from checks.tensors import Floats, Ids, Values

_NAME = re.compile(r"hs_([0-9]{1,15})\.safetensors")


class _Reader:
    layout = "speculators"

    def open(self, look: Look) -> Cache | None:
        """Files called hs_{i}, with the dataset beside them where it can be read."""
        layout = Layout(self.layout, (".safetensors",), "pre", lambda value, hints: parts(value, hints, True))
        cache = layout.open(look) if is_own(look) else None
        if cache is None:
            return None
        try:
            rows = open_rows(look.listing.folder)
        except (NeedsLibrary, Unreadable) as error:
            return replace(cache, note=f"the loss masks were not read: {error}")
        return replace(cache, open_sample=_open_with(cache.open_sample, rows)) if rows is not None else cache


def _open_with(open_sample: Callable[[Place], CacheSample], rows: Rows) -> Callable[[Place], CacheSample]:
    def open_both(place: Place) -> CacheSample:
        sample = open_sample(place)
        named = _NAME.fullmatch(place.path.name)
        return _WithRow(sample, rows, int(named.group(1))) if named else sample

    return open_both


class _WithRow(CacheSample):
    """A file and the row of the dataset that its number names."""

    def __init__(self, sample: CacheSample, rows: Rows, index: int) -> None:
        self.name = sample.name
        self._sample = sample
        self._rows = rows
        self._index = index

    @property
    def token_ids(self) -> Ids:
        return self._sample.token_ids

    @property
    def loss_mask(self) -> Ids | None:
        own = self._sample.loss_mask
        return own if own is not None else self._rows.read(self._index, "loss_mask")

    def paired_ids(self, offset: int = 0) -> Ids | None:
        beyond = offset == 0 and self._index >= len(self._rows)
        return np.zeros(0, np.int64) if beyond else self._rows.read(self._index + offset, "input_ids")

    @property
    def dtype(self) -> str:
        return self._sample.dtype

    def slot(self, index: int, start: int, stop: int) -> Floats:
        return self._sample.slot(index, start, stop)

    def final(self, start: int, stop: int) -> Floats | None:
        return self._sample.final(start, stop)

    def stored(self, slots: int, start: int, stop: int) -> list[Values]:
        return self._sample.stored(slots, start, stop)


READER = _Reader()
