"""When a process of this machine began, by /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path


def started_at(pid: object) -> float | None:
    """When a process of this machine began, in Unix seconds; None where that cannot be told (proc(5), field 22)."""
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return None
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[19])
        # Against the uptime, not the boot time: that one is whole seconds, and a config is often written just before.
        uptime = float(Path("/proc/uptime").read_text("ascii").split()[0])
        return time.time() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None
