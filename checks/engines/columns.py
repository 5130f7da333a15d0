"""A log's history as columns of numbers: the values of the typed events, without an object for each line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from checks.engines.events import Decode, Event, Prefill
from checks.engines.shapes import DIGITS, MOST, Plan, Plans

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
    """The lines of one shape that wait to become numbers, and the weights that make their digits numbers.

    Lines of one shape are a table of bytes with digits at fixed places: all fields of all lines are one product of
    matrices. Every product is a whole number below 2**53, so that the sums are exact; one division then rounds as
    reading the text would.
    """

    plan: Plan
    lines: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def weigh(self, line: bytes) -> None:
        """Learn from the first line where the digits stand."""
        plan, names = self.plan, NAMES[self.plan.kind]
        spans = [(names.index(item.name), item.start, item.end) for item in plan.numbers if item.name in names]
        rank = _DP.search(line, *plan.tags)
        if rank is not None:
            spans.append((names.index("dp"), *rank.span(1)))
        self.taken = np.array([column for column, _, _ in spans], dtype=np.intp)
        self.constant = [
            (names.index(name), float(value))
            for name, value in plan.constants.items()
            if name in names and isinstance(value, (bool, int, float))
        ]
        scales = {names.index(item.name): item.scale for item in plan.numbers if item.name in names}
        self.scale = [
            (index, scales[column]) for index, (column, _, _) in enumerate(spans) if scales.get(column, 1) != 1
        ]
        digits = [[at for at in range(first, last) if line[at : at + 1].isdigit()] for _, first, last in spans]
        self.places = np.array([at for span in digits for at in span], dtype=np.intp)
        self.weights = np.zeros((len(self.places), len(spans)))
        self.divisor, row = np.ones(len(spans)), 0
        for index, (span, (_, first, last)) in enumerate(zip(digits, spans)):
            point = line.find(b".", first, last)
            self.divisor[index] = 10.0 ** (last - 1 - point) if point >= 0 else 1.0
            self.weights[row : row + len(span), index] = 10.0 ** np.arange(len(span))[::-1]
            row += len(span)

    def values(self) -> tuple[Numbers, Times]:
        """Every waiting line as a row of numbers, and its time."""
        table = np.frombuffer(b"".join(self.lines), dtype=np.uint8).reshape(len(self.lines), -1)
        found = np.full((len(self.lines), len(NAMES[self.plan.kind])), np.nan)
        told = (table[:, self.places] - np.uint8(48)).astype(np.float64) @ self.weights
        told /= self.divisor
        for index, scale in self.scale:
            told[:, index] /= scale
        found[:, self.taken] = told
        for column, value in self.constant:
            found[:, column] = value
        found[:, 0] = self.numbers
        times = _times(table, self.plan.time)
        self.lines.clear()
        self.numbers.clear()
        return found, times


_DP = re.compile(rb"DP(\d{1,6})")
_Parts = dict[type[Event], list[tuple[Numbers, Times]]]


def read_columns(
    lines: Iterable[bytes],
    plans: Plans,
    mark: bytes,
    parse: Callable[[str, int], Sequence[Event]],
    start: int = 1,
) -> History:
    """The history in lines, numbered from `start`. A line without `mark` in it is no batch line of this engine."""
    parts: _Parts = {kind: [] for kind in NAMES}
    held: dict[bytes, _Rows | None] = {}
    numbered = enumerate(lines, start)
    number, before = start - 1, -1
    while number != before:
        before = number
        for number, line in islice(numbered, CHUNK):
            if mark not in line:
                continue
            shape = line.translate(DIGITS)
            try:
                rows = held[shape]
            except KeyError:
                rows = held[shape] = _rows(plans, line) if len(held) < MOST else None
            if rows is None:
                _slowly(parts, parse(line.decode("utf-8", "replace"), number))
            else:
                rows.lines.append(line)
                rows.numbers.append(number)
        for waiting in held.values():
            if waiting is not None and waiting.lines:
                parts[waiting.plan.kind].append(waiting.values())
        if len(held) >= MOST:
            held.clear()
    return History(_columns(parts, Decode), _columns(parts, Prefill), number - start + 1)


def _rows(plans: Plans, line: bytes) -> _Rows | None:
    try:
        plan = plans.of(line.rstrip(b"\n").decode("ascii"))
    except UnicodeDecodeError:
        return None
    if plan is None or plan.kind not in NAMES:
        return None
    rows = _Rows(plan)
    rows.weigh(line)
    return rows


def _columns(parts: _Parts, kind: type[Event]) -> Columns:
    names = NAMES[kind]
    if not parts[kind]:
        return Columns({name: np.empty(0) for name in names}, np.empty(0, dtype="datetime64[ms]"))
    found, times = np.concatenate([part for part, _ in parts[kind]]), np.concatenate([part for _, part in parts[kind]])
    order = np.argsort(found[:, 0], kind="stable")
    found = found[order]
    return Columns({name: found[:, index] for index, name in enumerate(names)}, times[order])


_PARTS = ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19), (20, 23))
"""Where year, month, day, hour, minute, second and thousandths stand in a printed time."""


def _times(table: npt.NDArray[np.uint8], place: tuple[int, int] | None) -> Times:
    """The printed times, by their digits: `2026-08-10 09:20:45`, with up to three digits of a fraction looked at."""
    if place is None or place[1] - place[0] < 19:
        return np.full(len(table), np.datetime64("NaT", "ms"))
    printed = place[1] - place[0]
    parts = [(first, min(last, printed)) for first, last in _PARTS if first < printed]
    digits = [place[0] + at for first, last in parts for at in range(first, last)]
    weights, row = np.zeros((len(digits), len(_PARTS))), 0
    for column, (first, last) in enumerate(parts):
        end = _PARTS[column][1] - first
        weights[row : row + last - first, column] = 10.0 ** np.arange(end)[::-1][: last - first]
        row += last - first
    found = ((table[:, digits] - np.uint8(48)).astype(np.float64) @ weights).astype(np.int64)
    year, month, day, hour, minute, second, thousandth = found.T
    days = ((year - 1970) * 12 + month - 1).astype("datetime64[M]").astype("datetime64[D]") + (day - 1)
    clock = ((hour * 60 + minute) * 60 + second) * 1000 + thousandth
    out = np.asarray(days.astype("datetime64[ms]") + clock.astype("timedelta64[ms]"))
    out[(month < 1) | (month > 12) | (day < 1) | (day > 31)] = np.datetime64("NaT", "ms")
    return out


def _slowly(parts: _Parts, events: Iterable[Event]) -> None:
    for event in events:
        if type(event) in NAMES:
            row = [_number(event, name) for name in NAMES[type(event)]]
            parts[type(event)].append((np.array([row]), np.array([_time(event.time)], dtype="datetime64[ms]")))


def _number(event: Event, name: str) -> float:
    value = event.rank.get("dp") if name == "dp" else getattr(event, name)
    return float("nan") if value is None else float(value)


_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?$")


def _time(text: str | None) -> np.datetime64:
    try:
        return np.datetime64(text.replace(",", ".") if text and _TIME.match(text) else "NaT", "ms")
    except ValueError:
        return np.datetime64("NaT", "ms")
