"""Processes on a host as /proc shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from remote import scripts
from remote.host import Host


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process. `start_time` is in clock ticks since boot (/proc/PID/stat field 22); with `boot_id` it names the
    process for ever. `env` is as it was at the start and may hold secrets (mask it); {} when not ours to see.
    `rss_bytes` is resident memory; `stdout` the file its output goes to, "" when that is none."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    start_time: int
    boot_id: str
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str] = field(repr=False)
    rss_bytes: int
    stdout: str

    @property
    def pythonpath(self) -> tuple[str, ...]:
        """Its PYTHONPATH, relative entries resolved against its working folder."""
        entries = [entry for entry in self.env.get("PYTHONPATH", "").split(":") if entry]
        return tuple(entry if entry.startswith("/") else f"{self.cwd}/{entry}" for entry in entries)


def from_answer(answer: dict[str, Any] | None) -> ProcessInfo | None:
    """A ProcessInfo from what on_host/server.py answers."""
    return ProcessInfo(**{**answer, "argv": tuple(answer["argv"])}) if answer else None


async def process(host: Host, pid: int) -> ProcessInfo | None:
    """The process with that pid; None when none runs."""
    answer, _ = await scripts.call(host, "server", {"op": "look", "pid": pid, "port": 0})
    return from_answer(answer["process"])


async def listener(host: Host, port: int) -> ProcessInfo | None:
    """The process that listens on a TCP port (of several, the one that started the others); None when none does.

    Raises PermissionDenied when it belongs to a user whose processes the account cannot see.
    """
    answer, _ = await scripts.call(host, "server", {"op": "look", "pid": 0, "port": port})
    return from_answer(answer["process"])
