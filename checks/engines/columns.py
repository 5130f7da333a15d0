"""A log's history as columns of numbers: the values of the typed events, without an object for each line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from checks.engines.events import Decode, Event, Prefill
from checks.engines.shapes import DIGITS, LONGEST, MOST, Plan, Plans

Numbers = npt.NDArray[np.float64]
Times = npt.NDArray[np.datetime64]

COMMON = ("line", "dp", "running", "queue", "token_usage", "throughput", "graph")
NAMES: Mapping[type[Event], tuple[str, ...]] = {
    Decode: (*COMMON, "tokens", "accept_len", "accept_rate_printed", "accepted", "drafted"),
    Prefill: (*COMMON, "new_seqs", "new_tokens", "cached_tokens"),
}

CHUNK = 131_072
"""Lines held back at a time before they become numbers."""


@dataclass(frozen=True)
class Columns:
    """One kind of line: `values[name]` [N] float64, NaN where the line does not carry the field; graph is 1 or 0.

    `time` [N] datetime64[ms] as printed, NaT where the line has none or prints it in another form.
    """

    values: Mapping[str, Numbers]
    time: Times

    def __len__(self) -> int:
        return len(self.time)

    def __getitem__(self, name: str) -> Numbers:
        return self.values[name]


@dataclass(frozen=True)
class History:
    """The decode and prefill lines of a log, in order, and how many lines it has."""

    decode: Columns
    prefill: Columns
    lines: int


@dataclass
class _Rows:
    """The lines of one shape that wait to become numbers: together a table of bytes, with digits at fixed places."""

    plan: Plan
    lines: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def values(self) -> tuple[Numbers, Times]:
        """Every waiting line as a column of numbers, one row a field, and its time."""
        plan, names = self.plan, NAMES[self.plan.kind]
        table = np.frombuffer(b"".join(self.lines), dtype=np.uint8).reshape(len(self.lines), -1).T
        first = self.lines[0]
        found = np.full((len(names), len(self.lines)), np.nan)
        found[0] = self.numbers
        for item in plan.numbers:
            if item.name in names:
                row = found[names.index(item.name)]
                _decimal(table, first, item.start, item.end, row)
                if item.scale != 1:
                    row /= item.scale
        rank = _DP.search(first, *plan.tags)
        if rank is not None:
            _decimal(table, first, *rank.span(1), found[names.index("dp")])
        for name, value in plan.constants.items():
            if name in names and isinstance(value, (bool, int, float)):
                found[names.index(name)] = value
        times = _times(table, first, plan.time)
        self.lines.clear()
        self.numbers.clear()
        return found, times


def _decimal(table: npt.NDArray[np.uint8], first: bytes, start: int, end: int, out: Numbers) -> None:
    """The numbers at places [start, end) of every line. Whole numbers below 2**53 are exact, so that the one division
    by a power of ten rounds as reading the text would."""
    out.fill(0)
    behind, zeros = 0, 0
    for at in range(start, end):
        if first[at : at + 1] == b".":
            behind = end - 1 - at
            continue
        out *= 10
        out += table[at]
        zeros = zeros * 10 + 48
    out -= zeros
    if behind:
        out /= 10.0**behind


_DP = re.compile(rb"DP(\d{1,6})")
_Parts = dict[type[Event], list[tuple[Numbers, Times]]]
_Way = tuple[Callable[[bytes], object], Callable[[int], object]]


def _passed(item: object) -> None:
    """Lines that say nothing here."""


_PASS: _Way = (_passed, _passed)


def read_columns(
    lines: Iterable[bytes],
    plans: Plans,
    mark: bytes,
    parse: Callable[[str, int], Sequence[Event]],
    start: int = 1,
) -> History:
    """The history in lines, numbered from `start`. A line without `mark` in it is no batch line of this engine."""
    parts: _Parts = {kind: [] for kind in NAMES}
    gathering: list[_Rows] = []
    held: dict[bytes, _Way | None] = {}
    numbered = enumerate(lines, start)
    number, before = start - 1, -1
    while number != before:
        before = number
        for number, line in islice(numbered, CHUNK):
            shape = line.translate(DIGITS)
            try:
                way = held[shape]
            except KeyError:
                # A shape says of all its lines whether the mark is in them.
                way = _way(plans, line, gathering) if mark in line else _PASS
                if len(held) < MOST and len(line) <= LONGEST:
                    held[shape] = way
            if way is None:
                _slowly(parts, parse(line.decode("utf-8", "replace"), number))
                continue
            keep, note = way
            keep(line)
            note(number)
        for rows in gathering:
            if rows.lines:
                parts[rows.plan.kind].append(rows.values())
        if len(held) >= MOST:
            held.clear()
            gathering.clear()
    return History(_columns(parts, Decode), _columns(parts, Prefill), number - start + 1)


def _way(plans: Plans, line: bytes, gathering: list[_Rows]) -> _Way | None:
    """Where lines of this shape are gathered; None when the grammar has to read them."""
    try:
        plan = plans.of(line.rstrip(b"\n").decode("ascii"))
    except UnicodeDecodeError:
        return None
    if plan is None:
        return None
    if plan.kind not in NAMES:
        return _PASS
    rows = _Rows(plan)
    gathering.append(rows)
    return rows.lines.append, rows.numbers.append


def _columns(parts: _Parts, kind: type[Event]) -> Columns:
    names = NAMES[kind]
    if not parts[kind]:
        return Columns({name: np.empty(0) for name in names}, np.empty(0, dtype="datetime64[ms]"))
    found = np.concatenate([part for part, _ in parts[kind]], axis=1)
    order = np.argsort(found[0].astype(np.int64), kind="stable")
    times = np.concatenate([part for _, part in parts[kind]])[order]
    return Columns({name: found[index][order] for index, name in enumerate(names)}, times)


_PARTS = ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19), (20, 23))
"""Where year, month, day, hour, minute, second and thousandths stand in a printed time."""


def _times(table: npt.NDArray[np.uint8], first: bytes, place: tuple[int, int] | None) -> Times:
    """The printed times, by their digits: `2026-08-10 09:20:45`, with up to three digits of a fraction looked at."""
    out = np.full(table.shape[1], np.datetime64("NaT", "ms"))
    if place is None or place[1] - place[0] < 19:
        return out
    printed, parts = place[1] - place[0], np.zeros((len(_PARTS), table.shape[1]))
    for part, (begin, end) in zip(parts, _PARTS):
        if begin < printed:
            _decimal(table, first, place[0] + begin, place[0] + min(end, printed), part)
            part *= 10.0 ** max(end - printed, 0)
    year, month, day, hour, minute, second, thousandth = parts.astype(np.int64)
    days = ((year - 1970) * 12 + month - 1).astype("datetime64[M]").astype("datetime64[D]") + (day - 1)
    clock = ((hour * 60 + minute) * 60 + second) * 1000 + thousandth
    usual = (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    out[usual] = (days.astype("datetime64[ms]") + clock.astype("timedelta64[ms]"))[usual]
    return out


def _slowly(parts: _Parts, events: Iterable[Event]) -> None:
    for event in events:
        if type(event) in NAMES:
            row = [_number(event, name) for name in NAMES[type(event)]]
            parts[type(event)].append((np.array([row]).T, np.array([_time(event.time)], dtype="datetime64[ms]")))


def _number(event: Event, name: str) -> float:
    value = event.rank.get("dp") if name == "dp" else getattr(event, name)
    return float("nan") if value is None else float(value)


_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?$")


def _time(text: str | None) -> np.datetime64:
    try:
        return np.datetime64(text.replace(",", ".") if text and _TIME.match(text) else "NaT", "ms")
    except ValueError:
        return np.datetime64("NaT", "ms")
