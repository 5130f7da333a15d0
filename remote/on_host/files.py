"""Files on the host: read, stat, hash, and write so that a reader sees the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import signal
import stat as modes
import sys
import time
from collections.abc import Iterator
from typing import Any

from remote.on_host.protocol import Answer, Fields, Refused, open_regular, serve

BACKUPS = ".console"
BACKUPS_KEPT = 50


def in_store(asked: str, path: str) -> bool:
    """Whether `asked`, which resolves to `path`, lies in a content-addressed model store.

    The Hugging Face hub keeps `models--X/blobs/HASH` and links `models--X/snapshots/REV/NAME` to them; where links are
    not supported the snapshot holds the files themselves. Other stores are known by a file named by its own hash.
    """
    parts = path.split(os.sep)
    name = parts[-1]
    last = name.rpartition("-")[2]
    hashed = len(last) in (40, 64) and all(c in "0123456789abcdef" for c in last)
    in_hub = any(part.startswith(("models--", "datasets--", "spaces--")) for part in parts[:-1])
    by_link = asked != path and "blobs" in parts[:-1]
    return hashed or by_link or (in_hub and ("blobs" in parts[:-1] or "snapshots" in parts[:-1]))


def digest(path: str) -> str:
    """sha256 of a file, hexadecimal."""
    total = hashlib.sha256()
    with open_regular(path) as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            total.update(block)
    return total.hexdigest()


def read(request: Fields, _: bytes) -> Answer:
    """At most `limit` bytes from `offset`; the size says whether that was all."""
    with open_regular(request["path"]) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(request["offset"])
        data = file.read(request["limit"])
    return {"size": size}, data


def stat(request: Fields, _: bytes) -> Answer:
    """What the file system says of a path, links followed."""
    path = request["path"]
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {"exists": False}, b""
    kind = "dir" if modes.S_ISDIR(found.st_mode) else "file" if modes.S_ISREG(found.st_mode) else "other"
    real = os.path.realpath(path)
    answer: dict[str, Any] = {
        "exists": True,
        "kind": kind,
        "size": found.st_size,
        "mtime": found.st_mtime,
        "mode": modes.S_IMODE(found.st_mode),
        "uid": found.st_uid,
        "gid": found.st_gid,
        "real": real,
        "store": in_store(path, real),
    }
    return answer, b""


def sha256(request: Fields, _: bytes) -> Answer:
    """The hash of a file."""
    return {"sha256": digest(request["path"])}, b""


def names(request: Fields, _: bytes) -> Answer:
    """What lies in a folder, sorted."""
    return {"names": sorted(os.listdir(request["path"]))}, b""


def place(path: str, data: bytes, mode: int | None, owner: os.stat_result | None) -> str:
    """Write `data` to a temporary file in the folder of `path`, on the disk for certain; its name."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.urandom(6).hex()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            made = os.fstat(file.fileno())
            if owner is not None and (made.st_uid, made.st_gid) != (owner.st_uid, owner.st_gid):
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def settle(temporary: str, path: str) -> None:
    """Give a temporary file its final name, on the disk for certain."""
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def keep_previous(path: str, data: bytes, sha: str, old: os.stat_result) -> str:
    """A copy of the present content beside the file: `.console/NAME.UTCTIME.HASH12`; the newest 50 stay."""
    folder, name = os.path.split(path)
    store = os.path.join(folder, BACKUPS)
    with contextlib.suppress(FileExistsError):
        os.mkdir(store)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    backup = os.path.join(store, f"{name}.{stamp}.{sha[:12]}")
    settle(place(backup, data, modes.S_IMODE(old.st_mode), old), backup)
    others = sorted(
        one for one in os.listdir(store) if one.startswith(name + ".") and len(one) == len(os.path.basename(backup))
    )
    for one in others[:-BACKUPS_KEPT]:
        os.unlink(os.path.join(store, one))
    return backup


def same_file(a: os.stat_result, b: os.stat_result) -> bool:
    """Whether nothing was written or exchanged between two looks at a path."""
    return (a.st_dev, a.st_ino, a.st_size, a.st_mtime_ns) == (b.st_dev, b.st_ino, b.st_size, b.st_mtime_ns)


@contextlib.contextmanager
def alone_in(folder: str) -> Iterator[None]:
    """Keep other writers of ours out of a folder, so that of two who expect the same content one finds it changed.

    A best effort: not every network file system can lock a folder.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write(request: Fields, payload: bytes) -> Answer:
    """Replace a file's content. See remote.files.write_atomic for the promises."""
    asked = request["path"]
    if not os.path.isabs(asked):
        raise Refused("failed", path=asked, detail="a path to write must be absolute")
    path = os.path.realpath(asked)
    if in_store(asked, path) and not request["anywhere"]:
        raise Refused("StoreLink", path=asked, target=path)
    if request["make_folder"]:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with alone_in(os.path.dirname(path)):
        return replace(request, path, payload)


def replace(request: Fields, path: str, payload: bytes) -> Answer:
    """The write itself, at a path that is allowed."""
    asked, expected, mode = request["path"], request["expect_sha256"], request["mode"]
    new = hashlib.sha256(payload).hexdigest()
    try:
        old = os.stat(path)
    except FileNotFoundError:
        if expected:
            raise Refused("ChangedMeanwhile", path=asked, expected=expected, actual="") from None
        temporary = place(path, payload, mode, None)
        if expected == "":
            try:
                os.link(temporary, path)  # unlike rename, fails when somebody has made the file meanwhile
            except FileExistsError:
                raise Refused("ChangedMeanwhile", path=asked, expected="", actual=digest(path)) from None
            finally:
                os.unlink(temporary)
        else:
            settle(temporary, path)
        return {"sha256": new, "backup": "", "path": path}, b""
    if not modes.S_ISREG(old.st_mode):
        raise Refused("failed", path=asked, detail="it is not a regular file")
    with open(path, "rb") as file:
        present = file.read()
        old = os.fstat(file.fileno())
    sha = hashlib.sha256(present).hexdigest()
    if expected is not None and sha != expected:
        raise Refused("ChangedMeanwhile", path=asked, expected=expected, actual=sha)
    if present == payload:
        return {"sha256": new, "backup": "", "path": path}, b""
    if not os.access(path, os.W_OK):
        # A rename needs only the folder; a file made read-only was meant to stay.
        raise Refused("PermissionDenied", path=asked, detail="the file is not writable for this account")
    backup = keep_previous(path, present, sha, old) if request["backup"] else ""
    temporary = place(path, payload, modes.S_IMODE(old.st_mode) if mode is None else mode, old)
    try:
        if not same_file(old, os.stat(path)):
            raise Refused("ChangedMeanwhile", path=asked, expected=sha, actual=digest(path))
        settle(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    return {"sha256": new, "backup": backup, "path": path}, b""


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    serve({"read": read, "stat": stat, "sha256": sha256, "names": names, "write": write})
