"""Rows of floats in tiles that stay in the processor's cache: two tensors held against each other, one looked through.

However large a file is, a tile of each tensor is all that is held; the buffers are reused, for allocating and filling
new pages costs more than the arithmetic on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from checks.errors import BadTensors
from checks.tensors import TensorInfo, Values, itemsize, open_tensor, read_into, reads_as, widened

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

TILE = 48 * 1024
"""Elements of a tile: 192 KB of float32, three of which fit a second-level cache."""

SCAN = 512 * 1024
"""Bytes of a piece of a tensor that is looked through as it lies."""

Step = Optional[Callable[[int, int], None]]


def row_products(a: Floats, b: Floats) -> Floats:
    """a·b of each pair of rows [..., H] -> [...], broadcast."""
    found: Floats = _VECDOT(a, b) if _VECDOT is not None else np.einsum("...i,...i->...", a, b)
    return found


_VECDOT: Any = getattr(np, "vecdot", None)  # from numpy 2.0 on


def _width(info: TensorInfo) -> int:
    """Numbers in a row."""
    return math.prod(info.row_shape)


@dataclass(frozen=True)
class Difference:
    """What two tensors of rows [P, H] differ by: over all elements, and per row the distance and the cosine [P].

    `relative` is |a - b| / |a|. Not finite where a row is not.
    """

    largest: float
    mean: float
    relative: Doubles
    cosine: Doubles


def difference(a: TensorInfo, b: TensorInfo, step: Step = None) -> Difference:
    """Hold two tensors of floats of one shape against each other, tile by tile. Raises BadTensors."""
    if a.shape != b.shape or len(a.shape) < 2:
        raise BadTensors(f"{a.name} {list(a.shape)} and {b.name} {list(b.shape)} are not rows of one shape")
    width = _width(a)
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


def largest(rows: Values) -> Doubles:
    """The largest magnitude of each row [..., W] of floats, bfloat16 also as uint16: NaN where one is, and infinity."""
    return _numbers(_peaks(rows), rows.dtype)


_INTEGERS: dict[int, tuple[Any, Any, int]] = {
    2: (np.int16, np.uint16, 0x7FFF),
    4: (np.int32, np.uint32, 0x7FFFFFFF),
    8: (np.int64, np.uint64, 0x7FFFFFFFFFFFFFFF),
}


_BRAIN_INFINITY = 0x7F80


def _peaks(rows: Values) -> Any:
    """The bits of the largest magnitude of each row.

    Without their sign, floats are in the order of their bits: zero first, and the NaNs beyond infinity. As signed
    integers the positive ones come last, as unsigned ones the negative: two passes over the rows as they lie.
    """
    signed, unsigned, magnitude = _INTEGERS[rows.itemsize]
    positive = np.maximum.reduce(rows.view(signed), axis=-1)
    other = np.maximum.reduce(rows.view(unsigned), axis=-1) & unsigned(magnitude)
    return np.maximum(np.maximum(positive, signed(0)).astype(unsigned), other)


def _numbers(bits: Values, dtype: np.dtype[Any]) -> Doubles:
    with np.errstate(invalid="ignore"):
        return (widened(bits) if dtype == np.uint16 else bits.view(dtype)).astype(np.float64)


@dataclass
class Looked:
    """What the rows of a tensor showed, as far as they were read.

    `bad` values are NaN or infinite, the first of them in row `first_bad`. `only` is the one number all others are.
    """

    rows: int = 0
    bad: int = 0
    first_bad: int = -1
    only: float | None = None


def look_through(info: TensorInfo, ranges: Iterable[tuple[int, int]]) -> Looked:
    """Read rows [start, stop) of a tensor of floats, range after range, as they lie. Raises BadTensors."""
    width, size = _width(info), itemsize(info)
    piece = np.empty(SCAN // size, reads_as(info.dtype))
    found, seen = Looked(), set[float]()
    infinity = _BRAIN_INFINITY if info.dtype == "BF16" else _peaks(np.array([np.inf], piece.dtype))
    with open_tensor(info) as file:
        for start, stop in ranges:
            found.rows += stop - start
            for at in range(start * width, stop * width, len(piece)):
                part = piece[: stop * width - at]
                read_into(file, info, part, info.start + at * size)
                peak = _peaks(part)
                if peak >= infinity:
                    wrong = ~np.isfinite(_numbers(part, part.dtype))
                    found.first_bad = (at + int(wrong.argmax())) // width if not found.bad else found.first_bad
                    found.bad += int(np.count_nonzero(wrong))
                elif len(seen) < 2:
                    seen |= {0.0} if peak == 0 else {float(item) for item in _numbers(_ends(part), part.dtype)}
    found.only = seen.pop() if len(seen) == 1 else None
    return found


def _ends(part: Values) -> Values:
    """The least and the largest of the bits, which are two where not all are one."""
    bits = part.view(f"<u{part.itemsize}")
    return np.array([bits.min(), bits.max()])


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
