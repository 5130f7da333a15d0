"""SGLang's command line: argv from plain values, and plain values back from a running server's argv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

from checks.engines.locate import entry_of
from checks.errors import CheckError

ENTRYPOINT = "sglang.launch_server"
"""The module every release can be started with; `sglang serve` came with 0.5.3 and names the same server."""
DEFAULT_PORT = 30000

Value = Union[str, bool, list[str]]

# Flags whose value comes from elsewhere in a deployment, and the spellings that mean the same.
_MODEL = ("model-path", "model")
_DRAFT = ("speculative-draft-model-path", "speculative-draft-model")
_PORT = ("port",)

# Spellings of one flag, mapped to its first name, so that a running command line and a planned one compare.
_ALIASES = {
    "model": "model-path",
    "speculative-draft-model": "speculative-draft-model-path",
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
    "speculative-algo": "speculative-algorithm",
}


class LaunchConflict(CheckError):
    """The launch flags say something else than the deployment's model, draft or port."""


@dataclass(frozen=True)
class LaunchFacts:
    """What a command line says. `flags` are by first name without dashes: True for a bare flag, a list for many values.

    The speculative numbers are as written, None when absent; `flags.py` says what becomes of them.
    """

    python: str = ""
    entrypoint: str = ""
    model: str = ""
    draft: str = ""
    port: int = DEFAULT_PORT
    algorithm: str = ""
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    flags: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """One flag that a running server and a plan disagree on; None = absent."""

    flag: str
    running: Value | None
    planned: Value | None


def argv(python: str, entrypoint: str, model: str, draft: str, port: int, args: Mapping[str, object]) -> list[str]:
    """The command line that starts a server.

    `args` become `--key value`; true is a bare flag, false and None leave it out, a list becomes `--key v1 v2 …`.
    Raises LaunchConflict when `args` gives model, draft or port another value, or a key or value is not usable.
    """
    words = [python, "-m", entrypoint or ENTRYPOINT, "--model-path", model]
    if draft:
        words += ["--speculative-draft-model-path", draft]
    words += ["--port", str(port)]
    for key, value in args.items():
        name = _name(key)
        if _owned(name, value, model, draft, port):
            continue
        if value is None or value is False:
            continue
        words.append(f"--{name}")
        if value is not True:
            words += [_word(name, item) for item in (value if isinstance(value, (list, tuple)) else [value])]
    return words


def parse_argv(argv: Sequence[str], cwd: str = "") -> LaunchFacts:
    """Read a server's command line. What is not an option is passed over; a repeated flag counts as given last."""
    entry = entry_of(argv, cwd)
    start = next((index for index, word in enumerate(argv) if word.startswith("--") and len(word) > 2), len(argv))
    flags: dict[str, Value] = {}
    words = list(argv[start:])
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            continue
        name, has_value, value = word[2:].partition("=")
        name = _ALIASES.get(name.replace("_", "-"), name.replace("_", "-"))
        if has_value:
            flags[name] = value
            continue
        values = []
        while words and not words[0].startswith("--"):
            values.append(words.pop(0))
        flags[name] = True if not values else values[0] if len(values) == 1 else values
    return LaunchFacts(
        python=entry.python if entry else "",
        entrypoint=entry.module if entry else "",
        model=_text(flags.get("model-path")),
        draft=_text(flags.get("speculative-draft-model-path")),
        port=_number(flags.get("port")) or DEFAULT_PORT,
        algorithm=_text(flags.get("speculative-algorithm")),
        steps=_number(flags.get("speculative-num-steps")),
        topk=_number(flags.get("speculative-eagle-topk")),
        draft_tokens=_number(flags.get("speculative-num-draft-tokens")),
        flags=flags,
    )


def differences(running: LaunchFacts, planned: LaunchFacts) -> tuple[Difference, ...]:
    """The flags on which two command lines disagree, by name; a path compares without its last slash."""
    names = sorted({*running.flags, *planned.flags})
    found = []
    for name in names:
        left, right = running.flags.get(name), planned.flags.get(name)
        if _plain(left) != _plain(right):
            found.append(Difference(name, left, right))
    return tuple(found)


def _owned(name: str, value: object, model: str, draft: str, port: int) -> bool:
    """Whether the flag is one that the deployment gives elsewhere; the same value again is harmless."""
    for names, given, where in (
        (_MODEL, model, "[model] target"),
        (_DRAFT, draft, "[model] draft"),
        (_PORT, str(port), "[server] url"),
    ):
        if name in names:
            same = str(value) == given or Path(str(value)) == Path(given or "\0")
            if not same:
                raise LaunchConflict(
                    f"--{name} {value} in the launch flags and {given or 'nothing'} in {where}: "
                    "two values for one thing; remove the flag, or correct the other"
                )
            return True
    return False


def _name(key: str) -> str:
    name = key.lstrip("-").replace("_", "-")
    if not name or any(character.isspace() or character in "=\0" for character in name):
        raise LaunchConflict(f"{key!r} is not the name of a flag")
    return name


def _word(name: str, value: object) -> str:
    if isinstance(value, (dict, bool)) or value is None or "\0" in str(value):
        raise LaunchConflict(f"--{name}: {value!r} has no place on a command line; give text, numbers or a list")
    return str(value)


def _plain(value: Value | None) -> object:
    return value.rstrip("/") or value if isinstance(value, str) else value


def _text(value: Value | None) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Value | None) -> int | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 else None
