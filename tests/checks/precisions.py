"""How a served target may round, added where it arises: in the weights, and in what each layer reads and gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from tests.checks import pair

Rounding = Callable[[np.ndarray], np.ndarray]


def rounded(values: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest bfloat16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


class Rounded(pair.TinyTarget):
    """A target that computes in bfloat16; `reads` is what becomes of each input of a layer's matrices."""

    def __init__(self, exact: pair.TinyTarget, reads: Rounding | None = None) -> None:
        self.config = exact.config
        self.weights = dict(exact.weights)
        self._reads = reads

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        out = rounded(super().norm(x, name))
        return self._reads(out) if self._reads is not None and ".layers." in name else out

    def _layer(self, x: np.ndarray, prefix: str) -> np.ndarray:
        return rounded(super()._layer(rounded(x), prefix))


def half(exact: pair.TinyTarget) -> pair.TinyTarget:
    """Every layer's input, norms and output in bfloat16."""
    return Rounded(exact)


def weights_in(rounding: Rounding, exact: pair.TinyTarget, reads: Rounding | None = None) -> pair.TinyTarget:
    """The target in bfloat16 with the matrices of its layers rounded so."""
    target = Rounded(exact, reads)
    for name, weight in exact.weights.items():
        if ".layers." in name and weight.ndim == 2:
            target.weights[name] = rounding(weight)
    return target


def integers(values: np.ndarray, bits: int, group: int = 0) -> np.ndarray:
    """To the nearest of 2^bits - 1 steps about zero, one scale a row or a group of a row."""
    most, parts = 2 ** (bits - 1) - 1, _grouped(values, group)
    scale = np.abs(parts).max(-1, keepdims=True) / most + 1e-30
    return _back(np.round(parts / scale) * scale, values)


def from_zero_point(values: np.ndarray, bits: int, group: int) -> np.ndarray:
    """To the nearest of 2^bits steps between the least and the largest of a group, as AWQ and GPTQ keep them."""
    parts = _grouped(values, group)
    low = np.minimum(parts.min(-1, keepdims=True), 0)
    step = (np.maximum(parts.max(-1, keepdims=True), 0) - low) / (2**bits - 1) + 1e-30
    zero = np.round(-low / step)
    return _back((np.clip(np.round(parts / step) + zero, 0, 2**bits - 1) - zero) * step, values)


def floats(values: np.ndarray, mantissa: int, least: int, most: float, group: int = 0) -> np.ndarray:
    """To the nearest small float: `mantissa` bits after the point, exponents from `least` on, magnitudes to `most`.

    One scale for all (group -1), a row (0), or a group of a row. E4M3 is (3, -6, 448), E2M1 is (1, 0, 6).
    """
    parts = values.reshape(1, 1, -1) if group < 0 else _grouped(values, group)
    scale = np.abs(parts).max(-1, keepdims=True) / most + 1e-30
    x = parts / scale
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(x), 1e-30))), least)
    step = 2.0 ** (exponent - mantissa)
    return _back(np.clip(np.round(x / step) * step, -most, most) * scale, values)


def _grouped(values: np.ndarray, group: int) -> np.ndarray:
    return values.reshape(len(values), -1, group or values.shape[1])


def _back(parts: np.ndarray, values: np.ndarray) -> np.ndarray:
    return parts.reshape(values.shape).astype(np.float32)


@dataclass(frozen=True)
class Precision:
    """What a target runs in: its name, and how an exact target is made to."""

    name: str
    make: Callable[[pair.TinyTarget], pair.TinyTarget]


eight, e4m3 = partial(integers, bits=8), partial(floats, mantissa=3, least=-6, most=448.0)
EXACT = Precision("float32", copy.copy)
TUNED = (
    EXACT,
    Precision("bfloat16", half),
    Precision("8 bit", partial(weights_in, eight)),
    Precision("4 bit in groups", partial(weights_in, partial(integers, bits=4, group=32))),
    Precision("4 bit a row", partial(weights_in, partial(integers, bits=4))),
)
HELD_OUT = (
    EXACT,
    Precision("bfloat16", half),
    Precision("8 bit, inputs too", partial(weights_in, eight, reads=eight)),
    Precision("fp8, inputs too", partial(weights_in, partial(e4m3, group=-1), reads=e4m3)),
    Precision("4 bit with zero points", partial(weights_in, partial(from_zero_point, bits=4, group=32))),
    Precision("4-bit floats", partial(weights_in, partial(floats, mantissa=1, least=0, most=6.0, group=16))),
)
