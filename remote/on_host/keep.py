"""Keeps the end of what a command prints in a file for this account alone, until who asked for it removes it.

argv: the file, the bytes to keep, the seconds to wait, a token. stdin: what the command prints, then a line of the
token and the command's exit code. Without that line the command was cut short; then, and after a failure, no file is
made. Files that an interrupted console left in the folder go when they are a day old.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time
from typing import NamedTuple

from remote.on_host.protocol import from_os_error, write_answer

STALE = 86400.0  # seconds; no run of the checks reads a log for longer
SAID = 1000  # bytes of a failed command's output that are told
CLOSING = 100  # bytes that the last line takes at most


class Output(NamedTuple):
    """What a command printed: its end, the exit code (None: it was cut short), and whether time ran out."""

    text: bytes
    code: int | None
    late: bool


def collect(limit: int, seconds: float, token: str) -> Output:
    """Read stdin to its end, at most `seconds`; the text is its last `limit` bytes, from the beginning of a line."""
    held, cut, until = bytearray(), False, time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([0], [], [], left)[0]:
            return Output(b"", None, True)
        data = os.read(0, 1 << 16)
        if not data:
            break
        held += data
        if len(held) > 2 * (limit + CLOSING):
            del held[: -limit - CLOSING]
            cut = True
    closing = re.search(rb"\n%s (\d+)\n\Z" % token.encode(), held[-CLOSING:])
    if closing is None:
        return Output(b"", None, False)
    text = bytes(held[: len(held) - len(closing.group())])
    if cut or len(text) > limit:
        text = text[-limit:].partition(b"\n")[2]
    return Output(text, int(closing.group(1)), False)


def sweep(folder: str) -> None:
    """Remove what is left of runs that nobody ended."""
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            path = os.path.join(folder, name)
            if name.endswith(".log") and time.time() - os.lstat(path).st_mtime > STALE:
                os.unlink(path)


def keep(path: str, text: bytes) -> None:
    """Write a new file, whole or not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
    except BaseException:
        os.unlink(path)
        raise


def main() -> None:
    """Answer with the exit code and the size of the file; of a failed command with the end of what it said."""
    path, limit, seconds, token = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        sweep(os.path.dirname(path))
        found = collect(limit, seconds, token)
        if found.code == 0 and found.text.strip():
            keep(path, found.text)
            return write_answer({"code": 0, "size": len(found.text)})
    except OSError as error:
        return write_answer(from_os_error(error))
    said = found.text[-SAID:].decode("utf-8", "replace")
    return write_answer({"code": found.code, "size": 0, "late": found.late, "said": said})


if __name__ == "__main__":
    main()
