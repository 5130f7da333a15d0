"""What would run and what runs: the launch plan of a deployment, and the status of its server."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from console.masking import mask_argv, mask_env

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote.server import Record


@dataclass(frozen=True, slots=True)
class Difference:
    """One flag, variable or path on which the file and the running process disagree; None = absent there."""

    key: str
    planned: str | None
    running: str | None


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The exact command that would run. `changes` is its difference from the process that runs now."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: str
    port: int
    changes: tuple[Difference, ...] = ()

    @property
    def shown(self) -> str:
        """The command as one would type it, secrets masked."""
        env = [f"{key}={value}" for key, value in mask_env(self.env).items()]
        return shlex.join([*env, *mask_argv(self.argv)])


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The server as seen on the host now.

    `phase` is one of stopped, starting, loading, capturing, warming, ready, serving, draining, crashed, foreign (a
    process that is not ours owns the port). `argv` is the running process's own; it always wins over the file, and
    `differences` says where they disagree. `since` is when it started, in epoch seconds.
    """

    phase: str = "stopped"
    record: Record | None = None
    pid: int | None = None
    argv: tuple[str, ...] = ()
    url: str = ""
    healthy: bool = False
    engine: str = ""
    since: float | None = None
    differences: tuple[Difference, ...] = field(default_factory=tuple)
    note: str = ""

    @property
    def up(self) -> bool:
        """Whether a process of this deployment runs at all."""
        return self.phase not in ("stopped", "crashed")
