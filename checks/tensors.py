"""safetensors files: headers proven before they are believed, rows read in bounded pieces, bfloat16 right.

The format: 8 bytes of little-endian header length, that many bytes of JSON `{name: {dtype, shape, data_offsets}}`, then
the data, to which the offsets are relative and which they cover without holes. Everything is opened read-only.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from checks.errors import BadTensors

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Values = npt.NDArray[Any]

# The format's own limit, as the reference reader enforces it: a longer header is damage or an attack on memory.
MAX_HEADER = 100_000_000
MAX_TENSORS = 250_000
"""In one file; the largest mixtures of experts have tens of thousands in a shard."""

# Bits per element. What stands here and not in _NUMPY has a size, and so a provable header, but is not read.
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "BF16": "<u2", "U32": "<u4",
    "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip

# What other files that end up under a .safetensors name begin with.
_IMPOSTORS = (
    (b"version https://git-lfs", "a git-lfs pointer, not the weights: fetch them with `git lfs pull`"),
    (b"PK\x03\x04", "a torch archive, not safetensors"),
    (b"\x80\x02", "a pickle, not safetensors"),
    (b"\x1f\x8b", "gzip-compressed, not plain safetensors"),
)

# Not to wait for the writer of a pipe that somebody put in the file's place.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)

EMPTY = "empty (0 bytes): its writer stopped before the first byte"

_FIRST_READ = 4096

# Below this many bytes a row's slot costs less to read along with its neighbours than to ask for on its own.
_SMALL_READ = 4096


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies: bytes `start` to `end` of `file`, counted from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def rows(self) -> int:
        """The length of the first axis; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row of the first axis."""
        return self.shape[1:]


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of a safetensors file by name. Reads the header only, and proves it against the file's size.

    Raises BadTensors on a header that is too long, no JSON, or promises other bytes than the file has.
    """
    try:
        # Unbuffered and in one read where the header is of an ordinary length: a cache has tens of thousands of files.
        handle = os.open(path, _FLAGS)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
                raise BadTensors(f"{path}: not a regular file (a pipe, a socket or a device)")
            size = found.st_size
            data_start, raw = _header_bytes(handle, path, size)
        finally:
            os.close(handle)
    except OSError as error:
        raise BadTensors(f"{path}: cannot be read: {error.strerror or error}") from None
    if raw.count(b"data_offsets") > MAX_TENSORS:
        raise BadTensors(f"{path}: its header names more than {MAX_TENSORS:,} tensors: not a checkpoint, nor a cache")
    infos = [
        _entry(path, name, entry, data_start) for name, entry in _object(path, raw).items() if name != "__metadata__"
    ]
    _prove_offsets(path, infos, data_start, size)
    return {info.name: info for info in infos}


def read_rows(info: TensorInfo, start: int, stop: int) -> Values:
    """Rows `start` to `stop` of the first axis: float dtypes as float32, integers and bool as they are.

    Reads only those bytes. Raises BadTensors for a dtype that is not read, or a file that became shorter.
    """
    return _decoded(info, read_stored(info, start, stop))


def read_stored(info: TensorInfo, start: int, stop: int) -> Values:
    """`read_rows` with the floats as they lie in the file, bfloat16 as uint16. Raises BadTensors."""
    start, stop = max(start, 0), min(stop, info.rows)
    out = _blank(info, max(stop - start, 0))
    width = _row_bytes(info)
    with open_tensor(info) as file:
        read_into(file, info, out, info.start + start * width)
    return out


