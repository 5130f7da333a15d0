"""Says what the host holds of servers now: who listens, what is left of ended ones, disks, and the draft's files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from typing import Any, NamedTuple

from remote.on_host.proc import (
    TOKEN,
    Stat,
    alive,
    argv_of,
    boot_id,
    environ_of,
    link,
    listener,
    listening_inodes,
    processes,
    stat_of,
)
from remote.on_host.protocol import Answer, Fields, open_regular, serve

RECORDS = 50  # records read, newest first by name, which begins with the time
RECORD_BYTES = 1 << 20
CONFIG_BYTES = 16_000_000
SHARDS = 200  # of a checkpoint's weights; more are not listed
ENTRIES = 2000  # of a folder, looked at for weights
ARGV_WORDS = 4
WEIGHTS = re.compile(r".*\.safetensors|pytorch_model.*\.bin")
GPU = re.compile(r"/dev/nvidia[0-9]+")


class Record(NamedTuple):
    """A server that a console started, as it wrote it down."""

    file: str
    fields: Fields

    def number(self, name: str) -> int:
        """A whole number of it; 0 where it is something else."""
        value = self.fields.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    def text(self, name: str) -> str:
        """A text of it; "" where it is something else."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else ""


def since_boot() -> float:
    """Seconds since boot, on the clock that start times of processes are told in."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def started_at(ticks: int) -> float:
    """When a process with that start time began, in Unix seconds."""
    return time.time() - since_boot() + ticks / os.sysconf("SC_CLK_TCK")


def shown(stat: Stat) -> Fields:
    """What is told of a process: who it is, not the rest of its command line, which may hold secrets."""
    return {
        "pid": stat.pid,
        "pgid": stat.pgid,
        "started": started_at(stat.start_time),
        "argv": [word[:200] for word in argv_of(stat.pid)[:ARGV_WORDS]],
    }


def read_records(state: str) -> list[Record]:
    """The newest records on the host; what is none is passed over."""
    folder = f"{state}/servers"
    try:
        names = sorted((name for name in os.listdir(folder) if name.endswith(".json")), reverse=True)
    except OSError:
        return []
    found = []
    for name in names[:RECORDS]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            with open_regular(f"{folder}/{name}") as file:
                fields = json.loads(file.read(RECORD_BYTES))
            if isinstance(fields, dict):
                found.append(Record(f"{folder}/{name}", fields))
    return found


def runs(record: Record) -> bool:
    """Whether the recorded process still lives."""
    stat = stat_of(record.number("pid"))
    return alive(stat) and stat is not None and stat.start_time == record.number("start_time")


def ended(record: Record) -> float | None:
    """When its keeper saw it end, in Unix seconds; None when nobody did."""
    try:
        with open_regular(record.text("exit_file")) as file:
            return float(json.loads(file.read(RECORD_BYTES))["time"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def left_behind(records: list[Record]) -> list[Fields]:
    """Processes of recorded servers that have ended. `proven` by the server's token; else by group and session alone.

    A process may have written over its environment, and the token with it.
    """
    boot = boot_id()
    dead = [record for record in records if record.text("boot_id") == boot and not runs(record)]
    if not dead:
        return []
    everything = processes()
    tokens = {stat.pid: environ_of(stat.pid).get(TOKEN, "") for stat in everything}
    found = []
    for record in dead:
        token, group = record.text("token"), record.number("pgid")
        members = []
        for stat in everything:
            proven = bool(token) and tokens[stat.pid] == token
            # Its own token names another server: the group's number was given away again.
            grouped = group == stat.pgid == stat.sid and tokens[stat.pid] in ("", token)
            if proven or (grouped and group == record.number("pid")):
                members.append(dict(shown(stat), proven=proven))
        if members:
            found.append(
                {
                    "record": record.file,
                    "pid": record.number("pid"),
                    "port": record.number("port"),
                    "ended": ended(record),
                    "processes": members,
                }
            )
    return found


def lineage(pid: int) -> list[int]:
    """The process and those it descends from."""
    found: list[int] = []
    while pid > 0 and pid not in found and len(found) < 100:
        stat = stat_of(pid)
        if stat is None:
            break
        found.append(pid)
        pid = stat.ppid
    return found


def on_port(port: int, server: Fields) -> Fields:
    """Who listens on a port, and whether it is the server, or of its group or descent."""
    inodes = listening_inodes(port) if port else set()
    pid = listener(port) if inodes else None
    stat = stat_of(pid) if pid else None
    answer: Fields = {"port": port, "open": bool(inodes), "hidden": pid == 0, "process": None, "of_server": False}
    if stat is not None and alive(stat):
        leader, group = server.get("pid") or -1, server.get("pgid") or -1
        of_server = leader in lineage(stat.pid) or (group == leader == stat.pgid)
        answer.update(process=shown(stat), of_server=of_server)
    return answer


def disks(places: Fields) -> list[Fields]:
    """How full the file systems of some paths are: bytes and files left to this account, of how many there are."""
    found = []
    for name, path in places.items():
        with contextlib.suppress(OSError, ValueError):
            at = existing(str(path))
            stat = os.statvfs(at)
            # Some blocks are kept for root.
            blocks = stat.f_bavail if os.geteuid() else stat.f_bfree
            found.append(
                {
                    "name": name,
                    "path": str(path),
                    "device": os.stat(at).st_dev,
                    "free": blocks * stat.f_frsize,
                    "total": stat.f_blocks * stat.f_frsize,
                    "free_files": stat.f_favail,
                    "total_files": stat.f_files,
                    "read_only": bool(stat.f_flag & os.ST_RDONLY),
                }
            )
    return found


def existing(path: str) -> str:
    """The path, or the nearest folder above it that is there."""
    while path not in ("", "/") and not os.path.exists(path):
        path = os.path.dirname(path)
    return path or "/"


def draft_files(path: str) -> list[Fields]:
    """The draft's config and weights: when each was last written, in Unix seconds; the config's SHA-256."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(ENTRIES)) if WEIGHTS.fullmatch(entry.name)]
    except OSError:
        return []
    found = []
    for name in ["config.json", *sorted(names)[:SHARDS]]:
        with contextlib.suppress(OSError):
            stat = os.stat(f"{folder}/{name}")
            file: dict[str, Any] = {"name": name, "written": stat.st_mtime, "changed": stat.st_ctime}
            if name == "config.json":
                with open_regular(f"{folder}/{name}") as opened:
                    file["sha256"] = hashlib.sha256(opened.read(CONFIG_BYTES)).hexdigest()
            found.append(file)
    return found


