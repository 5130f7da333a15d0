"""SGLang's command line: argv from plain values, and plain values back from a running server's argv."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from checks.engines.launch_facts import Difference, LaunchConflict, LaunchFacts, Value, differences, flag_words
from checks.engines.locate import entry_of
from checks.engines.sglang.options import canonical

__all__ = ["DEFAULT_PORT", "ENTRYPOINT", "Difference", "LaunchConflict", "LaunchFacts", "argv", "differences"]
__all__ += ["parse_argv"]

ENTRYPOINT = "sglang.launch_server"
"""The module every release can be started with; `sglang serve` came with 0.5.3 and names the same server."""
DEFAULT_PORT = 30000

# Flags whose value comes from elsewhere in a deployment, and the spellings that mean the same.
_MODEL = ("model-path", "model")
_DRAFT = ("speculative-draft-model-path", "speculative-draft-model")
_PORT = ("port",)

# What a shell puts behind a command: not a value of its last flag.
_SHELL = re.compile(r"(&&?|\|\|?|;|<|[0-9]?>>?(&[0-9]|[\w./~-]*))")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


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
        words += flag_words(name, value)
    return words


def parse_argv(argv: Sequence[str], cwd: str = "") -> LaunchFacts:
    """Read a server's command line, as a process has it or as it was typed.

    Both `--flag value` and `--flag=value`, aliases and the beginnings argparse takes; variables assigned in front;
    line continuations and what a shell puts behind the command are dropped. What is not an option is passed over; a
    repeated flag counts as given last.
    """
    env, command, words = _parts(argv)
    entry = entry_of(command, cwd)
    flags: dict[str, Value] = {}
    written: list[str] = []
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            continue
        spelt, has_value, value = word[2:].partition("=")
        written.append(spelt)
        name = canonical(spelt.replace("_", "-"))
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
        env=env,
        written=tuple(written),
    )


def _parts(argv: Sequence[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """(variables in front, the command with its options, the options alone)."""
    # A backslash at a line's end leaves a line break at the front of the next word, or a word of its own.
    typed = [word.lstrip("\r\n") if word[:1] in "\r\n" else word for word in argv]
    words = [word for word, before in zip(typed, argv) if word.strip("\\\r\n") or before == ""]
    end = next((index for index, word in enumerate(words) if index and _SHELL.fullmatch(word)), len(words))
    words = words[:end]
    server = next((index for index, word in enumerate(words) if word.split(".")[-1] == "launch_server"), None)
    if server is None:
        pairs = zip(words, [*words[1:], ""])
        serve = (index for index, (word, after) in enumerate(pairs) if Path(word).name == "sglang" and after == "serve")
        server = next(serve, None)
    begin = server or 0
    start = next(
        (index for index in range(begin, len(words)) if words[index][:2] == "--" and words[index][2:]), len(words)
    )
    env = {found.group(1): found.group(2) for word in words[:start] if (found := _ASSIGNED.fullmatch(word))}
    command = [word for index, word in enumerate(words) if index >= start or not _ASSIGNED.fullmatch(word)]
    if command[:1] in (["env"], ["exec"], ["nohup"]):
        command = command[1:]
    return env, command, words[start:]


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


def _text(value: Value | None) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Value | None) -> int | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 else None
