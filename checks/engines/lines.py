"""Physical lines of a log before an engine's grammar: escapes, collectors' prefixes, carriage returns, secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_LINE = 16_384
"""Characters of a line that are looked at: a line of server arguments may be far longer, and its start says it all."""

# CSI and OSC sequences, two-byte escapes, and the 8-bit CSI.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# What stands in front of the server's own line: docker compose, docker logs -t and kubernetes, journald and syslog,
# srun -l, a vLLM process name.
_FRONTS = (
    re.compile(r"[A-Za-z0-9][\w.-]{0,80}\s{0,20}\| "),
    re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(?:Z|[+-]\d\d:\d\d) (?:(?:stdout|stderr) [FP] )?"),
    re.compile(
        r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:?\d\d)"
        r" \S{1,80} [\w.@/-]{1,80}(?:\[\d+\])?: "
    ),
    re.compile(r"\[pod/[\w./-]{1,200}\] "),
    re.compile(r"\d{1,5}: (?=\[\d{4}-)"),
)
_MAX_FRONTS = 3

_SECRET = re.compile(r"(api[_-]key[\"']?\s?[=:]?\s?)([\"'])(?:(?!\2).){1,400}\2")


def clean(text: str) -> str:
    """A line without terminal escapes, control characters and its end."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text[: 2 * MAX_LINE]))[:MAX_LINE]


def pieces(line: str) -> Iterator[str]:
    """The parts of a physical line that a terminal would have written over each other, cleaned; empty ones left out."""
    for part in line[: 16 * MAX_LINE].replace("\r\n", "\n").rstrip("\n").split("\r"):
        text = _SECRET.sub(r"\1\2***\2", clean(part).strip(" \t"))
        if text:
            yield text


def without_front(text: str) -> str:
    """The line without what a log collector put in front of it."""
    for _ in range(_MAX_FRONTS):
        for front in _FRONTS:
            found = front.match(text)
            if found:
                text = text[found.end() :]
                break
        else:
            return text
    return text
