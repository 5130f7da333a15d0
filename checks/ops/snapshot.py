"""The snapshot of a host as values: untrusted JSON in, and what is missing or of another kind counts as not seen."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from checks.evidence import Evidence

MOST = 1000
"""Entries of a list that are looked at."""
LONGEST = 300
"""Characters of a text that are kept."""
LONGEST_CONFIG = 1 << 20
"""Characters of a draft's config at most; a longer one is not read, for a part of it says nothing."""
LATEST = 4_102_444_800.0
"""Unix seconds (the year 2100): what is later is no time."""


@dataclass(frozen=True)
class Process:
    """One process: the begin of its command line, and when it started in Unix seconds (None: not seen)."""

    pid: int
    started: float | None
    argv: tuple[str, ...]
    pgid: int = 0
    proven: bool = False
    """Whether it carries the token of the server it is counted to."""

    @property
    def title(self) -> str:
        """What it runs, without the rest of its command line: `python3 -m sglang.launch_server`."""
        words = [PurePosixPath(self.argv[0]).name or self.argv[0]] if self.argv else ["?"]
        follows = self.argv[1:3] if self.argv[1:2] == ("-m",) else self.argv[1:2]
        words += [word for index, word in enumerate(follows) if index or word == "-m" or not word.startswith("-")]
        return " ".join(words)[:80]

    @property
    def words(self) -> str:
        """The process in a sentence."""
        return f"process {self.pid} (`{self.title}`)"


@dataclass(frozen=True)
class Left:
    """Processes of a server that has ended: its pid and port, when it ended (None: nobody saw it), and who is left."""

    pid: int
    port: int
    ended: float | None
    processes: tuple[Process, ...]


@dataclass(frozen=True)
class Port:
    """The server's port: whether anybody listens, who, and whether that is the server or of its group or descent."""

    number: int
    open: bool
    hidden: bool
    process: Process | None
    of_server: bool


@dataclass(frozen=True)
class Health:
    """One question to the health endpoint. `status` 0: no answer, and `outcome` says why (refused, timed out, …)."""

    url: str
    status: int
    outcome: str
    took: float
    limit: float


@dataclass(frozen=True)
class Gpu:
    """One GPU: bytes used and there are (None: not reported), and the pids that the driver names on it."""

    index: int
    name: str
    used: int | None
    total: int | None
    pids: tuple[int, ...]


@dataclass(frozen=True)
class Disk:
    """The file system of a path: bytes and files left, of how many there are (0: it does not count them)."""

    name: str
    path: str
    device: int
    free: int
    total: int
    free_files: int
    total_files: int
    read_only: bool


@dataclass(frozen=True)
class File:
    """A file of the draft: when its content and its entry changed, in Unix seconds; the config's SHA-256."""

    name: str
    written: float | None
    changed: float | None
    sha256: str


@dataclass(frozen=True)
class Snapshot:
    """The host at `time` (Unix seconds, its own clock). `server` is the deployment's process, None when none runs.

    `phase` and `note` are what the console says of it; `ready_after` the seconds it took to be ready; `config` its
    draft's config when it was started, and `config_sha256` that of it ("": not known); `as_recorded` whether its
    command line is the recorded one.
    """

    time: float | None
    server: Process | None
    phase: str
    note: str
    as_recorded: bool
    differences: tuple[tuple[str, str | None, str | None], ...]
    """(flag, value the deployment would launch with, value it runs with); None = absent."""
    config_sha256: str
    config: str
    ready_after: float | None
    port: Port
    left: tuple[Left, ...]
    health: Health | None
    gpus: tuple[Gpu, ...]
    gpu_error: str
    named: tuple[Process, ...]
    """Of the pids that GPUs name, those that can be seen."""
    open_gpus: tuple[Process, ...]
    """Processes that can be seen and have a GPU open."""
    disks: tuple[Disk, ...]
    draft: tuple[File, ...]

    @property
    def ready(self) -> float | None:
        """When the server became ready; None when it is not known."""
        if self.server is None or self.server.started is None or self.ready_after is None:
            return None
        return self.server.started + self.ready_after


def snapshot_of(evidence: Evidence) -> Snapshot:
    """The snapshot of the request; an empty one where it is none. Memoised."""
    return evidence.memo("snapshot", lambda: read(evidence.request.snapshot))


