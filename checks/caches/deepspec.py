"""DeepSpec's target cache, version 2: `manifest.json`, `samples.idx` and raw shard files.

A record of the index is sample, shard, length and five byte offsets: ids (int32), attention mask and loss mask (uint8),
target states `[S, mH]` and last states `[S, H]`. The manifest names layers by id: k = id + 1, and -1 is the embedding.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from checks.caches.array import FileArray
from checks.caches.cache import Cache, CacheSample, Claim, Look, Place, claimed
from checks.caches.layout import Block, Parts, PartsSample, slots_of
from checks.caches.listing import file_name, shown
from checks.caches.speculators_v1 import whole_numbers
from checks.errors import BadConfig, BadTensors
from checks.jsonfile import read_config, whole
from checks.regular import open_regular
from checks.tensors import TensorInfo

SIDE, INDEX = "manifest.json", "samples.idx"
RECORD = struct.Struct("<QIIQQQQQ")

MOST_WIDE, MOST_SLOTS = 1 << 20, 1024
"""No state is wider and no draft reads more of them: a manifest can claim anything in a line."""

# What may stand for hidden_dtype, as safetensors spells it, and its bytes.
_DTYPES = {"bfloat16": ("BF16", 2), "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1)}


class _Manifest:
    """The fields of the manifest that reading takes. Raises BadConfig for one that is missing or wrong."""

    def __init__(self, config: dict[str, Any], path: Path) -> None:
        self.folder = path.parent
        hidden, ids = whole(config.get("hidden_size")) or 0, whole_numbers(config.get("target_layer_ids"))
        self.hidden = hidden if hidden <= MOST_WIDE else 0
        self.ids = ids if len(ids) <= MOST_SLOTS else ()
        self.dtype, self.bytes = _DTYPES.get(str(config.get("hidden_dtype")), ("", 0))
        self.samples = whole(config.get("num_samples")) or 0
        shards = config.get("shards")
        names = [item.get("file_name") for item in shards if isinstance(item, dict)] if isinstance(shards, list) else []
        self.shards = [name for item in names if (name := file_name(item)) is not None]
        if not (self.hidden and self.ids and self.dtype and names):
            raise BadConfig(
                f"{path}: a target cache without usable hidden_size, target_layer_ids, hidden_dtype or shards: write "
                "the manifest again"
            )
        if len(self.shards) != len(names):
            number = next(index for index, item in enumerate(names) if file_name(item) is None)
            raise BadConfig(
                f"{path}: shard {number} is named {shown(names[number])}, which is no file beside it: write the "
                "manifest again"
            )


class _Reader:
    layout = "deepspec"

    def open(self, look: Look) -> Cache | None:
        """By the manifest and the index; the shards need no suffix."""
        path, index = look.listing.side(SIDE), look.listing.side(INDEX)
        if path is None or index is None:
            return None
        try:
            manifest = _Manifest(read_config(path)[1], path)
        except BadConfig as error:
            raise BadTensors(str(error)) from None
        count = _size(index) // RECORD.size
        return Cache(
            look.listing.path,
            self.layout,
            tuple(Place(index, number) for number in range(count)),
            len(manifest.ids),
            manifest.hidden,
            "unknown",
            claimed(look.hints.states, Claim(tuple(value + 1 for value in manifest.ids), SIDE)),
            partial(_open, manifest),
            look.listing.label,
            proof=partial(_proof, manifest, index),
        )


def _open(manifest: _Manifest, place: Place) -> CacheSample:
    try:
        with open_regular(place.path) as file:
            file.seek(place.index * RECORD.size)
            raw = file.read(RECORD.size)
    except OSError as error:
        raise BadTensors(f"{place.path}: cannot be read: {error.strerror or error}") from None
    if len(raw) < RECORD.size:
        raise BadTensors(f"{place.path}: truncated: has no whole record {place.index}")
    _, shard, length, ids, _, mask, states, last = RECORD.unpack(raw)
    if shard >= len(manifest.shards):
        raise BadTensors(f"{place.path}: record {place.index} names shard {shard} of {len(manifest.shards)}")
    file_path = manifest.folder / manifest.shards[shard]
    size, m, hidden = _size(file_path), len(manifest.ids), manifest.hidden

    def array(name: str, dtype: str, shape: tuple[int, ...], start: int, width: int) -> FileArray:
        end = start + length * width
        if end > size:
            raise BadTensors(
                f"{file_path}: truncated: {name} of sample {place.index} ends at byte {end} and the file has {size}"
            )
        return FileArray(TensorInfo(name, dtype, shape, file_path, start, end))

    aux = array("target_hidden_states", manifest.dtype, (length, m * hidden), states, m * hidden * manifest.bytes)
    final = array("target_last_hidden_states", manifest.dtype, (length, hidden), last, hidden * manifest.bytes)
    tokens = array("input_ids", "I32", (length,), ids, 4)
    marks = array("loss_mask", "U8", (length,), mask, 1)
    return PartsSample(file_path, Parts(tokens, marks, slots_of(aux, hidden), Block(final, 0), hidden))


def _proof(manifest: _Manifest, index: Path) -> Sequence[tuple[str, str]]:
    """The index against the manifest, and the shards that are missing or empty."""
    wrong = []
    size = _size(index)
    if size != manifest.samples * RECORD.size:
        wrong.append(
            (
                INDEX,
                f"{size} bytes, where {manifest.samples} samples take {manifest.samples * RECORD.size}: truncated, or "
                "of another run than the manifest",
            )
        )
    for name in manifest.shards:
        try:
            if not os.path.getsize(manifest.folder / name):
                wrong.append((name, "empty (0 bytes)"))
        except OSError as error:
            wrong.append((name, f"the manifest names it, and it cannot be read: {error.strerror or error}"))
    return wrong


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise BadTensors(f"{path}: cannot be read: {error.strerror or error}") from None


READER = _Reader()
