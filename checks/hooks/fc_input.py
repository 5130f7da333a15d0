"""Writes what a draft's `fc` reads to files from inside the engine: the only code of ours that is loaded into one.

SGLang loads it by `--forward-hooks` (0.5.6 and newer). It writes only while the file `wanted` in its folder names a
number of rows, and only an input of just so many rows: what others ask of the server meanwhile is not kept.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Callable

WANTED, EVERY_RANK = "wanted", "ranks"
"""The file holds `384`, or `384 ranks` where every rank shall write and not only the first."""
FILE = re.compile(r"fc_[0-9]{1,9}_rank([0-9]{1,6})\.safetensors")
"""What a rank writes: its inputs are numbered."""
MAX_BYTES = 1 << 30
"""The largest input that is written."""


def make(config: dict[str, Any]) -> Callable[[Any, tuple[Any, ...], Any], None]:
    """The hook for a config `{"folder": PATH}`. Ranks that are sound hold the same numbers, so one speaks for all."""
    folder = str(config["folder"])

    def hook(module: Any, args: tuple[Any, ...], output: Any) -> None:
        wanted, ranks = _wanted(folder)
        if not wanted or not args or getattr(args[0], "ndim", 0) != 2 or args[0].shape[0] != wanted:
            return
        rank = _rank()
        if rank and not ranks:
            return
        tensor = args[0].detach().float().cpu().contiguous()
        if tensor.numel() * 4 <= MAX_BYTES:
            _write(folder, tensor, rank)

    return hook


def _wanted(folder: str) -> tuple[int, bool]:
    try:
        with open(os.path.join(folder, WANTED), encoding="ascii") as file:
            count, _, ranks = file.read(40).strip().partition(" ")
        return int(count), ranks == EVERY_RANK
    except (OSError, ValueError):
        return 0, False


def _rank() -> int:
    import torch.distributed

    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def _write(folder: str, tensor: Any, rank: int) -> None:
    """One safetensors file with `states` [T, m*H] float32, seen by its name only when it is whole."""
    data = tensor.numpy().tobytes()
    entry = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [0, len(data)]}
    header = json.dumps({"states": entry}).encode("ascii")
    header += b" " * (-len(header) % 8)
    number = sum(name.endswith(f"_rank{rank}.safetensors") for name in os.listdir(folder))
    path = os.path.join(folder, f"fc_{number}_rank{rank}.safetensors")
    with open(path + ".part", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + data)
    os.replace(path + ".part", path)