def read(raw: object) -> Snapshot:
    """A snapshot from JSON of any shape. Never raises."""
    top = _map(raw)
    known, port = _map(top.get("known")), _map(top.get("port"))
    return Snapshot(
        time=_time(top.get("time")),
        server=_process(top.get("server")) if known.get("own") is not False else None,
        phase=_text(known.get("phase")),
        note=_text(known.get("note")),
        as_recorded=known.get("as_recorded") is not False,
        differences=tuple(
            (_text(item.get("key")), _maybe(item.get("planned")), _maybe(item.get("running")))
            for item in _maps(known.get("differences"))
        ),
        config_sha256=_sha(known.get("config_sha256")),
        config=_whole_text(known.get("config")),
        ready_after=_seconds(known.get("ready_after")),
        port=Port(
            _whole(port.get("port")) or 0,
            port.get("open") is True,
            port.get("hidden") is True,
            _process(port.get("process")),
            port.get("of_server") is True,
        ),
        left=tuple(_left(item) for item in _maps(top.get("left"))),
        health=_health(top.get("health")),
        gpus=tuple(_gpu(item) for item in _maps(top.get("gpus"))),
        gpu_error=_text(top.get("gpu_error")),
        named=_processes(top.get("named")),
        open_gpus=_processes(top.get("open_gpus")),
        disks=tuple(_disk(item) for item in _maps(top.get("disks"))),
        draft=tuple(_file(item) for item in _maps(top.get("draft"))),
    )


def stamp(moment: float | None) -> str | None:
    """A time as one reads it, in the host's zone."""
    return None if moment is None else datetime.fromtimestamp(moment).astimezone().isoformat(" ", "seconds")


def size(count: int) -> str:
    """Bytes as one reads them."""
    amount, unit = float(count), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"


def span(seconds: float) -> str:
    """A length of time as one says it."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


# -- reading -----------------------------------------------------------------------------------------------------------


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value[:MOST] if isinstance(item, Mapping)] if isinstance(value, (list, tuple)) else []


def _text(value: object) -> str:
    return value[:LONGEST] if isinstance(value, str) else ""


def _whole_text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= LONGEST_CONFIG else ""


def _maybe(value: object) -> str | None:
    return value[:LONGEST] if isinstance(value, str) else None


def _sha(value: object) -> str:
    return value if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < LATEST and math.isfinite(value) else None


def _time(value: object) -> float | None:
    return _seconds(value)


def _process(value: object) -> Process | None:
    raw = _map(value)
    pid = _whole(raw.get("pid"))
    if not pid:
        return None
    words = raw.get("argv")
    argv = tuple(_text(word) for word in words[:8] if isinstance(word, str)) if isinstance(words, (list, tuple)) else ()
    return Process(pid, _time(raw.get("started")), argv, _whole(raw.get("pgid")) or 0, raw.get("proven") is True)


def _processes(value: object) -> tuple[Process, ...]:
    found = (_process(item) for item in _maps(value))
    return tuple(item for item in found if item is not None)


def _left(raw: Mapping[str, Any]) -> Left:
    return Left(
        _whole(raw.get("pid")) or 0,
        _whole(raw.get("port")) or 0,
        _time(raw.get("ended")),
        _processes(raw.get("processes")),
    )


def _health(value: object) -> Health | None:
    raw = _map(value)
    status = _whole(raw.get("status"))
    if status is None:
        return None
    took, limit = _seconds(raw.get("took")) or 0.0, _seconds(raw.get("limit")) or 0.0
    return Health(_text(raw.get("url")), status, _text(raw.get("outcome")), took, limit)


def _gpu(raw: Mapping[str, Any]) -> Gpu:
    pids = raw.get("pids")
    named = tuple(pid for pid in map(_whole, pids[:MOST]) if pid) if isinstance(pids, (list, tuple)) else ()
    used, total = _whole(raw.get("memory_used")), _whole(raw.get("memory_total"))
    return Gpu(_whole(raw.get("index")) or 0, _text(raw.get("name")), used, total, named)


def _disk(raw: Mapping[str, Any]) -> Disk:
    device, free, total, free_files, total_files = (
        _whole(raw.get(name)) or 0 for name in ("device", "free", "total", "free_files", "total_files")
    )
    name, path, read_only = _text(raw.get("name")), _text(raw.get("path")), raw.get("read_only") is True
    return Disk(name, path, device, free, total, free_files, total_files, read_only)


def _file(raw: Mapping[str, Any]) -> File:
    return File(_text(raw.get("name")), _time(raw.get("written")), _time(raw.get("changed")), _sha(raw.get("sha256")))