def opened_gpus(everything: list[Stat]) -> list[Fields]:
    """Processes this account can see that have a GPU open."""
    found = []
    for stat in everything:
        with contextlib.suppress(OSError):
            names = os.listdir(f"/proc/{stat.pid}/fd")
            if any(GPU.fullmatch(link(f"/proc/{stat.pid}/fd/{name}")) for name in names):
                found.append(shown(stat))
    return found


def running(pids: list[int]) -> list[Fields]:
    """Those of the processes that this account can see and that run."""
    found = [stat_of(pid) for pid in pids]
    return [shown(stat) for stat in found if stat is not None and alive(stat)]


def snapshot(request: Fields, _: bytes) -> Answer:
    """Everything at once. `server` is the process the caller takes for the server, {} for none."""
    server = request["server"]
    answer = {
        "time": time.time(),
        "server": next(iter(running([server.get("pid") or 0])), None),
        "port": on_port(request["port"], server),
        "left": left_behind(read_records(request["state"])),
        "named": running(request["pids"]),
        "open_gpus": opened_gpus(processes()) if request["gpus"] else [],
        "disks": disks(request["places"]),
        "draft": draft_files(request["draft"]) if request["draft"] else [],
    }
    return answer, b""


if __name__ == "__main__":
    serve({"snapshot": snapshot})
