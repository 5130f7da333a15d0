"""Arrays of a cache file, whatever the container: a safetensors tensor or a torch one, read a few columns at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Union

import numpy as np

from checks.errors import BadTensors
from checks.tensors import Floats, Ids, TensorInfo, Values, read_header, read_rows, read_slot_rows, read_stored

FLOATS = ("BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2")
INTEGERS = ("I64", "I32", "I16", "I8", "U8", "BOOL")


class Array(ABC):
    """One array of a file. Nothing is read before it is asked for."""

    shape: tuple[int, ...]
    dtype: str
    """As safetensors spells it: BF16, F16, F32, I64, BOOL, …"""

    @abstractmethod
    def at(self, index: int) -> Array:
        """The part at `index` of the first axis: one row of a batch."""

    @abstractmethod
    def read(self, start: int, stop: int, low: int, high: int) -> Floats:
        """Rows `start` to `stop`, columns `low` to `high`, of the array seen as `[S, W]`; float32. Raises BadTensors.

        `high - low` divides both W and `low`: a slot of several.
        """

    def stored(self, start: int, stop: int) -> Values:
        """Rows `start` to `stop` of the array seen as `[S, W]`, as they lie: float32, float16, or bfloat16 as uint16.

        What lies otherwise comes as float32. Raises BadTensors.
        """
        return self.read(start, stop, 0, self.width)

    @abstractmethod
    def integers(self) -> Ids:
        """All of a `[S]` array of integers or bool as int64. Raises BadTensors."""

    @property
    def floating(self) -> bool:
        """Whether it holds floats that can be read."""
        return self.dtype in FLOATS

    @property
    def whole(self) -> bool:
        """Whether it holds integers or bool."""
        return self.dtype in INTEGERS

    @property
    def width(self) -> int:
        """The product of all axes but the first."""
        out = 1
        for length in self.shape[1:]:
            out *= length
        return out

    @property
    def words(self) -> str:
        """Shape and dtype, for people."""
        return f"{list(self.shape)} {self.dtype}"


Value = Union[Array, "list[Any]", Mapping[str, Any], None]
"""What a cache file holds, its tensors as Arrays, other plain containers as they are, anything else as its type's name.
"""


# The eight-bit floats: bits of the exponent, its bias, and whether the largest codes are infinities.
_F8 = {"F8_E4M3": (4, 7, False), "F8_E5M2": (5, 15, True)}

MAX_TOKENS = 1 << 26
"""No text is longer; a tensor may claim any length in a few bytes."""


class FileArray(Array):
    """A tensor of a safetensors file, or of any file whose bytes are laid out like one."""

    def __init__(self, info: TensorInfo) -> None:
        self.info = info
        self.shape = info.shape
        self.dtype = info.dtype

    def at(self, index: int) -> FileArray:
        rows, width = max(self.info.rows, 1), self.info.end - self.info.start
        if not 0 <= index < self.info.rows:
            raise BadTensors(f"{self.info.file}: {self.info.name} has no row {index}")
        start = self.info.start + index * (width // rows)
        return FileArray(replace(self.info, shape=self.shape[1:], start=start, end=start + width // rows))

    def read(self, start: int, stop: int, low: int, high: int) -> Floats:
        rows, wide = self.info.rows, high - low
        slots = self.width // wide if wide > 0 else 0
        if wide <= 0 or slots * wide != self.width or low % wide:
            raise BadTensors(f"{self.info.file}: {self.info.name} {self.words} has no columns {low} to {high}")
        info = replace(self.info, shape=(rows, slots, wide))
        if self.dtype not in _F8:
            return read_slot_rows(info, start, stop, low // wide)
        codes = read_slot_rows(replace(info, dtype="U8"), start, stop, low // wide)
        return _eight_bits(self.dtype)[codes.astype(np.uint8)]

    def stored(self, start: int, stop: int) -> Values:
        if self.dtype not in ("BF16", "F16", "F32"):
            return super().stored(start, stop)
        return read_stored(self.info, start, stop).reshape(-1, self.width)

    def integers(self) -> Ids:
        if not self.whole or self.info.rows * self.width > MAX_TOKENS:
            raise BadTensors(f"{self.info.file}: {self.info.name} is {self.words}, not the integers of one text")
        return np.asarray(read_rows(self.info, 0, self.info.rows), dtype=np.int64).reshape(-1)


class ScaledArray(Array):
    """Eight-bit floats `[S, …]` with one scale a token, as the newer vLLM connector of speculators stores states."""

    def __init__(self, array: Array, scales: Array) -> None:
        self._array = array
        self._scales = scales
        self.shape = array.shape
        self.dtype = array.dtype

    def at(self, index: int) -> ScaledArray:
        raise BadTensors(f"scaled states {self.words} are of one text, and have no batch")

    def read(self, start: int, stop: int, low: int, high: int) -> Floats:
        values = self._array.read(start, stop, low, high)
        return values * self._scales.read(start, stop, 0, 1)[: len(values)]

    def integers(self) -> Ids:
        raise BadTensors(f"scaled states {self.words} stand where integers should")


def load(path: Path) -> Value:
    """What a cache file holds. Raises BadTensors, NeedsLibrary."""
    if path.name.endswith(".safetensors"):
        return {name: FileArray(info) for name, info in read_header(path).items()}
    from checks.caches import torchfile

    value: Value = torchfile.load_arrays(path)
    return value


def describe(value: object, limit: int = 12) -> list[str]:
    """Keys, shapes and dtypes of a file's value, one text each."""
    if isinstance(value, Mapping):
        parts = [f"{str(key)[:60]} {_words(item)}" for key, item in list(value.items())[:limit]]
        return parts + ["…"] * (len(value) > limit)
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return [f"list of {len(value)}, each with {'; '.join(describe(value[0], limit))}"]
    return [_words(value)]


def _words(value: object) -> str:
    if isinstance(value, Array):
        return value.words
    if isinstance(value, (list, tuple)):
        return f"list of {len(value)}" + (f" of {_words(value[0])}" if value else "")
    return value if isinstance(value, str) else type(value).__name__


@lru_cache(maxsize=len(_F8))
def _eight_bits(dtype: str) -> Floats:
    """What each of the 256 codes stands for (OCP 8-bit floating point, 1.0: E4M3 has a NaN and no infinity)."""
    bits, bias, infinite = _F8[dtype]
    mantissa = 7 - bits
    code = np.arange(128)
    exponent, fraction = code >> mantissa, (code & ((1 << mantissa) - 1)) / (1 << mantissa)
    values = np.where(exponent > 0, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias))
    if infinite:
        values[exponent == (1 << bits) - 1] = np.nan
        values[((1 << bits) - 1) << mantissa] = np.inf
    else:
        values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)
