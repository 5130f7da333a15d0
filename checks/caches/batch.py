"""Files that hold several samples as rows of one batch: taken apart into the dicts of one sample each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from checks.caches.array import Array

MOST = 1 << 20
"""No file holds more samples than this; a tensor may claim any number of rows in a few bytes."""


class Batch(Sequence[Mapping[str, Any]]):
    """The samples of a dict of arrays `[B, …]`."""

    def __init__(self, value: Mapping[str, Any], count: int) -> None:
        self._value = value
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return [self[item] for item in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        return {key: self._row(item, index) for key, item in self._value.items()}

    def _row(self, item: Any, index: int) -> Any:
        return item.at(index) if isinstance(item, Array) and item.shape[:1] == (self._count,) else item


def rows_of(value: object, ids: str) -> Batch | None:
    """The rows of a batch whose token ids `[B, S]` stand under a key; None when they do not."""
    array = value.get(ids) if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(array, Array) or not array.whole or len(array.shape) != 2:
        return None
    return Batch(value, array.shape[0]) if 0 < array.shape[0] <= MOST and array.shape[1] > 0 else None
