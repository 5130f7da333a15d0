"""Files that torch wrote: the only module that imports torch, and only `weights_only` loads.

torch is needed where such a file is looked into, so its import waits for that, and its absence is NeedsLibrary. A
compressed file is unpacked, up to a limit, into a temporary one that is gone when its tensors are.
"""

from __future__ import annotations

import gzip
import os
import pickle
import re
import struct
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from checks.caches.array import MAX_TOKENS, Array, Value
from checks.errors import BadTensors, NeedsLibrary
from checks.regular import open_regular
from checks.tensors import Floats, Ids

# What torch.load and the readers beneath it raise on files that are no torch archive, or hold more than plain values.
_DAMAGE = (
    *(RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError, IndexError, AssertionError),
    *(pickle.UnpicklingError, zipfile.BadZipFile, struct.error, OverflowError, MemoryError, ImportError),
)

MAX_UNPACKED = 8 << 30
"""A sample of 32 000 tokens at four states of 16 384 is 4 GB; what unpacks to more than twice that is no sample."""

MOST_PACKED, SPARE = 50, 64 << 20
"""States hardly shrink when packed; what grows beyond 50 times its size, and 64 MB, is padding or a bomb."""

_PIECE = 1 << 20

# torch's names of dtypes as safetensors spells them.
_DTYPES = {
    "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip

# What torch says of a pickle that names a class or a function, and of other files that are no torch archive.
_OBJECT = re.compile(r"\bGLOBAL ([A-Za-z_][\w.]{0,79})")
_AGAIN = "delete it and write it again"
_REASONS = (
    ("central directory", f"truncated: its archive has no end; {_AGAIN}"),
    ("zip archive", f"a damaged archive, or none that torch wrote; {_AGAIN}"),
    ("in a subdirectory", f"an archive that torch did not write; {_AGAIN}"),
    ("mmap can only", f"not a file that torch wrote, though its name says so; {_AGAIN}"),
    ("TorchScript", "a compiled module and no sample: name the folder of the cache"),
    ("Weights only", f"a damaged pickle, or of more than tensors and plain values: it is not opened; {_AGAIN}"),
)

# Plain values are kept: layouts carry ids and lengths in them. Anything else is named by its type.
_PLAIN = (str, int, float, bool, type(None))


def load_arrays(path: Path) -> Value:
    """What a torch file holds, its tensors as arrays mapped from the file. Raises NeedsLibrary, BadTensors."""
    value: Value = _arrays(load(path), path, 0)
    return value


def load(path: Path) -> Any:
    """What a torch.save file holds, its tensors mapped from the file, not read.

    `weights_only`: nothing but tensors and plain containers is ever built. Raises NeedsLibrary, BadTensors.
    """
    torch = _torch(path)
    try:
        if path.name.endswith(".gz"):
            return _load_packed(torch, path)
        return _load_plain(torch, path)
    except OSError as error:
        raise BadTensors(f"{path}: cannot be read: {error.strerror or error}") from None
    except _DAMAGE as error:
        raise _bad(path, error) from None


class TorchArray(Array):
    """A tensor; numpy has no bfloat16, so torch converts what is read."""

    def __init__(self, tensor: Any, path: Path) -> None:
        self._tensor = tensor
        self._path = path
        self.shape = tuple(int(length) for length in tensor.shape)
        name = str(tensor.dtype).rpartition(".")[2]
        strange = str(tensor.layout) != "torch.strided" or tensor.is_quantized or tensor.is_meta
        self.dtype = f"{tensor.layout} {name}" if strange else _DTYPES.get(name, name)

    def at(self, index: int) -> TorchArray:
        if not self.shape or not 0 <= index < self.shape[0]:
            raise BadTensors(f"{self._path}: a tensor {self.words} has no row {index}")
        return TorchArray(self._tensor[index], self._path)

    def read(self, start: int, stop: int, low: int, high: int) -> Floats:
        if not self.floating or high <= low or high > self.width or len(self.shape) < 2:
            raise BadTensors(f"{self._path}: a tensor {self.words} has no columns {low} to {high} of numbers")
        start, stop = max(start, 0), max(min(stop, self.shape[0]), max(start, 0))
        try:
            part = self._tensor[start:stop]
            part = part if part.dim() == 2 else part.reshape(stop - start, self.width)
            return np.ascontiguousarray(part[:, low:high].detach().float().numpy())
        except _DAMAGE as error:
            raise _bad(self._path, error) from None

    def integers(self) -> Ids:
        if not self.whole or self._tensor.numel() > MAX_TOKENS:
            raise BadTensors(f"{self._path}: a tensor {self.words} stands where the integers of one text should")
        try:
            return np.asarray(self._tensor.detach().numpy(), dtype=np.int64).reshape(-1)
        except _DAMAGE as error:
            raise _bad(self._path, error) from None


def _arrays(value: Any, path: Path, depth: int) -> Any:
    if _is_tensor(value):
        return TorchArray(value, path)
    if depth < 3 and isinstance(value, dict):
        return {str(key): _arrays(item, path, depth + 1) for key, item in value.items()}
    if depth < 3 and isinstance(value, (list, tuple)):
        return [_arrays(item, path, depth + 1) for item in value]
    return value if isinstance(value, _PLAIN) else type(value).__name__


def _is_tensor(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "layout") and hasattr(value, "shape")


def _load_plain(torch: Any, path: Path) -> Any:
    # Files of before torch 1.6 are bare pickles, which cannot be mapped.
    with open_regular(path) as file:
        mapped = file.read(2) != b"\x80\x02"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of, it then refuses
        return torch.load(str(path), map_location="cpu", weights_only=True, mmap=mapped)


def _load_packed(torch: Any, path: Path) -> Any:
    # Unlinked while it is mapped: the space is given back with the tensors.
    handle, name = tempfile.mkstemp(prefix="checks-", suffix=".ckpt")
    try:
        with os.fdopen(handle, "wb") as out:
            _unpack(path, out)
        return _load_plain(torch, Path(name))
    finally:
        os.unlink(name)


def _unpack(path: Path, out: Any) -> None:
    done = 0
    limit = min(MAX_UNPACKED, MOST_PACKED * path.stat().st_size + SPARE)
    try:
        with open_regular(path) as file, gzip.open(file) as packed:
            while True:
                piece = packed.read(_PIECE)
                if not piece:
                    return
                done += len(piece)
                if done > limit:
                    raise BadTensors(f"{path}: unpacks to more than {limit >> 20} MB: not a sample of a cache")
                out.write(piece)
    except EOFError:
        raise BadTensors(f"{path}: truncated: its gzip stream ends early ({done} bytes came out of it)") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BadTensors(f"{path}: not a gzip file, or a damaged one: {str(error)[:120]}") from None


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
    """torch's reasons in words of our own: its text advises to load the file without `weights_only`."""
    said = str(error) or type(error).__name__
    if named := _OBJECT.search(said):
        return BadTensors(
            f"{path}: holds a Python object ({named[1]}) beside tensors and plain values, and building one may run "
            "anything: it is not opened; write the sample again with tensors, numbers and texts alone"
        )
    for reason, words in _REASONS:
        if reason in said:
            return BadTensors(f"{path}: {words}")
    first = "".join(letter for letter in said.splitlines()[0][:120] if letter.isprintable())
    return BadTensors(f"{path}: damaged, for torch cannot put it together ({first}): write it again")
