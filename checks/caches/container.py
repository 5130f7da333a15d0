"""Whether a cache file is whole, told from its ends: no tensor is read, and no library is needed."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

from checks.errors import BadTensors
from checks.regular import open_regular
from checks.tensors import EMPTY, read_header

_ZIP, _PICKLE, _GZIP = b"PK\x03\x04", b"\x80\x02", b"\x1f\x8b"


def prove(path: Path) -> None:
    """Raises BadTensors, with what is wrong, for a file that is empty, truncated, or not of the kind its name says.

    A gzip file's end shows only when it is unpacked; here it is held to its beginning.
    """
    if path.name.endswith(".safetensors"):
        read_header(path)
        return
    try:
        size = os.path.getsize(path)
        if not size:
            raise BadTensors(f"{path}: {EMPTY}")
        with open_regular(path) as file:
            first = file.read(4)
    except OSError as error:
        raise BadTensors(f"{path}: cannot be read: {error.strerror or error}") from None
    if path.name.endswith(".gz"):
        if not first.startswith(_GZIP):
            raise BadTensors(f"{path}: not a gzip file, though its name says so")
        if size < 20:
            raise BadTensors(f"{path}: truncated: {size} bytes are less than any gzip file has")
    elif first.startswith(_ZIP):
        _prove_zip(path, size)
    elif not first.startswith(_PICKLE):
        raise BadTensors(f"{path}: not a file that torch wrote: it begins with {first!r}")


def _prove_zip(path: Path, size: int) -> None:
    """torch's archives end with a directory: what was cut off has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, OSError) as error:
        raise BadTensors(
            f"{path}: truncated: its archive has no usable end record ({str(error)[:80]}); the disk was full or its "
            "writer was stopped: delete it and write it again"
        ) from None
    beyond = [member for member in members if member.header_offset + member.compress_size > size]
    if beyond or not any(member.filename.endswith("data.pkl") for member in members):
        raise BadTensors(f"{path}: not a whole torch archive: its directory names what is not in it")
