"""What a walk over all of a cache has seen, kept on the host while it lasts: an interrupted one goes on where it was.

One file a cache under ~/.cache/eagle-console/scans, a line a sample, written as the sample was read and gone when the
run has ended. A line holds only as long as its file has the size and time of change it had, and the whole file only
for the same cache, its side files, and this very code.
"""

from __future__ import annotations

import hashlib
import json
import os
import pkgutil
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from checks import caches
from checks.caches.cache import Cache, Place
from checks.caches.listing import side_files
from checks.data.seen import Fault, Seen, Turn

FOLDER = Path("~/.cache/eagle-console/scans")

OLD = 30 * 86400
"""Seconds after which what a run left behind is of no use to anyone."""

_FAULTS = ("broken", "zero", "saturated", "strange", "repeated")
_PAIRS = ("low", "high", "tail", "mask_values")
_PLAIN = {
    "problem": str, "error": str, "found": str, "length": int, "text": int, "masked_in": int, "pairing": str,
    "paired": bool, "rows": int, "dtype": str,
}  # fmt: skip


class Kept:
    """The samples an earlier run had seen of a cache, and where this one writes down its own.

    `trouble` says why nothing can be kept; the walk goes on all the same.
    """

    def __init__(self, cache: Cache, layout: str = "") -> None:
        self.trouble = ""
        self.taken = 0
        """Samples that were taken from an earlier run."""
        self._known: dict[str, tuple[tuple[int, int], Seen]] = {}
        self._handle = -1
        identity = _identity(cache, layout)
        try:
            folder = FOLDER.expanduser()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _clear(folder)
            self._path = folder / f"{hashlib.sha256(identity).hexdigest()[:32]}.jsonl"
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
            self._handle = os.open(self._path, flags, 0o600)
            self._read()
        except (OSError, RuntimeError) as error:
            self._fail(error)

    def __len__(self) -> int:
        """Samples an earlier run had seen, changed ones among them."""
        return len(self._known)

    def take(self, name: str, place: Place) -> Seen | None:
        """What an earlier run saw of this sample, unless its file was changed since."""
        held = self._known.pop(name, None)
        if held is None or held[0] != _stamp(place.path):
            return None
        self.taken += 1
        return held[1]

    def stamp(self, place: Place) -> tuple[int, int]:
        """Size and time of change of a sample's file; to be asked before the sample is read."""
        return _stamp(place.path)

    def add(self, seen: Seen, stamp: tuple[int, int]) -> None:
        """Write down a sample, at once: the next moment may be the last."""
        if self._handle < 0:
            return
        line = json.dumps([seen.name, *stamp, _record(seen)], separators=(",", ":")).encode() + b"\n"
        try:
            if os.write(self._handle, line) < len(line):
                raise OSError(0, "the disk took only a part of a line")
        except OSError as error:
            self._fail(error)

    def drop(self) -> None:
        """The run has ended: what it saw is in its report."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
            with suppress(OSError):
                self._path.unlink()

    def _read(self) -> None:
        with open(self._handle, "rb", closefd=False) as file:
            good = 0
            for line in file:
                try:
                    name, size, changed, held = json.loads(line)
                    seen = _restored(str(name), held)
                except (ValueError, TypeError, KeyError, RecursionError):
                    break  # cut off while it was written, or not ours
                if not line.endswith(b"\n"):
                    break
                self._known[seen.name] = ((int(size), int(changed)), seen)
                good += len(line)
        os.ftruncate(self._handle, good)

    def _fail(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self.trouble = f"cannot be continued when it is interrupted: {FOLDER}: {reason}"
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (-1, -1)  # why it cannot be read is for the walk to say, each time anew
    return found.st_size, found.st_mtime_ns


def _identity(cache: Cache, layout: str) -> bytes:
    """All that decides what is seen of a sample, but the sample's own file."""
    sides = sorted((str(path), *_stamp(path)) for path in side_files(cache.path))
    shape = [cache.layout, layout, cache.slots, cache.hidden, cache.final]
    return json.dumps([os.path.realpath(cache.path), shape, sides, _code()]).encode()


def _code() -> str:
    """A digest of the code that reads and judges samples: what another version saw may be another thing."""
    digest = hashlib.sha256()
    readers = sorted(item.name for item in pkgutil.iter_modules(caches.__path__))
    modules = [("checks.caches", name) for name in readers]
    modules += [("checks.data", name) for name in ("scan", "seen", "stored")]
    modules += [("checks", "tensors"), ("checks", "tiles")]
    for package, name in modules:
        digest.update(pkgutil.get_data(package, f"{name}.py") or b"")
    return digest.hexdigest()


def _clear(folder: Path) -> None:
    """Remove what runs left that nobody continued."""
    limit = time.time() - OLD
    for path in folder.glob("*.jsonl"):
        with suppress(OSError):
            if path.stat().st_mtime < limit:
                path.unlink()


# -- a sample as JSON --------------------------------------------------------------------------------------------------


def _record(seen: Seen) -> dict[str, Any]:
    """What differs from a sample of which nothing is to be said."""
    out: dict[str, Any] = {}
    blank = Seen(seen.name)
    for item in fields(Seen):
        value = getattr(seen, item.name)
        if item.name == "name" or value == getattr(blank, item.name):
            continue
        if item.name in _FAULTS:
            out[item.name] = [[one.where, one.rows, one.first, one.note] for one in value]
        elif item.name == "turns":
            out[item.name] = [[one.ids.tolist(), one.begin, one.at] for one in value]
        else:
            out[item.name] = value
    return out


def _restored(name: str, held: dict[str, Any]) -> Seen:
    """The inverse. Raises TypeError, ValueError or KeyError for what no walk wrote."""
    seen = Seen(name)
    for key, value in held.items():
        if key in _FAULTS:
            setattr(seen, key, [Fault(str(where), int(rows), int(at), str(note)) for where, rows, at, note in value])
        elif key == "turns":
            seen.turns = tuple(
                Turn(name, np.array(ids, dtype=np.int64), int(begin), int(at)) for ids, begin, at in value
            )
        elif key in _PAIRS:
            setattr(seen, key, tuple(int(number) for number in value))
        elif key == "mask_length":
            seen.mask_length = int(value)
        else:
            setattr(seen, key, _PLAIN[key](value))
    return seen
