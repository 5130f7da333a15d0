"""Datasets that Hugging Face's `datasets` saved to disk: the only module that imports pyarrow.

A folder with `state.json`, which names its arrow files in order. They are mapped; a row is read when it is asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np

from checks.caches.listing import file_name, shown
from checks.errors import BadConfig, BadTensors, NeedsLibrary
from checks.jsonfile import read_config
from checks.tensors import Ids

STATE = "state.json"


class Rows:
    """The rows of a dataset, over all its files."""

    def __init__(self, batches: list[Any], path: Path) -> None:
        self._batches = batches
        self._path = path
        self._ends: list[int] = []
        for batch in batches:
            self._ends.append((self._ends[-1] if self._ends else 0) + int(batch.num_rows))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, index: int, column: str) -> Ids | None:
        """A list of integers in a row, int64; None when the dataset has no such row, column, or list.

        Raises BadTensors when the file became unreadable.
        """
        if not 0 <= index < len(self):
            return None
        at = bisect_right(self._ends, index)
        batch = self._batches[at]
        if column not in batch.schema.names:
            return None
        import pyarrow

        try:
            cell = batch.column(column)[index - (self._ends[at] - int(batch.num_rows))]
            values = getattr(cell, "values", None)
            if values is None or values.null_count or not _whole(pyarrow, values.type):
                return None
            return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.int64)
        except (pyarrow.ArrowException, ValueError, OSError) as error:
            raise BadTensors(f"{self._path}: row {index} cannot be read: {str(error)[:120]}") from None


def open_rows(folder: Path) -> Rows | None:
    """The dataset in a folder or the one above it, where `prepare_data` leaves it; None when there is none.

    Raises NeedsLibrary without pyarrow, BadTensors or BadConfig on damaged files.
    """
    place = next((item for item in (folder, folder.parent) if (item / STATE).is_file()), None)
    if place is None:
        return None
    files = _files(place)
    try:
        import pyarrow
    except ImportError as error:
        raise NeedsLibrary(
            "pyarrow", f"{place} is an arrow dataset, and this python has no pyarrow ({error})"
        ) from None
    batches: list[Any] = []
    for file in files:
        try:
            source = pyarrow.memory_map(str(file), "r")
            batches.extend(pyarrow.ipc.open_stream(source))
        except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
            raise BadTensors(f"{file}: not an arrow stream, or a damaged one: {str(error)[:120]}") from None
    return Rows(batches, place)


def _files(place: Path) -> list[Path]:
    named = read_config(place / STATE)[1].get("_data_files")
    names = [item.get("filename") for item in named if isinstance(item, dict)] if isinstance(named, list) else []
    right = [name for item in names if (name := file_name(item)) is not None]
    if not right:
        which = f" ({shown(names[0])} is none beside it)" if names else ""
        raise BadConfig(f"{place / STATE}: names no data files{which}: save the dataset again")
    return [place / name for name in right]


def _whole(pyarrow: Any, kind: Any) -> bool:
    return bool(pyarrow.types.is_integer(kind) or pyarrow.types.is_boolean(kind))
