"""What can go wrong before a verdict exists, as one tree of exceptions.

CheckError
├── NotRunnable      the whole run cannot start: a given path is missing or not permitted (exit 3)
├── NoSuchCheck      a check was named that the catalog does not have (exit 2)
├── Unreadable       one input exists and cannot be read as what it claims to be
│   ├── BadConfig        a config.json that is not a JSON object
│   ├── BadTensors       a truncated or malformed tensor file, or a tensor it promises and lacks
│   │   ├── OtherShape       a cached file that is whole, and of another layout or width than the rest of its cache
│   │   └── Unpaired         a cached file whose ids and states are not of one length
│   └── UnknownLayout    a cache whose layout no reader recognises
├── NeedsLibrary     reading it takes a library this python does not have (torch for pickled caches)
├── PatchFailed      a JSON Patch that does not fit the config it is applied to
├── CaptureFailed    the engine did not give the states that were asked for
├── CannotReplay     a draft whose forward is not one the replay computes
├── UnknownRope      a rotary embedding of a kind that is not computed here
├── RuleUnknown      a rule that does not say what an engine feeds for these ids
├── SourceUnknown    an engine's source that is not there, or cannot be read for what is asked of it
└── LaunchConflict   launch flags that contradict the deployment, or cannot be one
"""

from __future__ import annotations


class CheckError(Exception):
    """Root of the package's errors: a message that says what, why and what to do next."""

    told_by = ""
    """The check that says it in full; beside that one the others say `brief`."""
    brief = ""


class NotRunnable(CheckError):
    """The run cannot start."""


class NoSuchCheck(CheckError):
    """A check was named that the catalog does not have."""


class Unreadable(CheckError):
    """An input exists and cannot be read as what it claims to be."""


class BadConfig(Unreadable):
    """A config.json that is not a JSON object."""


class BadTensors(Unreadable):
    """A truncated or malformed tensor file."""


class OtherShape(BadTensors):
    """A cached file unlike the rest of its cache; `found` says what it holds."""

    def __init__(self, message: str, found: str) -> None:
        super().__init__(message)
        self.found = found


class Unpaired(BadTensors):
    """A cached file whose token ids and states are not of one length."""


class UnknownLayout(Unreadable):
    """A cache that no reader recognises; the message says what one of its files holds."""

    told_by = "data.layout"
    brief = "the layout of the cache is not known"


class NeedsLibrary(CheckError):
    """A library is missing on this python; `library` is its import name."""

    def __init__(self, library: str, message: str) -> None:
        super().__init__(message)
        self.library = library


class PatchFailed(CheckError):
    """A JSON Patch that does not fit the config."""


class CaptureFailed(CheckError):
    """The engine did not give the states that were asked for."""
