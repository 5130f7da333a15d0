"""Sends what is appended to a file, from an offset, through truncation and rotation, until stdin ends.

Frames on stdout: a JSON line {"event", "offset", "file", "size"} and `size` bytes.
"""

from __future__ import annotations

import os
import select
from typing import BinaryIO

from remote.on_host.protocol import from_os_error, open_regular, read_request, write_answer

BLOCK = 1 << 18
POLL = 0.05  # seconds; on the host, so it costs no round trip
REMEMBERED = 64


def identity(file: BinaryIO) -> str:
    """Which file this is: device and inode."""
    found = os.fstat(file.fileno())
    return f"{found.st_dev}:{found.st_ino}"


def frame(event: str, offset: int, which: str, data: bytes = b"") -> None:
    """Send one frame."""
    write_answer({"event": event, "offset": offset, "file": which, "size": len(data)}, data)


def console_gone(seconds: float) -> bool:
    """Wait; true as soon as stdin has ended."""
    return bool(select.select([0], [], [], seconds)[0]) and not os.read(0, 1)


def open_at(path: str) -> BinaryIO | None:
    """The file, or None while it does not exist."""
    try:
        return open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def resumes(file: BinaryIO, which: str, offset: int, before: bytes) -> bool:
    """Whether `file` is the one followed before. Inodes are given out again, so the last bytes must match too."""
    if which and identity(file) != which:
        return False
    if os.fstat(file.fileno()).st_size < offset:
        return False
    file.seek(offset - len(before))
    return file.read(len(before)) == before


def follow(path: str, offset: int, which: str, before: bytes) -> None:
    """Send everything from `offset` on. A negative offset counts from the end of the file as found."""
    file = None
    said_missing = False
    while True:
        if file is None:
            file = open_at(path)
            if file is None:
                if not said_missing:
                    frame("missing", 0, "")
                    said_missing = True
                if console_gone(POLL):
                    return
                continue
            said_missing = False
            if offset < 0:
                offset = max(0, os.fstat(file.fileno()).st_size + offset)
            elif offset and not resumes(file, which, offset, before):
                event = "rotated" if which and identity(file) != which else "truncated"
                offset = 0
                frame(event, 0, identity(file))
            file.seek(offset)
        data = file.read(BLOCK)
        if data:
            frame("data", offset, identity(file), data)
            offset += len(data)
            before = (before + data)[-REMEMBERED:]
            if console_gone(0):
                return
            continue
        if os.fstat(file.fileno()).st_size < offset:
            offset, before = 0, b""
            file.seek(0)
            frame("truncated", 0, identity(file))
            continue
        newer = open_at(path)
        if newer is None or identity(newer) != identity(file):
            last = file.read()  # written between the last look and the exchange
            if last:
                frame("data", offset, identity(file), last)
            file.close()
            file, offset, which, before = newer, 0, "", b""
            if newer is not None:
                frame("rotated", 0, identity(newer))
            continue
        newer.close()
        if console_gone(POLL):
            return


def main() -> None:
    """Follow what the request line asks for."""
    request = read_request()
    try:
        follow(request["path"], request["offset"], request["file"], bytes.fromhex(request["before"]))
    except OSError as error:
        write_answer(from_os_error(error))


if __name__ == "__main__":
    main()
