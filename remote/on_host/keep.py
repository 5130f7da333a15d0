"""Keeps the end of what a command prints in a file for this account alone, for as long as the console is there.

argv: the file, the bytes to keep, the seconds to wait, a token. stdin: what the command prints, a line of the token and
the command's exit code, and its end once the file is not needed any more, or the console is gone. Without that line the
command was cut short; then, and after a failure, no file is made.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
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
    """Read stdin to its closing line, at most `seconds`; the text is the last `limit` bytes, in whole lines."""
    held, cut, until = bytearray(), False, time.monotonic() + seconds
    last = re.compile(rb"\n%s (\d+)\n\Z" % token.encode())
    while not (closing := last.search(held[-CLOSING:])):
        left = until - time.monotonic()
        if left <= 0 or not select.select([0], [], [], left)[0]:
            return Output(b"", None, True)
        data = os.read(0, 1 << 16)
        if not data:
            return Output(b"", None, False)
        held += data
        if len(held) > 2 * (limit + CLOSING):
            del held[: -limit - CLOSING]
            cut = True
    text = bytes(held[: len(held) - len(closing.group())])
    if cut or len(text) > limit:
        text = text[-limit:].partition(b"\n")[2]
    return Output(text, int(closing.group(1)), False)


def sweep(folder: str) -> None:
    """Remove what was left when this program was killed, or the host went down."""
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


def answered(path: str, limit: int, seconds: float, token: str) -> bool:
    """Answer with the exit code and the size of the file, of a failed command with the end of what it said.

    Whether there is a file.
    """
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    sweep(os.path.dirname(path))
    found = collect(limit, seconds, token)
    kept = found.code == 0 and bool(found.text.strip())
    if kept:
        keep(path, found.text)
    said = "" if kept else found.text[-SAID:].decode("utf-8", "replace")
    write_answer({"code": found.code, "size": len(found.text) if kept else 0, "late": found.late, "said": said})
    return kept


def main() -> None:
    """Keep the file until stdin ends."""
    path = sys.argv[1]
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        kept = answered(path, int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
        while kept and os.read(0, 1 << 16):
            pass
    except OSError as error:
        write_answer(from_os_error(error))
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


if __name__ == "__main__":
    main()
