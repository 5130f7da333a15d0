"""The draft's weights from its checkpoint, as far as memory allows."""

from __future__ import annotations

import math
from pathlib import Path

from checks.draft import Draft
from checks.eagle3.forward import Drafter
from checks.eagle3.layout import CannotReplay, common_name, draft_shape

MOST = 32 * 2**30
"""Bytes of float32 that are ever loaded. The largest drafts known, of 16,384 wide targets, take 20 GB."""

_FLOATS, _WHOLE = ("F64", "F32", "F16", "BF16"), ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")

SHARE = 0.5
"""Of the memory that is free: the server and its page cache live on the same host."""


def load_drafter(draft: Draft) -> Drafter:
    """The draft's weights in float32, ready to run in numpy.

    Memory is that of the weights without the embedding, 4 bytes each. Raises CannotReplay naming what is not computed
    here, or what does not fit in memory, and BadTensors.
    """
    weights = draft.weights
    if weights is None:
        raise CannotReplay("it has no weights beside its config")
    wanted: dict[str, str] = {}
    for stored in weights.info:
        common = common_name(stored)
        if common and wanted.setdefault(common, stored) != stored:
            raise CannotReplay(f"{wanted[common]} and {stored} are one tensor to the engines")
    held = {common: weights.info[stored] for common, stored in wanted.items()}
    shapes = {common: info.shape for common, info in held.items()}
    shape = draft_shape(draft.config, shapes)
    for common, info in held.items():
        if info.dtype not in (_WHOLE if common == "d2t" else _FLOATS):
            what = "no offsets of token ids" if common == "d2t" else "quantised or no weights"
            raise CannotReplay(f"{info.name} is of {info.dtype}: {what}")
    _fits_in_memory(sum(4 * math.prod(size) for size in shapes.values()))
    return Drafter(shape, {common: weights.read(stored) for common, stored in wanted.items()})


def _fits_in_memory(size: int) -> None:
    """Raises CannotReplay where weights of so many bytes in float32 would take too much of it."""
    free = free_memory()
    bound = MOST if free is None else min(MOST, int(SHARE * free))
    if size > bound:
        why = f"half of the {_gib(free)} that are free" if free is not None and bound < MOST else "the most ever loaded"
        raise CannotReplay(
            f"its weights take {_gib(size)} in float32, more than {_gib(bound)}, {why}; "
            "run the check where more memory is free"
        )


def free_memory() -> int | None:
    """Bytes that can still be had: the system's, or what a container may still take; None where nothing tells."""
    found = [_available(), _left_in_container()]
    return min((size for size in found if size is not None), default=None)


def _available() -> int | None:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            words = line.split()
            return int(words[1]) << 10 if len(words) > 1 and words[1].isdecimal() else None
    return None


def _left_in_container() -> int | None:
    """What cgroup v2 lets this container take on top of what it holds; page cache counts as free."""
    limit, used = _text("/sys/fs/cgroup/memory.max").strip(), _text("/sys/fs/cgroup/memory.current").strip()
    if not (limit.isdecimal() and used.isdecimal()):
        return None
    rows = (line.split() for line in _text("/sys/fs/cgroup/memory.stat").splitlines())
    cached = sum(int(row[1]) for row in rows if len(row) == 2 and row[0] in ("inactive_file", "active_file"))
    return max(int(limit) - int(used) + cached, 0)


def _text(path: str) -> str:
    try:
        return Path(path).read_text("ascii")
    except (OSError, ValueError):
        return ""


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
