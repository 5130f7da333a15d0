"""Opening files that somebody else made: a pipe, a device or a folder in their place is refused, not waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """The file at `path`, opened to be read. Raises OSError, also for a pipe, a socket or a device.

    Opening a pipe waits for a writer that may never come, and a device has no end, or does something when it is opened.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file (a pipe, a socket or a device)", str(path))
    return path.open("rb")
