"""What the console refuses or cannot do, as one tree of exceptions.

ConsoleError
├── UsageError            the command was given wrongly (exit 2)
│   └── DeploymentError       a deployment file that is missing, unreadable or wrong
├── NotRun                the thing asked for could not be started (exit 3)
├── Refused               a change that is not allowed now: read-only, or nothing to do
├── DraftError            a staged edit that cannot be made or written
│   ├── PatchError            a fix whose `test` does not hold for the text at hand
│   └── ChangedMeanwhile      the file on the host is not the one the edit began with
└── StartFailed           the server did not come up; `phase` and the last lines say where
"""

from __future__ import annotations


class ConsoleError(Exception):
    """Root of the package's errors: a message that says what, why and what to do next."""


class UsageError(ConsoleError):
    """The command was given wrongly."""


class DeploymentError(UsageError):
    """A deployment file that is missing, unreadable or wrong."""


class NotRun(ConsoleError):
    """The thing asked for could not be started."""


class Refused(ConsoleError):
    """A change that is not allowed now."""


class DraftError(ConsoleError):
    """A staged edit that cannot be made or written."""


class PatchError(DraftError):
    """A fix whose `test` does not hold for the text at hand."""


class ChangedMeanwhile(DraftError):
    """The file on the host changed since it was read; `theirs` is its text now."""

    def __init__(self, message: str, theirs: str) -> None:
        super().__init__(message)
        self.theirs = theirs


class StartFailed(ConsoleError):
    """The server did not come up. `phase` is how far it came, `lines` the end of its log."""

    def __init__(self, message: str, phase: str = "", lines: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.phase = phase
        self.lines = lines
