"""Files that torch wrote: the only module that imports torch, and only `weights_only` loads.

torch is needed where such a file is looked into, so its import waits for that, and its absence is NeedsLibrary.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from checks.errors import BadTensors, NeedsLibrary
from checks.tensors import Floats

# What torch.load and the readers beneath it raise on files that are no torch archive, or hold more than plain values.
_DAMAGE = (
    *(RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError, IndexError, AssertionError),
    *(pickle.UnpicklingError, zipfile.BadZipFile, struct.error),
)


def load(path: Path) -> Any:
    """What a torch.save file holds, its tensors mapped from the file, not read.

    `weights_only`: nothing but tensors and plain containers is ever built. Raises NeedsLibrary, BadTensors.
    """
    torch = _torch(path)
    try:
        return torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise BadTensors(f"{path}: cannot be read: {error.strerror or error}") from None
    except _DAMAGE as error:
        raise _bad(path, error) from None


def is_tensor(value: object) -> bool:
    """Whether it is a torch tensor, told without importing torch."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "dtype") and hasattr(value, "shape")


def rows(tensor: Any, start: int, stop: int) -> Floats:
    """Rows of a tensor as float32; numpy has no bfloat16, so torch converts."""
    return np.ascontiguousarray(tensor[max(start, 0) : stop].detach().float().numpy())


def integers(tensor: Any) -> npt.NDArray[np.int64]:
    """A tensor of integers or bool as int64."""
    return np.asarray(tensor.detach().numpy(), dtype=np.int64)


def describe_file(path: Path) -> list[str]:
    """Keys, shapes and dtypes of a torch file, one text each. Raises NeedsLibrary, BadTensors."""
    value = load(path)
    if isinstance(value, dict):
        return [f"{key} {_describe(item)}" for key, item in value.items()]
    return [_describe(value)]


def _torch(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise NeedsLibrary(
            "torch",
            f"{path} was written by torch, and this python cannot import torch ({error}): name a python that has it "
            "(python under [host], or --python)",
        ) from None
    return torch


def _bad(path: Path, error: BaseException) -> BadTensors:
    first = (str(error) or type(error).__name__).splitlines()[0]
    return BadTensors(f"{path}: not a torch file that can be read with weights_only: {first[:160]}")


def _describe(value: object) -> str:
    if is_tensor(value):
        tensor: Any = value
        return f"{list(tensor.shape)} {str(tensor.dtype).rpartition('.')[2]}"
    if isinstance(value, (list, tuple)):
        return f"list of {len(value)}" + (f" of {_describe(value[0])}" if value else "")
    return type(value).__name__