def read_slot_rows(info: TensorInfo, start: int, stop: int, slot: int) -> Floats:
    """Rows `start` to `stop` of slot `slot` of a `[S, m, H]` tensor, as float32 `[rows, H]`.

    Other slots are skipped on disk where that saves reading. Raises BadTensors.
    """
    if len(info.shape) != 3 or not 0 <= slot < info.shape[1]:
        raise BadTensors(f"{info.file}: {info.name} of shape {list(info.shape)} has no slot {slot}")
    rows, slots, hidden = info.shape
    start, stop = max(start, 0), min(stop, rows)
    if hidden * itemsize(info) < _SMALL_READ:
        return _floats(read_rows(info, start, stop)[:, slot])
    out = _blank(info, max(stop - start, 0), (hidden,))
    width = _row_bytes(info)
    offset = info.start + slot * (width // slots)
    with open_tensor(info) as file:
        # One view for all rows: a tenth of a gigabyte is ten thousand of them.
        view, size = out.reshape(-1).view(np.uint8).data, hidden * itemsize(info)
        for row in range(out.shape[0]):
            at = offset + (start + row) * width
            try:
                file.seek(at)
                whole = file.readinto(view[row * size : (row + 1) * size]) == size
            except OSError:
                whole = False
            if not whole:
                read_into(file, info, out[row], at)
    return _floats(_decoded(info, out))


def take_rows(info: TensorInfo, ids: Ids) -> Values:
    """Rows by index `[len(ids), ...]`, reading each distinct row once. Raises BadTensors for an index out of range."""
    distinct, back = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)
    if distinct.size and (distinct[0] < 0 or distinct[-1] >= info.rows):
        raise BadTensors(
            f"{info.name} in {info.file.name} has {info.rows} rows and is asked for row "
            f"{int(distinct[0] if distinct[0] < 0 else distinct[-1])}: these token ids are of another vocabulary"
        )
    out = _blank(info, distinct.size)
    width = _row_bytes(info)
    with open_tensor(info) as file:
        for place, row in enumerate(distinct.tolist()):
            read_into(file, info, out[place : place + 1], info.start + row * width)
    result: Values = _decoded(info, out)[back.reshape(-1)]
    return result


# -- the header --------------------------------------------------------------------------------------------------------


def _header_bytes(handle: int, path: Path, size: int) -> tuple[int, bytes]:
    """(offset of the data, the JSON)."""
    prefix = os.read(handle, _FIRST_READ)
    length = int.from_bytes(prefix[:8], "little")
    if length > size - 8:
        # The first bytes are a length: a small one may look like a pickle's, so these hints need an impossible length.
        for magic, what in _IMPOSTORS:
            if prefix.startswith(magic):
                raise BadTensors(f"{path}: is {what}")
    if not size:
        raise BadTensors(f"{path}: {EMPTY}")
    if size < 8:
        raise BadTensors(f"{path}: truncated: {size} bytes, and the length of a safetensors header alone takes 8")
    if length > MAX_HEADER:
        raise BadTensors(f"{path}: not safetensors: its first bytes give a header of {length} bytes")
    if length > size - 8:
        raise BadTensors(f"{path}: truncated: the header takes {length} bytes, and the file has {size}")
    raw = prefix[8 : 8 + length]
    while len(raw) < length:
        more = os.read(handle, length - len(raw))
        if not more:
            raise BadTensors(f"{path}: truncated while it was read")
        raw += more
    return 8 + length, raw


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name stands twice")
    return out


_JSON, _DISTINCT = json.JSONDecoder(), json.JSONDecoder(object_pairs_hook=_distinct)


