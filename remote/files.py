"""Files on a host: read, stat, hash, atomic write with a backup, and a lock that says who holds it.

Every path may start with `~`, which is the home folder on the host. The same code runs for every kind of host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from remote import scripts
from remote.errors import Busy, CommandFailed, HostUnreachable, RemoteError, printable
from remote.host import Host, resolve
from remote.stream import Stream

_WAYS_OUT = {
    "No space left": "Free space on its disk (df -h {folder}), and write again; the file is as it was",
    "quota exceeded": "Free some of the account's space (quota -s), and write again; the file is as it was",
    "must be absolute": "Name it from / or ~",
}
"""What to do next, by a part of what the system says."""
HEARTBEAT = 10.0  # seconds; the holder on the host gives up after 60 of silence


@dataclass(frozen=True, slots=True)
class Stat:
    """A path on the host, links followed. `size` in bytes, `mtime` in Unix seconds, `mode` the permission bits.

    `kind` is file, dir or other; `real` the path without links; `store` whether that is in a content-addressed store.
    """

    kind: str
    size: int
    mtime: float
    mode: int
    uid: int
    gid: int
    real: str
    store: bool


@dataclass(frozen=True, slots=True)
class WriteResult:
    """`sha256` of the new content; `backup_path` of the previous one ("" when there was none or nothing changed);
    `path` really written, links resolved."""

    sha256: str
    backup_path: str
    path: str


async def read(host: Host, path: str, limit: int, offset: int = 0) -> bytes:
    """At most `limit` bytes from `offset`. Raises FileMissing, PermissionDenied, HostUnreachable, PythonMissing."""
    request = {"op": "read", "path": await resolve(host, path), "offset": offset, "limit": limit}
    return (await scripts.call(host, "files", request))[1]


async def stat(host: Host, path: str) -> Stat | None:
    """What `path` is; None when it does not exist. Raises PermissionDenied when a folder above is closed to us."""
    answer, _ = await scripts.call(host, "files", {"op": "stat", "path": await resolve(host, path)})
    if not answer["exists"]:
        return None
    return Stat(**{name: answer[name] for name in Stat.__slots__})


async def exists(host: Host, path: str) -> bool:
    """Whether `path` exists; a dangling link does not."""
    return await stat(host, path) is not None


async def sha256(host: Host, path: str) -> str:
    """The sha256 of a file, computed on the host, hexadecimal."""
    answer, _ = await scripts.call(host, "files", {"op": "sha256", "path": await resolve(host, path)})
    return str(answer["sha256"])


async def write_atomic(
    host: Host,
    path: str,
    data: bytes,
    *,
    expect_sha256: str | None = None,
    backup: bool = True,
    mode: int | None = None,
    make_folder: bool = False,
    anywhere: bool = False,
) -> WriteResult:
    """Replace the content of `path` so that a reader, or a crash, sees the old content or the new, never a part.

    A temporary file in the same folder is written, fsynced and renamed over the old one, and the folder fsynced. Mode
    and owner stay (`mode` overrides); a link is written through. The previous content is kept as
    `.console/NAME.UTCTIME.HASH12` beside the file (the newest 50 stay), unless `backup` is false.

    With `expect_sha256`, ChangedMeanwhile unless the file has that hash; "" expects that there is no file. Raises
    StoreLink when the path leads into a content-addressed store (`anywhere` is for our own files that are named by
    hash), FileMissing for a missing folder (`make_folder` makes it), PermissionDenied when mode or owner could not be
    kept. On any error the file is as it was.
    """
    full = await resolve(host, path)
    request = {
        "op": "write",
        "path": full,
        "expect_sha256": expect_sha256,
        "backup": backup,
        "mode": mode,
        "make_folder": make_folder,
        "anywhere": anywhere,
    }
    try:
        answer, _ = await scripts.call(host, "files", request, data)
    except RemoteError as error:
        if type(error) is not RemoteError:
            raise
        # The system's refusals have no kind of their own, and not all of them name the path.
        folder = printable(full.rpartition("/")[0])
        advice = next((words for part, words in _WAYS_OUT.items() if part in error.why), "See to that, and write again")
        raise RemoteError(
            f"{printable(path)} was not written on {host.name}", error.why, advice.format(folder=folder)
        ) from error
    return WriteResult(str(answer["sha256"]), str(answer["backup"]), str(answer["path"]))


class Held:
    """A lock that is held. `lost` turns true when the host let go of it because the link went down."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.lost = False

    async def beat(self) -> None:
        """Keep telling the host that we are here."""
        try:
            while True:
                await asyncio.sleep(HEARTBEAT)
                await self._stream.write(b".")
        except HostUnreachable:
            self.lost = True

    async def watch(self) -> None:
        """Notice the end of the holder on the host."""
        with contextlib.suppress(RemoteError):
            await self._stream.read()
        self.lost = True


@asynccontextmanager
async def lock(host: Host, path: str, who: str) -> AsyncIterator[Held]:
    """Hold the lock file `path` on the host; its content says `who`. Its folder is made when missing.

    The kernel of the host keeps the lock and drops it when the process that holds it for us ends, so a crashed console
    leaves nothing stale. Raises Busy with who holds it.
    """
    argv, shown = await scripts.command(host, "lock")
    full = await resolve(host, path)
    request = json.dumps({"path": full, "who": who}).encode() + b"\n"
    async with host.stream(argv, input=None, shown=[*shown, full, who]) as stream:
        await stream.write(request)
        line = b""
        while not line.endswith(b"\n") and (data := await stream.read()):
            line += data
        answer = scripts.decoded(line)
        if answer is None:
            raise CommandFailed(shown, await stream.wait(), stream.stderr_tail)
        if answer.get("refused") == "Busy":
            raise Busy(
                full,
                answer.get("who") or "",
                answer.get("pid") or 0,
                answer.get("since") or 0.0,
                answer.get("machine") or "",
            )
        if "refused" in answer:
            raise scripts.refusal(answer, host.name)
        held = Held(stream)
        tasks = [asyncio.create_task(held.beat()), asyncio.create_task(held.watch())]
        try:
            yield held
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            stream.write_eof()
            with contextlib.suppress(HostUnreachable, TimeoutError):
                async with asyncio.timeout(5):
                    await stream.wait()
