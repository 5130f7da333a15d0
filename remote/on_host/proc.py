"""What /proc says about processes: who they are, for certain, and which ports they listen on."""

from __future__ import annotations

import contextlib
import os
from typing import Any, NamedTuple

LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp, include/net/tcp_states.h
DEAD_STATES = ("Z", "X")
TOKEN = "EAGLE_CONSOLE_SERVER"  # in a server's environment, so that orphans of a dead server can be proven ours


class Stat(NamedTuple):
    """Fields of /proc/PID/stat (proc(5)); `start_time` is field 22, clock ticks since boot."""

    pid: int
    state: str
    ppid: int
    pgid: int
    sid: int
    start_time: int
    rss_pages: int


def read_bytes(path: str) -> bytes:
    """A file of /proc; b"" when the process is gone or not ours to see."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def stat_of(pid: int) -> Stat | None:
    """The process, or None when there is none. Its name may hold spaces and brackets: fields count from its end."""
    text = read_bytes(f"/proc/{pid}/stat").decode("utf-8", "replace")
    _, _, rest = text.rpartition(")")
    fields = rest.split()
    if len(fields) < 22:
        return None
    return Stat(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), int(fields[21]))


def alive(stat: Stat | None) -> bool:
    """Whether it runs; one that waits to be reaped does not."""
    return stat is not None and stat.state not in DEAD_STATES


def processes() -> list[Stat]:
    """All running processes this account can see."""
    found = [stat_of(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    return [stat for stat in found if stat is not None and stat.state not in DEAD_STATES]


def boot_id() -> str:
    """Tells this boot of the machine from any other."""
    return read_bytes("/proc/sys/kernel/random/boot_id").decode().strip()


def words(path: str) -> list[str]:
    """The NUL-separated strings of cmdline or environ."""
    data = read_bytes(path).rstrip(b"\0")
    return [os.fsdecode(word) for word in data.split(b"\0")] if data else []


def argv_of(pid: int) -> list[str]:
    """The command line as the process shows it."""
    return words(f"/proc/{pid}/cmdline")


def environ_of(pid: int) -> dict[str, str]:
    """The environment a process was started with; {} when it is not ours to see."""
    return dict(word.split("=", 1) for word in words(f"/proc/{pid}/environ") if "=" in word)


def link(path: str) -> str:
    """Where a link of /proc points; "" when unknown."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def info(stat: Stat) -> dict[str, Any]:
    """Everything about one process, as remote.process.ProcessInfo."""
    out = link(f"/proc/{stat.pid}/fd/1")
    return {
        "pid": stat.pid,
        "ppid": stat.ppid,
        "pgid": stat.pgid,
        "sid": stat.sid,
        "start_time": stat.start_time,
        "boot_id": boot_id(),
        "argv": argv_of(stat.pid),
        "cwd": link(f"/proc/{stat.pid}/cwd"),
        "env": environ_of(stat.pid),
        "rss_bytes": stat.rss_pages * os.sysconf("SC_PAGE_SIZE"),
        "stdout": out if out.startswith("/") and not out.startswith("/dev/") else "",
    }


def listening_inodes(port: int) -> set[str]:
    """Inodes of the sockets that listen on a TCP port, of all users, v4 and v6."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_bytes(table).decode("ascii", "replace").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def owners(inodes: set[str]) -> list[int]:
    """Processes that hold one of the sockets, as far as this account can see."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if any(link(f"/proc/{name}/fd/{fd}") in wanted for fd in os.listdir(f"/proc/{name}/fd")):
                found.append(int(name))
    return found


def listener(port: int) -> int | None:
    """The process that listens on a port: None when nobody does, 0 when it is not ours to see.

    Workers inherit their parent's socket; the topmost process is the server.
    """
    inodes = listening_inodes(port)
    if not inodes:
        return None
    pids = set(owners(inodes))
    tops = []
    for pid in pids:
        stat = stat_of(pid)
        if stat is not None and stat.ppid not in pids:
            tops.append(pid)
    return min(tops, default=0)
