"""Physical lines of a log before an engine's grammar: escapes, collectors' prefixes, carriage returns, secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

MAX_LINE = 16_384
"""Characters of a line that are looked at: a line of server arguments may be far longer, and its start says it all."""

# CSI and OSC sequences, two-byte escapes, and the 8-bit CSI.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_LEVEL = r"(?:TRACE|DEBUG|INFO|SUCCESS|WARN|WARNING|ERROR|CRITICAL)"

# What stands in front of the server's own line: docker compose, docker logs -t and kubernetes, journald and syslog,
# kubectl logs --prefix, srun -l, torchrun, Ray actors, and the formats of common loggers.
_FRONTS = (
    re.compile(r"[A-Za-z0-9][\w./-]{0,100}\s{0,30}\| "),
    # A cluster's collector: time, and the job behind it.
    re.compile(rf"\[?{_STAMP}\]? {{1,4}}[\w./-]{{1,160}} >> "),
    # A tracer's (Dynamo): time, level, module and function.
    re.compile(rf"{_STAMP} {{1,4}}{_LEVEL} {{1,4}}[\w.:<>]{{1,120}}: "),
    re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(?:Z|[+-]\d\d:\d\d) (?:(?:stdout|stderr) [FP] )?"),
    re.compile(
        r"(?:[A-Z][a-z]{2} [ \d]\d|\d{4}-\d\d-\d\dT)"
        r" ?\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:[+-]\d\d:?\d\d)?"
        r" \S{1,80} [\w.@/-]{1,80}(?:\[\d+\])?: "
    ),
    re.compile(r"\[(?:pod|container)/[\w./-]{1,200}\] "),
    re.compile(r"\[?(?:rank|worker|node)[ -]?\d{1,5}\]?: ?", re.IGNORECASE),
    re.compile(r"\d{1,5}: (?=\[\d{4}-)"),
    re.compile(rf"{_STAMP} ?\| {_LEVEL} *\| (?:[\w.<>]{{1,120}}:[\w<>]{{1,80}}:\d{{1,6}} - )?"),
    re.compile(rf"{_STAMP} - [\w.]{{1,120}} - {_LEVEL} - "),
    re.compile(rf"\[{_STAMP}\](?:\[[\w.]{{1,80}}\])?\[{_LEVEL}\]:? (?:- )?"),
    re.compile(rf"{_LEVEL}:[\w.]{{1,120}}:"),
    re.compile(rf"{_LEVEL} {_STAMP} \[?[\w./]{{1,120}}:\d{{1,6}}\] "),
    # gunicorn, absl: severity, date, process, file and line.
    re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} +\d{1,10} [\w./]{1,120}:\d{1,6}\] "),
)
_MAX_FRONTS = 4
_SPEAKER = re.compile(r"\[rank\d{1,5}\]: ?$")

_ACTOR = re.compile(r"\([A-Za-z][\w.:/<>-]{0,100}(?: rank=\d{1,6})?(?: pid=\d{1,10})?(?:, ip=[\w.:]{1,60})?\) ")
# Loggers and collectors write their keys in any order.
_COLLECTED = re.compile(
    r'\{\s?"[\w@.-]{1,60}"\s?:.{0,4096}"(?:log|message|msg|MESSAGE)"\s?:|\{"(?:log|message|msg|MESSAGE)":'
)

BAR = re.compile(r"(?P<what>[^:|]{0,120}):\s{0,8}(?P<percent>\d{1,3})%")
"""A progress bar of tqdm: what it counts, and how far it is."""
BAR_END = re.compile(r"\d{1,9}/\d{1,9} \[|it/s|s/it|Completed \|")


def progress(message: str) -> float | None:
    """How far the progress bar at the start of a message is, 0 … 1; None when there is none."""
    bar = BAR.match(message)
    return min(int(bar["percent"]), 100) / 100 if bar is not None else None


_SECRET = re.compile(r"(api[_-]key[\"']?\s?[=:]?\s?)([\"'])(?:(?!\2).){1,400}\2")


def clean(text: str) -> str:
    """A line without terminal escapes, control characters and its end."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text[: 2 * MAX_LINE]))[:MAX_LINE]


def pieces(line: str) -> Iterator[str]:
    """The parts of a physical line that a terminal would have written over each other, cleaned; empty ones left out."""
    line = line[: 16 * MAX_LINE]
    if line.isascii() and line.isprintable():  # nothing to clean in nearly every line
        parts = [line]
    else:
        parts = [clean(part) for part in line.replace("\r\n", "\n").rstrip("\n").split("\r")]
    for part in parts:
        text = part[:MAX_LINE].strip(" \t")
        if "key" in text:
            text = _SECRET.sub(r"\1\2***\2", text)
        if text:
            yield text


def without_front(text: str, actors: bool = False) -> str:
    """The line without what a log collector put in front of it; `actors`: nor the name of a Ray actor."""
    if _COLLECTED.match(text):
        text = _collected(text)
    for _ in range(_MAX_FRONTS):
        fronts = (*_FRONTS, _ACTOR) if actors else _FRONTS
        found = next((found for front in fronts if (found := front.match(text))), None)
        if found is None:
            break
        text = text[found.end() :]
    return text


def with_speaker(piece: str, text: str) -> str:
    """`text`, which is `piece` without its front, with the rank that stood right before it: `[rank0]: Traceback`.

    A line without a head of its own has nothing else to say which rank it is of.
    """
    if not piece.endswith(text):
        return text
    speaker = _SPEAKER.search(piece[: len(piece) - len(text)])
    return speaker.group() + text if speaker is not None else text


def _collected(text: str) -> str:
    """The line inside a record: of docker's json-file driver, of journalctl -o json, of a logger that writes JSON."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return text
    inner = next(
        (record[key] for key in ("log", "message", "msg", "MESSAGE") if isinstance(record.get(key), str)), text
    )
    return clean(inner).strip()
