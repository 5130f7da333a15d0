"""`ops.gpu_holders`, `ops.disk`: what holds the memory of the GPUs, and what is left on the disks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from checks.catalog import check
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict
from checks.ops.snapshot import Disk, Gpu, Process, Snapshot, size, snapshot_of

GPU_ID, DISK_ID = "ops.gpu_holders", "ops.disk"

GIB = 1 << 30
IDLE = GIB
"""Bytes below which nobody is looked for: a driver, a display or a monitor holds some hundreds of MiB by itself."""
NEAR = 2 * GIB
"""Bytes left below which a disk is nearly full: a log of some days, or one checkpoint of a draft."""
SMALL = 10
"""A disk that is small by itself is nearly full below one in so many of its bytes."""


@check(GPU_ID, needs=(Need.HOST,))
def gpu_holders(evidence: Evidence) -> Iterable[Finding]:
    """Which processes hold the memory of the GPUs, as far as they can be seen from here.

    Inside a container nvidia-smi lists no process, or the pids of the host: memory in use without a visible process is
    not free, and no zombie. It may be another container's work, or another user's.

    UNKNOWN: 1 GiB or more of a GPU is in use, and no process that can be seen here is named on it: it is held outside
    this namespace, and the process list of the machine itself would tell by whom.
    INFO: the same, and the deployment's server has GPUs open: it holds at least part of it. Or nvidia-smi failed.
    PASS: every GPU in use has a visible process, or none is in use, or there is no GPU.

    What to do: run `nvidia-smi` on the machine outside the container, or ask who else uses it. Nothing is killed.
    """
    seen = snapshot_of(evidence)
    if seen.gpu_error:
        yield Finding(GPU_ID, Verdict.INFO, f"nvidia-smi failed: {seen.gpu_error}", {"error": seen.gpu_error})
        return
    if not seen.gpus:
        yield Finding(GPU_ID, Verdict.PASS, "nvidia-smi shows no GPU here", {"gpus": []})
        return
    visible = {process.pid: process for process in seen.named}
    busy = [gpu for gpu in seen.gpus if gpu.used is not None and gpu.used >= IDLE]
    hidden = [gpu for gpu in busy if not any(pid in visible for pid in gpu.pids)]
    facts: dict[str, Any] = {
        "gpus": [_row(gpu, seen) for gpu in seen.gpus],
        "open_gpus": [{"pid": process.pid, "runs": process.title} for process in seen.open_gpus],
    }
    if not hidden:
        held = f"{len(busy)} of {len(seen.gpus)} GPUs in use, each by a visible process" if busy else "no GPU is in use"
        yield Finding(GPU_ID, Verdict.PASS, held, facts)
        return
    named = ", ".join(f"{size(gpu.used or 0)} of GPU {gpu.index}" for gpu in hidden)
    if any(_of_server(process, seen) for process in seen.open_gpus):
        words = f"{named}, without a process named on it here; the server has GPUs open, and holds at least part of it"
        yield Finding(GPU_ID, Verdict.INFO, words, facts)
        return
    needs = ["the machine's own process list: nvidia-smi outside this container, or as root"]
    words = f"{named} held outside this namespace: no process seen here is named on it, and it is not free"
    yield Finding(GPU_ID, Verdict.UNKNOWN, words, {**facts, "needs": needs})


def _of_server(process: Process, seen: Snapshot) -> bool:
    server = seen.server
    return server is not None and (process.pid == server.pid or process.pgid == server.pgid != 0)


def _row(gpu: Gpu, seen: Snapshot) -> dict[str, Any]:
    visible = {process.pid: process.title for process in seen.named}
    return {
        "index": gpu.index,
        "name": gpu.name,
        "used": gpu.used,
        "total": gpu.total,
        "processes": [{"pid": pid, "runs": visible.get(pid)} for pid in gpu.pids],
    }


@check(DISK_ID, needs=(Need.HOST,))
def disk(evidence: Evidence) -> Iterable[Finding]:
    """How full the disks are that hold the draft, the server's log and the caches.

    A full disk ends a log in the middle of a line, and a server that cannot write may stop serving; a config cannot be
    written, and captures are cut short.

    FAIL: nothing more can be written where the draft or the log lies: no byte is left to this account, or no file.
    WARN: less than 2 GiB (less than a tenth, on a disk below 20 GiB) are left there, or a cache's disk is full.
    PASS: there is room. Read-only file systems and those that do not say how big they are, are passed over.

    What to do: make room, or move the log; then write the draft's config again where that had failed.
    """
    seen = snapshot_of(evidence)
    told = [item for item in seen.disks if item.total and not item.read_only]
    facts: dict[str, Any] = {
        "disks": [
            {"place": item.name, "path": item.path, "free": item.free, "total": item.total, "files": item.free_files}
            for item in told
        ]
    }
    if not told:
        yield Finding(DISK_ID, Verdict.PASS, "no disk to look at says how full it is", facts)
        return
    # One file system may hold several places: it is named once, by the first of them.
    by_device: dict[int, list[Disk]] = {}
    for item in told:
        by_device.setdefault(item.device, []).append(item)
    rows = [_disk(items) for items in by_device.values()]
    loud = [words for verdict, words in rows if verdict is not Verdict.PASS]
    if loud:
        worst = Verdict.FAIL if any(verdict is Verdict.FAIL for verdict, _ in rows) else Verdict.WARN
        yield Finding(DISK_ID, worst, "; ".join(loud), facts)
        return
    least = min(told, key=lambda item: item.free)
    yield Finding(DISK_ID, Verdict.PASS, f"{size(least.free)} or more left where draft, log and caches lie", facts)


def _disk(items: list[Disk]) -> tuple[Verdict, str]:
    """The verdict on one file system, by the places it holds."""
    first, names = items[0], ", ".join(item.name for item in items)
    cached = all(item.name.startswith("cache") for item in items)
    where = f"where {names} {'lies' if len(items) == 1 else 'lie'} ({first.path})"
    full = "nothing" if first.free <= 0 else "no file" if first.total_files and first.free_files <= 0 else ""
    if full:
        return Verdict.WARN if cached else Verdict.FAIL, f"{full} more can be written {where}"
    if first.free < min(NEAR, first.total // SMALL) and not cached:
        return Verdict.WARN, f"{size(first.free)} of {size(first.total)} left {where}"
    return Verdict.PASS, ""
