"""Whole tensors in tiles that stay in the processor's cache: two held against each other, or one proven finite.

However large a file is, a tile of each tensor is all that is held; the buffers are reused, for allocating and filling
new pages costs more than the arithmetic on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from checks.errors import BadTensors
from checks.tensors import TensorInfo, Values, itemsize, open_tensor, read_header, read_into, reads_as

Floats = npt.NDArray[np.float32]

TILE = 48 * 1024
"""Elements of a tile: 192 KB of float32, three of which fit a second-level cache."""

SCAN = 128 * 1024
"""Bytes of a piece of a scan, which is looked at as it lies."""

Step = Optional[Callable[[int, int], None]]


def row_products(a: Floats, b: Floats) -> Floats:
    """a·b of each pair of rows [..., H] -> [...], broadcast."""
    found: Floats = _VECDOT(a, b) if _VECDOT is not None else np.einsum("...i,...i->...", a, b)
    return found


_VECDOT: Any = getattr(np, "vecdot", None)  # from numpy 2.0 on


@dataclass(frozen=True)
class Difference:
    """What two tensors of rows [P, H] differ by: over all elements, and per row the distance and the cosine [P].

    `relative` is |a - b| / |a|. Not finite where a row is not.
    """

    largest: float
    mean: float
    relative: npt.NDArray[np.float64]
    cosine: npt.NDArray[np.float64]


def difference(a: TensorInfo, b: TensorInfo, step: Step = None) -> Difference:
    """Hold two tensors of floats of one shape against each other, tile by tile. Raises BadTensors."""
    if a.shape != b.shape or len(a.shape) < 2:
        raise BadTensors(f"{a.name} {list(a.shape)} and {b.name} {list(b.shape)} are not rows of one shape")
    width = 1
    for length in a.row_shape:
        width *= length
    count = max(TILE // max(width, 1), 1)
    apart = np.empty((count, width), np.float32)
    squares = np.zeros((4, a.rows), np.float64)
    largest, total = 0.0, 0.0
    with _Tiles(a, width, count) as left, _Tiles(b, width, count) as right, np.errstate(all="ignore"):
        for start in range(0, a.rows, count):
            stop = min(start + count, a.rows)
            x, y, d = left.rows(start, stop), right.rows(start, stop), apart[: stop - start]
            np.subtract(x, y, out=d)
            for kind, (one, other) in enumerate(((x, x), (y, y), (x, y), (d, d))):
                squares[kind, start:stop] = row_products(one, other)
            np.abs(d, out=d)
            largest = max(largest, float(d.max(initial=0)))
            total += float(d.sum())
            if step is not None:
                step(stop, a.rows)
        own, others, product, gap = squares
        return Difference(largest, total / max(a.rows * width, 1), np.sqrt(gap / own), product / np.sqrt(own * others))


@dataclass(frozen=True)
class Broken:
    """A tensor with values that are not finite: how many, and the first row [of its first axis] that has one."""

    name: str
    values: int
    row: int


def scan_file(path: Path, step: Step = None) -> list[Broken]:
    """Prove a safetensors file's header and shapes, and that every float in it is finite. Raises BadTensors.

    bfloat16 and float16 are looked at as they lie: a value is not finite when all bits of its exponent are set.
    """
    header = read_header(path)
    found = []
    for done, info in enumerate(header.values()):
        broken = _scan(info)
        if broken is not None:
            found.append(broken)
        if step is not None:
            step(done + 1, len(header))
    return found


_EXPONENT = {"BF16": 0x7F80, "F16": 0x7C00}


def _scan(info: TensorInfo) -> Broken | None:
    if not info.dtype.startswith(("F", "BF")) or not reads_as(info.dtype):
        return None
    size = itemsize(info)
    limit = _EXPONENT.get(info.dtype)
    piece = np.empty(SCAN // size, reads_as(info.dtype) if limit is None else "<u2")
    values, first = 0, -1
    with open_tensor(info) as file:
        for at, part in _pieces(file, info, piece, size):
            if limit is not None:
                # As signed numbers the positive ones come last, as unsigned ones the negative; each grows with size.
                if part.view("<i2").max() < limit and part.max() < limit + 0x8000:
                    continue
                wrong = (part & 0x7FFF) >= limit
                if not wrong.any():
                    continue
            else:
                wrong = ~np.isfinite(part)
                if not wrong.any():
                    continue
            values += int(np.count_nonzero(wrong))
            first = at + int(wrong.argmax()) if first < 0 else first
    width = 1
    for length in info.row_shape:
        width *= length
    return Broken(info.name, values, first // max(width, 1)) if values else None


def _pieces(file: Any, info: TensorInfo, piece: Values, size: int) -> Iterator[tuple[int, Values]]:
    """(index of the first element, the elements) of piece after piece, all in one buffer."""
    total = (info.end - info.start) // size
    for start in range(0, total, len(piece)):
        part = piece[: min(len(piece), total - start)]
        read_into(file, info, part, info.start + start * size)
        yield start, part


class _Tiles:
    """Tiles of a tensor as float32 [rows, width], all in one buffer: the next call overwrites the last."""

    def __init__(self, info: TensorInfo, width: int, count: int) -> None:
        if not info.dtype.startswith(("F", "BF")):
            raise BadTensors(f"{info.file}: {info.name} is {info.dtype}, not floats")
        self._info = info
        self._step = width * itemsize(info)
        self._raw = np.empty((count, width), reads_as(info.dtype))
        self._wide = np.empty((count, width), np.uint32)
        self._file: Any = None

    def __enter__(self) -> _Tiles:
        self._file = open_tensor(self._info)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def rows(self, start: int, stop: int) -> Floats:
        """Rows `start` to `stop`."""
        raw, wide = self._raw[: stop - start], self._wide[: stop - start]
        read_into(self._file, self._info, raw, self._info.start + start * self._step)
        if self._info.dtype == "BF16":
            np.copyto(wide, raw)
            np.left_shift(wide, np.uint32(16), out=wide)
            return wide.view(np.float32)
        if self._info.dtype == "F32":
            return raw
        out = wide.view(np.float32)
        np.copyto(out, raw, casting="same_kind")
        return out
