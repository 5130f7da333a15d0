"""What the target itself would say next: its greedy tokens from final states, the head read tile by tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from checks.tensors import read_rows

TILE_BYTES = 64 * 2**20
"""Of the head's float32 rows held at a time."""

LOGITS = 2**24
"""Logits held at a time, float32: a tile of the vocabulary over some of the rows."""


def final_norm(rows: npt.NDArray[np.float32], weight: npt.NDArray[np.float32], eps: float) -> npt.NDArray[np.float32]:
    """RMS norm of rows [P, H]: x / sqrt(mean(x^2) + eps) * weight."""
    scale = np.sqrt(np.mean(rows * rows, axis=1, keepdims=True) + np.float32(eps))
    out: npt.NDArray[np.float32] = rows / scale * weight
    return out


def greedy_tokens(
    target: Any, normed: npt.NDArray[np.float32], step: Callable[[int, int], None] | None = None
) -> npt.NDArray[np.int64]:
    """argmax of the target's head over normed final states [P, H]: token ids [P]. Raises BadTensors.

    Scaling and soft caps of logits, which some targets have, keep the order and so are left out.
    """
    info = target.head().info
    vocab, hidden = info.shape
    tile = max(TILE_BYTES // (4 * hidden), 1)
    best = np.full(len(normed), -np.inf, dtype=np.float32)
    ids = np.zeros(len(normed), dtype=np.int64)
    for start in range(0, vocab, tile):
        weight = np.asarray(read_rows(info, start, min(start + tile, vocab)), dtype=np.float32)
        rows = max(LOGITS // len(weight), 1)
        for at in range(0, len(normed), rows):
            logits = normed[at : at + rows] @ weight.T
            winner = logits.argmax(axis=1)
            value = logits[np.arange(len(winner)), winner]
            better = value > best[at : at + rows]
            best[at : at + rows][better] = value[better]
            ids[at : at + rows][better] = winner[better] + start
        if step is not None:
            step(min(start + tile, vocab), vocab)
    return ids


def is_normed(rows: npt.NDArray[np.float32], weight: npt.NDArray[np.float32]) -> tuple[bool, float]:
    """Whether rows [P, H] are outputs of a norm with this weight, and the median of rms(x / weight).

    After an RMS norm, rms(x / weight) is 1 for every token; before it, it is whatever the residual stream has grown
    to. True when nine in ten tokens are within 2 % of 1, which rounding to bfloat16 keeps well.
    """
    size = np.abs(weight)
    used = size > 0.05 * np.median(size)
    with np.errstate(invalid="ignore", over="ignore"):
        level = np.sqrt(np.mean((rows[:, used] / weight[used]).astype(np.float64) ** 2, axis=1))
    level = level[np.isfinite(level)]
    if not len(level):
        return False, float("nan")
    return bool(np.mean(np.abs(level - 1) < 0.02) >= 0.9), float(np.median(level))
