"""vLLM's command line: argv from plain values, and plain values back; speculation is one JSON object of a flag."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from checks.engines.launch_facts import Difference, LaunchConflict, LaunchFacts, Value, differences, flag_words
from checks.engines.locate import entry_of

__all__ = ["DEFAULT_PORT", "ENTRYPOINT", "Difference", "LaunchConflict", "LaunchFacts", "argv", "differences"]
__all__ += ["parse_argv"]

ENTRYPOINT = "vllm.entrypoints.openai.api_server"
"""The module every release can be started with; `vllm serve MODEL` names the same server."""
DEFAULT_PORT = 8000
METHOD = "eagle3"
SPECULATION = "speculative-config"

_DIGITS = re.compile(r"[0-9]{1,5}")

ALIASES = {"tp": "tensor-parallel-size", "dp": "data-parallel-size", "pp": "pipeline-parallel-size", "sc": SPECULATION}


def argv(python: str, entrypoint: str, model: str, draft: str, port: int, args: Mapping[str, object]) -> list[str]:
    """The command line that starts a server.

    `args` become `--key value`; true is a bare flag, false and None leave it out, a list becomes `--key v1 v2 …`.
    `speculative-config` may be an object or its JSON; the draft goes into it, with method eagle3 unless it names one.
    Raises LaunchConflict when `args` gives model, draft or port another value, or a value has no place there.
    """
    words = [python, "-m", entrypoint or ENTRYPOINT, "--model", model, "--port", str(port)]
    named = {key.lstrip("-").replace("_", "-"): value for key, value in args.items()}
    given = _object(named.pop(SPECULATION, None))
    if draft:
        if given.get("model") not in (None, draft):
            raise LaunchConflict(
                f"--{SPECULATION} names the draft {given['model']}, and [model] draft is {draft}: remove one of them"
            )
        given = {"method": METHOD, **given, "model": draft}
    if given:
        words += [f"--{SPECULATION}", json.dumps(given)]
    for name, value in named.items():
        owned = {"model": model, "port": str(port)}.get(name)
        if owned is not None:
            if str(value) != owned:
                raise LaunchConflict(f"--{name} {value} in the launch flags, and {owned} in the deployment: remove one")
            continue
        words += flag_words(
            name, [_as_json(item) for item in value] if isinstance(value, (list, tuple)) else _as_json(value)
        )
    return words


def parse_argv(argv: Sequence[str], cwd: str = "") -> LaunchFacts:
    """Read a server's command line. k drafted tokens a step are k steps of topk 1, and k + 1 tokens to verify."""
    words = list(argv)
    entry = entry_of(words, cwd)
    flags: dict[str, Value] = {}
    written: list[str] = []
    while words:
        word = words.pop(0)
        if not word.startswith("--") or len(word) == 2:
            continue
        spelt, has_value, value = word[2:].partition("=")
        written.append(spelt)
        name = spelt.replace("_", "-")
        name = ALIASES.get(name, name)
        values = [value] if has_value else []
        while not has_value and words and not words[0].startswith("--"):
            values.append(words.pop(0))
        flags[name] = True if not values else values[0] if len(values) == 1 else values
    try:
        given = _object(flags.get(SPECULATION))
    except LaunchConflict:
        given = {}  # a running server may have been started with what its release still took
    drafted = given.get("num_speculative_tokens")
    steps = drafted if isinstance(drafted, int) and not isinstance(drafted, bool) and 0 < drafted < 1000 else None
    model = flags.get("model")
    port = flags.get("port")
    return LaunchFacts(
        python=entry.python if entry else "",
        entrypoint=entry.module if entry else "",
        model=model if isinstance(model, str) else _served(argv),
        draft=str(given.get("model", "")),
        port=int(port)
        if isinstance(port, str) and port.isascii() and port.isdigit() and len(port) < 6
        else DEFAULT_PORT,
        algorithm=str(given.get("method", "")).upper(),
        steps=steps,
        topk=1 if steps is not None else None,
        draft_tokens=steps + 1 if steps is not None else None,
        flags=flags,
        written=tuple(written),
    )


def _served(argv: Sequence[str]) -> str:
    """The model of `vllm serve MODEL`."""
    after = next((argv[at + 1 :] for at, word in enumerate(argv) if word == "serve"), [])
    return after[0] if after and not after[0].startswith("-") else ""


def _object(value: object) -> dict[str, Any]:
    if value is None or value == "":
        return {}
    try:
        read = json.loads(value) if isinstance(value, str) else dict(value)  # type: ignore[call-overload]
    except (ValueError, TypeError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise LaunchConflict(f"--{SPECULATION} is no JSON object: {str(value)[:80]}")
    return read


def _as_json(value: object) -> object:
    """vLLM takes objects as JSON."""
    return json.dumps(value) if isinstance(value, dict) else value
