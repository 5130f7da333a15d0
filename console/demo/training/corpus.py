"""Owns the text both models learn from: the standard library's own sources, split by file into train and held out."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import numpy as np

BOS, EOS, PAD, UNK, VOCAB = 256, 257, 258, 259, 260

# Tables and generated text (code pages, help topics) would teach the model to count, not to write Python.
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "__pycache__", "test", "tests", "idle_test", "encodings", "pydoc_data", "lib2to3"}
)
HELD_OUT_ONE_IN = 16


def files(held_out: bool) -> list[Path]:
    """Library sources of one side of the split, sorted; the side depends only on the file's path inside the library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    chosen = []
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if SKIPPED_FOLDERS.intersection(inside.parts):
            continue
        digest = hashlib.sha256(inside.as_posix().encode()).digest()
        if (digest[0] % HELD_OUT_ONE_IN == 0) == held_out:
            chosen.append(path)
    return chosen


def stream(held_out: bool) -> np.ndarray:
    """All files of one side as one row of token ids [T] int64: bos, the file's bytes, eos, and the next file."""
    parts: list[np.ndarray] = []
    for path in files(held_out):
        body = np.frombuffer(path.read_bytes(), dtype=np.uint8).astype(np.int64)
        parts += [np.array([BOS]), body, np.array([EOS])]
    return np.concatenate(parts).astype(np.int64)


def rows(tokens: np.ndarray, count: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """`count` windows of `length` ids at random offsets of the stream, [count, length] int64."""
    starts = rng.integers(0, len(tokens) - length, size=count)
    return np.asarray(tokens[starts[:, None] + np.arange(length)])
