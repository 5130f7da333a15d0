"""Shapes of log lines: what is left of a line when every digit is a 0, and where in it the numbers stand.

A server prints millions of lines in a few hundred shapes. The grammar reads the first line of a shape; every further
one is read by the places found there, which gives the same values for a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from checks.engines.events import Event

DIGITS = bytes(48 if 48 <= byte <= 57 else byte for byte in range(256))
"""The table that turns a line into its shape."""

LONGEST = 1000
"""Bytes of a line that can have a shape; longer ones are read by the grammar."""
MOST = 4096
"""Shapes remembered at a time."""

Pairs = Mapping[str, "float | bool"]


@dataclass(frozen=True)
class Number:
    """One value of a line: where it stands, and how it is read (`int`, `float`, or a percentage as a fraction)."""

    name: str
    start: int
    end: int
    read: Callable[[str], float]
    scale: float = 1.0


@dataclass(frozen=True)
class Plan:
    """How lines of one shape are read. Places count in the raw line; `tags` are the rank's, `text` the line's own."""

    kind: type[Event]
    text: tuple[int, int]
    time: tuple[int, int] | None
    ranks: Callable[[str], Mapping[str, int]]
    tags: tuple[int, int]
    numbers: tuple[Number, ...]
    constants: Mapping[str, object]
    pairs: Callable[[str], Pairs] | None = None

    def event(self, line: str, number: int) -> Event:
        """The event of a line of this shape."""
        start, end = self.text
        text = line[start:end]
        # Written past the frozen constructor: it sets every field one by one, which is most of the cost of an event.
        made: Event = object.__new__(self.kind)
        values = made.__dict__
        values["line"] = number
        values["text"] = text
        if self.time is not None:
            values["time"] = line[self.time[0] : self.time[1]]
        values["rank"] = self.ranks(line[self.tags[0] : self.tags[1]])
        for item in self.numbers:
            values[item.name] = item.read(line[item.start : item.end])
        values.update(self.constants)
        values["fields"] = LazyPairs(text, self.pairs) if self.pairs is not None else {}
        return made


class LazyPairs(Mapping[str, "float | bool"]):
    """All pairs of a line, read when one is asked for."""

    __slots__ = ("_read", "_text", "_values")

    def __init__(self, text: str, read: Callable[[str], Pairs]) -> None:
        self._text, self._read = text, read
        self._values: Pairs | None = None

    def _all(self) -> Pairs:
        if self._values is None:
            self._values = self._read(self._text)
        return self._values

    def __getitem__(self, key: str) -> float | bool:
        return self._all()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(dict(self._all()))


class Plans:
    """The shapes met so far, each with its plan; None for one that the grammar has to read line by line.

    `make` gives the plan of a line. It must depend on the line's digits only by their number.
    """

    def __init__(self, make: Callable[[str], Plan | None]) -> None:
        self._make = make
        self._known: dict[bytes, Plan | None] = {}

    def of(self, line: str) -> Plan | None:
        """The plan for a line without its end, None when it has none."""
        try:
            shape = line.encode("ascii").translate(DIGITS)
            return self._known[shape]
        except KeyError:
            return self.learn(shape, line)
        except UnicodeEncodeError:
            return None

    def learn(self, shape: bytes, line: str) -> Plan | None:
        """The plan for a shape not met before, from the first line that has it."""
        if len(self._known) >= MOST:
            self._known.clear()
        fits = len(line) <= LONGEST and line.isprintable()
        plan = self._make(line) if fits else None
        if len(line) <= LONGEST:
            self._known[shape] = plan
        return plan


def percent(text: str) -> float:
    """A percentage as a fraction."""
    return float(text) / 100
