"""Whether stored numbers look like hidden states of the dtype they claim: bytes read as another float type do not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checks.distance import quantiles
from checks.tensors import Values, widened

NARROW = 0.995
"""bfloat16 bytes read as float16 have magnitudes of 0.25 to 8 almost without exception, since the five exponent bits of
float16 are the upper ones of bfloat16's eight. Of a state's own numbers at least one in twenty is smaller or larger."""

WIDE = 30.0
"""float16 bytes read as bfloat16 spread over this many powers of two between the 1st and the 99th percentile, and
states over about 10."""

FAINT, LOUD = 1e-8, 1e8
"""Root mean squares no state of a model has: its norms would not see the one, its dtype not hold the other."""

ENOUGH, LOOKED_AT = 512, 8192
"""Numbers it takes to say so, and how many of a block are looked at."""


@dataclass(frozen=True)
class Oddness:
    """Why a block does not look like states."""

    words: str


def oddness(part: Values, dtype: str) -> Oddness | None:
    """What is odd about rows `[rows, H]` stored as `dtype`, bfloat16 also as uint16; None when nothing is."""
    chosen = part.reshape(-1)[:: max(part.size // LOOKED_AT, 1)]
    values = np.abs((widened(chosen) if chosen.dtype == np.uint16 else chosen).astype(np.float64))
    values = values[np.isfinite(values) & (values > 0)]
    if len(values) < ENOUGH:
        return None
    if dtype == "F16" and np.mean((values >= 0.25) & (values < 8)) >= NARROW:
        return Oddness("stored as float16, and its numbers lie as those of bfloat16 bytes read as float16 do")
    low, high = np.log2(quantiles(values, 0.01, 0.99))
    if dtype in ("BF16", "F32") and high - low >= WIDE:
        return Oddness(
            f"its magnitudes spread over {high - low:.0f} powers of two: bytes of another dtype read as {dtype}"
        )
    level = float(np.sqrt(np.mean(values**2)))
    if not FAINT <= level <= LOUD:
        return Oddness(f"its root mean square is {level:.3g}: no state of a model")
    return None
