"""Holds a lock file for as long as the console at the other end is there.

The kernel's own file lock decides, so a holder that dies leaves nothing stale behind; the file's content only says who.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import time

from remote.on_host.protocol import Fields, Refused, from_os_error, read_request, write_answer

SILENCE = 60.0  # seconds without a sign of life after which the console counts as gone (it sends one every 10)


def holder(descriptor: int) -> Fields:
    """What the present holder wrote about itself; may be empty for a moment after it took the lock."""
    try:
        said = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def take(path: str, who: str) -> int:
    """Lock the file and write who holds it; the open descriptor. Refuses with Busy."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        said = holder(descriptor)
        raise Refused("Busy", **{key: said.get(key) for key in ("who", "pid", "since", "machine")}) from None
    said = {"who": who, "pid": os.getpid(), "since": time.time(), "machine": os.uname().nodename}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(said).encode(), 0)
    return descriptor


def main() -> None:
    """Take the lock, say so, hold it until stdin ends or falls silent."""
    request = read_request()
    try:
        descriptor = take(os.path.realpath(request["path"]), request["who"])
    except Refused as refused:
        return write_answer(refused.fields)
    except OSError as error:
        return write_answer(from_os_error(error))
    write_answer({})
    while select.select([0], [], [], SILENCE)[0] and os.read(0, 4096):
        pass
    os.ftruncate(descriptor, 0)
    return None


if __name__ == "__main__":
    main()
