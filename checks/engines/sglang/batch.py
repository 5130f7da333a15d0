"""SGLang's batch lines, all releases from 0.4.6: `key: value` pairs in whatever order a release prints them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from checks.engines.events import Decode, Event, Prefill
from checks.engines.shapes import Number, Plan, percent

BATCH = re.compile(r"(Prefill|Decode) batch(?: \[\d{1,12}\])?[.,] ")
"""How the message of a batch line begins: with a dot, a comma, or the number of the forward pass."""

_PAIR = re.compile(
    r"([#A-Za-z][^:,]{0,60}): "
    r"(?:(True|False)|(-?\d{1,18})|(-?\d{1,18}\.\d{1,12})|(-?\d{1,18}(?:\.\d{1,12})?)%)(?:,\s*|\s*$)"
)

Keys = tuple[str, ...]
_SHARED: dict[str, Keys] = {
    "running": ("#running-req",),
    "queue": ("#queue-req",),
    "token_usage": ("token usage", "full token usage"),
}
_COUNTS = frozenset({"running", "queue", "tokens", "new_seqs", "new_tokens", "cached_tokens"})

FIELDS: Mapping[type[Event], Mapping[str, Keys]] = {
    Decode: {
        **_SHARED,
        "tokens": ("#token", "#full token"),
        "accept_len": ("accept len",),
        "accept_rate_printed": ("accept rate",),
        "throughput": ("gen throughput (token/s)",),
    },
    Prefill: {
        **_SHARED,
        "new_seqs": ("#new-seq",),
        "new_tokens": ("#new-token",),
        "cached_tokens": ("#cached-token",),
        "throughput": ("input throughput (token/s)",),
    },
}
"""Field of an event -> the keys it is printed under; the first that is there counts."""


def batch_event(message: str, number: int, text: str, time: str | None, rank: Mapping[str, int]) -> Event | None:
    """The event of a batch line's message, None when it is none."""
    found = BATCH.match(message)
    if found is None:
        return None
    pairs = dict(_pairs(message, found.end()))
    kind: Any = Decode if found.group(1) == "Decode" else Prefill
    values: dict[str, Any] = {}
    for name, keys in FIELDS[kind].items():
        value = next((pairs[key] for key in keys if key in pairs), None)
        if value is None or isinstance(value, bool):
            continue
        if name not in _COUNTS:
            values[name] = float(value)
        elif isinstance(value, int):
            values[name] = value
    event: Event = kind(number, text, time, rank, graph=_graph(pairs), fields=pairs, **values)
    return event


def batch_plan(
    message: str,
    at: int,
    text: tuple[int, int],
    time: tuple[int, int] | None,
    tags: tuple[int, int],
    ranks: Callable[[str], Mapping[str, int]],
) -> Plan | None:
    """The plan for lines of this shape; the message begins at place `at` of the raw line. None where it has none."""
    found = BATCH.match(message)
    if found is None:
        return None
    kind: type[Event] = Decode if found.group(1) == "Decode" else Prefill
    places: dict[str, tuple[str, int, int]] = {}
    pairs: dict[str, float | bool] = {}
    for pair in _PAIR.finditer(message, found.end()):
        group = next(index for index in range(2, 6) if pair.group(index) is not None)
        places[pair.group(1)] = (_READ[group], *pair.span(group))
        pairs[pair.group(1)] = _value(group, pair.group(group))
    numbers = []
    for name, keys in FIELDS[kind].items():
        key = next((key for key in keys if key in places), None)
        how, start, end = places[key] if key is not None else ("truth", 0, 0)
        if how == "truth" or (name in _COUNTS and how != "whole"):
            continue
        if message[start] == "-" or end - start > 15:
            return None
        read: Callable[[str], float] = int if name in _COUNTS else percent if how == "percent" else float
        numbers.append(Number(name, at + start, at + end, read, 100.0 if how == "percent" else 1.0))
    graph = _graph(pairs)
    constants = {} if graph is None else {"graph": graph}
    return Plan(kind, text, time, ranks, tags, tuple(numbers), constants, _pairs_of)


_READ = {2: "truth", 3: "whole", 4: "real", 5: "percent"}


def _value(group: int, text: str) -> float | bool:
    if group == 2:
        return text == "True"
    if group == 3:
        return int(text)
    return float(text) if group == 4 else percent(text)


def _pairs(message: str, start: int) -> Iterator[tuple[str, float | bool]]:
    """The pairs whose value is a number, a percentage (as a fraction) or a truth value; anything between is skipped."""
    for key, *values in _PAIR.findall(message, start):
        group = next(index for index, value in enumerate(values, 2) if value)
        yield key, _value(group, values[group - 2])


def _pairs_of(text: str) -> dict[str, float | bool]:
    """Every pair of a batch line."""
    found = BATCH.search(text)
    return dict(_pairs(text, found.end())) if found is not None else {}


def _graph(pairs: Mapping[str, float | bool]) -> bool | None:
    """`cuda graph`, `cpu graph`, `npu graph`, …: whatever the device calls it."""
    return next((value for key, value in pairs.items() if key.endswith(" graph") and isinstance(value, bool)), None)
