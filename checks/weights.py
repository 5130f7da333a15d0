"""The weights of a checkpoint folder: tensors by name over one safetensors file or the shards of an index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checks.errors import BadTensors
from checks.regular import open_regular
from checks.tensors import TensorInfo, Values, read_header, read_rows

INDEX = "model.safetensors.index.json"
MAX_INDEX = 100_000_000
"""Bytes; a thousand experts over a hundred layers take a third of it."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


class Weights:
    """Tensors by name. Headers of an index's shards are read when one of their tensors is asked for."""

    def __init__(self, path: Path, info: Mapping[str, TensorInfo], files: tuple[Path, ...], notes: tuple[str, ...]):
        self.path = path
        self.info = info
        """Name to TensorInfo. Looking a name up raises BadTensors when its shard is missing or damaged."""
        self.files = files
        self.notes = notes
        """What a reader should know of the folder: files that were left out, and why."""

    def read(self, name: str) -> Values:
        """The whole tensor: floats as float32, integers and bool as they are. Raises BadTensors, also when absent."""
        if name not in self.info:
            raise BadTensors(f"{self.path}: no tensor {name!r}")
        info = self.info[name]
        return read_rows(info, 0, info.rows)


def open_weights(path: Path) -> Weights | None:
    """The weights in a folder, or in one .safetensors file; None when there are none.

    A folder is read by its index where it has one, else as the union of its safetensors files. Pickled weights are
    left out and named in `notes`. Raises BadTensors on a damaged index or, without an index, a damaged file.
    """
    if path.is_file():
        return Weights(path, read_header(path), (path,), ()) if path.suffix == ".safetensors" else None
    if not path.is_dir():
        return None
    try:
        names = sorted(item.name for item in path.iterdir())
    except OSError as error:
        raise BadTensors(f"{path}: cannot be listed: {error.strerror or error}") from None
    pickles = [name for name in names if name.endswith(PICKLES)]
    notes = [f"{', '.join(pickles[:3])} left out: only safetensors are read"] if pickles else []
    if INDEX in names:
        shards = _Shards(path, _weight_map(path / INDEX))
        return Weights(path, shards, shards.files, tuple(notes))
    files = [path / name for name in names if name.endswith(".safetensors")]
    # A folder may hold a second copy under another scheme of names (consolidated.safetensors): the standard one wins.
    standard = [file for file in files if file.name.startswith("model")]
    if not (standard or files):
        return None
    merged: dict[str, TensorInfo] = {}
    for file in standard or files:
        for name, info in read_header(file).items():
            if merged.setdefault(name, info) is not info:
                notes.append(f"{name} stands in {merged[name].file.name} and {file.name}; the first is taken")
    return Weights(path, merged, tuple(standard or files), tuple(notes))


def pickled(path: Path) -> str:
    """The name of a pickled file of weights in a checkpoint's folder, or beside its config.json; "" without one."""
    folder = path if path.is_dir() else path.parent
    try:
        return min((item.name for item in folder.iterdir() if item.name.endswith(PICKLES)), default="")
    except OSError:
        return ""


class _Shards(Mapping[str, TensorInfo]):
    """The tensors of an index, each looked up in the header of its own shard."""

    def __init__(self, folder: Path, weight_map: dict[str, str]) -> None:
        self._folder = folder
        self._map = weight_map
        self._headers: dict[str, dict[str, TensorInfo]] = {}
        self.files = tuple(folder / name for name in sorted(set(weight_map.values())))

    def __getitem__(self, name: str) -> TensorInfo:
        shard = self._map[name]
        if shard not in self._headers:
            if not (self._folder / shard).is_file():
                raise BadTensors(f"{self._folder}: {shard} is missing, and {INDEX} says it holds {name!r}")
            self._headers[shard] = read_header(self._folder / shard)
        header = self._headers[shard]
        if name not in header:
            raise BadTensors(f"{self._folder / shard}: lacks {name!r}, which {INDEX} says it holds")
        return header[name]

    def __contains__(self, name: object) -> bool:
        return name in self._map

    def __iter__(self) -> Iterator[str]:
        return iter(self._map)

    def __len__(self) -> int:
        return len(self._map)


def _weight_map(path: Path) -> dict[str, str]:
    try:
        with open_regular(path) as file:
            data = file.read(MAX_INDEX + 1)
        if len(data) > MAX_INDEX:
            raise ValueError(f"it is larger than {MAX_INDEX // 1_000_000} MB")
        raw: Any = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise BadTensors(f"{path}: cannot be read as JSON: {str(error)[:120]}") from None
    names = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(names, dict) or not all(isinstance(value, str) for value in names.values()):
        raise BadTensors(f"{path}: has no weight_map of tensor names to files")
    for value in names.values():
        # An index that points out of its folder is damaged, or means to have something else read.
        if "/" in value or "\\" in value or value in ("", ".", ".."):
            raise BadTensors(f"{path}: names the file {value!r}, which is not in the folder")
    return dict(names)