def _object(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8")
        header = _JSON.decode(text)
        # A name that stands twice is one name less than there are colons. There may be more of them for other reasons.
        if not isinstance(header, dict) or text.count(":") != _names(header):
            header = _DISTINCT.decode(text)
    except (ValueError, RecursionError) as error:
        raise BadTensors(f"{path}: its header is not JSON ({_short(error)}): the file is damaged") from None
    if not isinstance(header, dict):
        raise BadTensors(f"{path}: its header is a JSON {type(header).__name__}, not an object: the file is damaged")
    return header


def _names(header: dict[str, Any]) -> int:
    """The names of the header and of its entries."""
    return len(header) + sum([len(entry) for entry in header.values() if isinstance(entry, dict)])


def _entry(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    if not isinstance(entry, dict):
        raise BadTensors(f"{path}: the header's entry for {name!r} is not an object")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise BadTensors(f"{path}: the header's entry for {name!r} lacks a dtype, a shape or two data_offsets")
    start, end = offsets
    elements = 1
    for length in shape:
        elements *= length
    bits = _BITS.get(dtype)
    if end < start or (bits is not None and elements * bits != (end - start) * 8):
        raise BadTensors(
            f"{path}: {name!r} is {dtype} {_shape_text(shape)} and has {end - start} bytes: the header is damaged"
        )
    return TensorInfo(name, dtype, tuple(shape), path, data_start + start, data_start + end)


def _prove_offsets(path: Path, infos: Sequence[TensorInfo], data_start: int, size: int) -> None:
    at = data_start
    for info in sorted(infos, key=lambda item: (item.start, item.end)):
        if info.start != at:
            what = "overlaps its neighbour" if info.start < at else "leaves a hole before it"
            raise BadTensors(f"{path}: {info.name!r} {what}: the header is damaged")
        at = info.end
    if at > size:
        raise BadTensors(
            f"{path}: truncated: its tensors end at byte {at} and the file has {size} ({at - size} missing); "
            "copy or download it again"
        )
    if at < size:
        raise BadTensors(f"{path}: {size - at} bytes follow the last tensor: the header is damaged")


def _counts(value: Any) -> bool:
    """Whether it is a list of counts. JSON's true is no count, though Python calls it an int."""
    if not isinstance(value, list):
        return False
    for item in value:  # noqa: SIM110  (all() of a generator costs more than what it tests)
        if type(item) is not int or not 0 <= item < 2**63:
            return False
    return True


def _shape_text(shape: Sequence[int]) -> str:
    text = str(list(shape[:8]))
    return text if len(shape) <= 8 else f"{text[:-1]}, …]"


def _short(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:120]


# -- the data ----------------------------------------------------------------------------------------------------------


def itemsize(info: TensorInfo) -> int:
    """Bytes of an element. Raises BadTensors for a dtype that is not read."""
    if info.dtype not in _NUMPY:
        raise BadTensors(f"{info.file}: {info.name} is {info.dtype}, which is not read here")
    return np.dtype(_NUMPY[info.dtype]).itemsize


def reads_as(dtype: str) -> str:
    """The numpy dtype of the bytes of a safetensors dtype; empty for one that is not read."""
    return _NUMPY.get(dtype, "")


def _row_bytes(info: TensorInfo) -> int:
    width = itemsize(info)
    for length in info.row_shape:
        width *= length
    return width


def _blank(info: TensorInfo, rows: int, row_shape: tuple[int, ...] | None = None) -> Values:
    itemsize(info)
    shape = info.row_shape if row_shape is None else row_shape
    try:
        return np.empty((rows, *shape), dtype=_NUMPY[info.dtype])
    except (MemoryError, ValueError, OverflowError):
        raise BadTensors(
            f"{info.file}: {info.name} of shape {_shape_text(info.shape)} does not fit in memory"
        ) from None


def open_tensor(info: TensorInfo) -> Any:
    """The tensor's file, for `read_into`. Raises BadTensors."""
    try:
        # Unbuffered: the reads below are whole pieces already, at places of their own.
        return info.file.open("rb", buffering=0)
    except OSError as error:
        raise BadTensors(f"{info.file}: cannot be read: {error.strerror or error}") from None


def read_into(file: Any, info: TensorInfo, out: Values, offset: int) -> None:
    """Fill contiguous `out` from byte `offset`, in as many reads as the file system takes."""
    view = out.reshape(-1).view(np.uint8)
    done = 0
    try:
        file.seek(offset)
        while done < view.size:
            count = file.readinto(view[done:])
            if not count:
                raise BadTensors(f"{info.file}: became shorter while {info.name} was read")
            done += count
    except OSError as error:
        raise BadTensors(f"{info.file}: cannot be read: {error.strerror or error}") from None


def _decoded(info: TensorInfo, raw: Values) -> Values:
    if info.shape == ():
        raw = raw.reshape(())
    if info.dtype == "BF16":
        return widened(raw)
    return raw.astype(np.float32, copy=False) if info.dtype.startswith("F") else raw


def widened(brain: Values) -> Floats:
    """bfloat16, as uint16, as float32: it is the upper half of one."""
    wide = brain.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def _floats(values: Values) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float32)
