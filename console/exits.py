"""The exit codes that scripts may rely on."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended. `FINDINGS` wins over `NOT_PROVEN`."""

    OK = 0
    """Nothing at or above `--fail-on`; for other commands: done."""
    FINDINGS = 1
    """Findings at or above `--fail-on`; for other commands: the thing asked for did not come about."""
    USAGE = 2
    """Wrong arguments, or a deployment file that cannot be read."""
    NOT_RUN = 3
    """It could not be run: host unreachable, path missing or not permitted, no python or no numpy there."""
    NOT_PROVEN = 4
    """UNKNOWN left, and `--strict` given."""
    INTERRUPTED = 130
    """Stopped by ctrl-c."""
