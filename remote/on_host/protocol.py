"""How the programs of this folder are asked and answer: one JSON line each way, bytes after it, refusals by name."""

from __future__ import annotations

import errno
import json
import os
import stat as modes
import sys
from typing import Any, BinaryIO, Callable

Fields = dict[str, Any]
Answer = tuple[Fields, bytes]

KINDS = {
    errno.ENOENT: "FileMissing",
    errno.ENOTDIR: "FileMissing",
    errno.EACCES: "PermissionDenied",
    errno.EPERM: "PermissionDenied",
    errno.EROFS: "PermissionDenied",
}


class Refused(Exception):
    """A request that is answered with a reason and not carried out."""

    def __init__(self, kind: str, **fields: Any) -> None:
        super().__init__(kind)
        self.fields: Fields = dict(fields, refused=kind)


def from_os_error(error: OSError) -> Fields:
    """What a refusal says about an error of the operating system."""
    kind = KINDS.get(error.errno or 0, "failed")
    return {"refused": kind, "path": str(error.filename or ""), "detail": error.strerror or str(error)}


def open_regular(path: str) -> BinaryIO:
    """The file, opened to be read. Raises OSError for what is none: a pipe would keep its reader for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not modes.S_ISREG(mode):
        os.close(descriptor)
        if modes.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return os.fdopen(descriptor, "rb")


def read_request() -> Fields:
    """The request line from stdin."""
    request: Fields = json.loads(sys.stdin.buffer.readline())
    return request


def write_answer(answer: Fields, payload: bytes = b"") -> None:
    """The answer line, then `payload`, on stdout."""
    out = sys.stdout.buffer
    out.write(json.dumps(answer).encode() + b"\n")
    out.write(payload)
    out.flush()


def serve(operations: dict[str, Callable[[Fields, bytes], Answer]]) -> None:
    """Carry out one request. A payload cut short by a lost connection is refused before anything is done."""
    request = read_request()
    size = int(request.get("size", 0))
    payload = sys.stdin.buffer.read(size)
    try:
        if len(payload) != size:
            raise Refused(
                "failed", path=str(request.get("path", "")), detail="the data was cut short; nothing was done"
            )
        answer, data = operations[request["op"]](request, payload)
    except Refused as refused:
        answer, data = refused.fields, b""
    except OSError as error:
        answer, data = from_os_error(error), b""
    write_answer(answer, data)
