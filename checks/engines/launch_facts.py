"""What a server's command line says, in the same words for every engine, and how two of them differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from checks.errors import CheckError

Value = Union[str, bool, list[str]]


class LaunchConflict(CheckError):
    """The launch flags say something else than the deployment's model, draft or port."""


@dataclass(frozen=True)
class LaunchFacts:
    """What a command line says. `flags` are by first name without dashes: True for a bare flag, a list for many values.

    The speculative numbers are as written, None when absent; an engine's `flags.py` says what becomes of them.
    """

    python: str = ""
    entrypoint: str = ""
    model: str = ""
    draft: str = ""
    port: int = 0
    algorithm: str = ""
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    flags: Mapping[str, Value] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables assigned in front of the command."""
    written: tuple[str, ...] = ()
    """The flags as they were spelt, in order."""


@dataclass(frozen=True)
class Difference:
    """One flag that a running server and a plan disagree on; None = absent."""

    flag: str
    running: Value | None
    planned: Value | None


def flag_words(name: str, value: object) -> list[str]:
    """A flag as words of a command line: true is bare, a list follows it, None and false leave it out.

    Raises LaunchConflict for a value that has no place there.
    """
    if value is None or value is False:
        return []
    items = value if isinstance(value, (list, tuple)) else [value]
    return [f"--{name}", *([] if value is True else [_word(name, item) for item in items])]


def differences(running: LaunchFacts, planned: LaunchFacts) -> tuple[Difference, ...]:
    """The flags on which two command lines disagree, by name; a path compares without its last slash."""
    names = sorted({*running.flags, *planned.flags})
    found = []
    for name in names:
        left, right = running.flags.get(name), planned.flags.get(name)
        if _plain(left) != _plain(right):
            found.append(Difference(name, left, right))
    return tuple(found)


def _word(name: str, value: object) -> str:
    if isinstance(value, (dict, bool)) or value is None or "\0" in str(value):
        raise LaunchConflict(f"--{name}: {value!r} has no place on a command line; give text, numbers or a list")
    return str(value)


def _plain(value: Value | None) -> object:
    return value.rstrip("/") or value if isinstance(value, str) else value
