"""Checks of the host and of the server's process, by a snapshot of them taken before the run."""

from __future__ import annotations

from checks.ops import life, machine, process
from checks.ops.snapshot import Snapshot, snapshot_of

__all__ = ["Snapshot", "life", "machine", "process", "snapshot_of"]
