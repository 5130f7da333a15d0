"""What a line of a server's log says, as values: one frozen event a line, the same classes for every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

PHASES = ("starting", "loading", "capturing", "warming", "ready", "serving", "draining", "stopped", "crashed")
"""The life of a server, in order; the last three end it."""


@dataclass(frozen=True)
class Event:
    """One event. `line` is the 1-based physical line, `time` as printed (the server's local time, without a zone).

    `rank` holds the tags of the printing process by lower-case name ({"dp": 0, "tp": 0}). None means that the line does
    not carry the value; it is never 0.
    """

    line: int
    text: str
    time: str | None = None
    rank: Mapping[str, int] = field(default_factory=dict)

    @property
    def event(self) -> str:
        """The name of the event in `console tail --json`."""
        return type(self).__name__.lower()

    def as_json(self) -> dict[str, Any]:
        """The event as one JSON object; what the line does not carry is absent."""
        out: dict[str, Any] = {"event": self.event}
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None or (item.name in ("rank", "fields", "positions", "kind", "engine") and not value):
                continue
            if item.name == "text" and self.event in ("decode", "prefill"):
                continue
            out[item.name] = dict(value) if isinstance(value, Mapping) else value
        return out


@dataclass(frozen=True)
class Decode(Event):
    """A decode line: the window since the line before.

    `accept_len` is tokens per verify step, bonus token included, over the window. `accept_rate_printed` is the line's
    own figure, whose meaning changes with the version (`log.rate_meaning`). `throughput` in tokens/s. `graph`: whether
    the step was replayed from a graph. `positions`: acceptance by draft position, where the engine prints it.
    `cumulative`: the counts run since the server started, not since the line before. `engine` names the engine where it
    is not the one whose log this is read as. `fields` keeps every key the line has.
    """

    running: int | None = None
    queue: int | None = None
    tokens: int | None = None
    token_usage: float | None = None
    accept_len: float | None = None
    accept_rate_printed: float | None = None
    throughput: float | None = None
    graph: bool | None = None
    accepted: int | None = None
    drafted: int | None = None
    positions: tuple[float, ...] = ()
    cumulative: bool | None = None
    engine: str = ""
    fields: Mapping[str, float | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Prefill(Event):
    """A prefill line. `new_tokens` were computed, `cached_tokens` came from the prefix cache."""

    @property
    def probe(self) -> bool:
        """Whether it is SGLang's answer to a health probe: one request of one token, which says nothing of the load."""
        return (self.new_seqs, self.new_tokens, self.cached_tokens or 0) == (1, 1, 0)

    def as_json(self) -> dict[str, Any]:
        """The event as one JSON object, with `probe` where it is one."""
        return {**super().as_json(), **({"probe": True} if self.probe else {})}

    new_seqs: int | None = None
    new_tokens: int | None = None
    cached_tokens: int | None = None
    running: int | None = None
    queue: int | None = None
    token_usage: float | None = None
    throughput: float | None = None
    graph: bool | None = None
    engine: str = ""
    fields: Mapping[str, float | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase(Event):
    """A milestone of the server's life: it is in `phase` from here on. `progress` 0 … 1 where the line counts."""

    phase: str = ""
    detail: str | None = None
    progress: float | None = None


@dataclass(frozen=True)
class Error(Event):
    """A line of a known failure: its class, what to do, and whether the process dies of it."""

    kind: str = ""
    advice: str = ""
    fatal: bool = False


@dataclass(frozen=True)
class Other(Event):
    """Any other line.

    `kind` says what of it is known: `access` (a request to the HTTP server), `request` (the figures of one request),
    `notice` (a setting the server changed by itself), `metrics` (figures of another engine, which `engine` names).
    """

    kind: str = ""
    engine: str = ""
    accept_len: float | None = None
    accept_rate_printed: float | None = None
    accepted: int | None = None
    drafted: int | None = None
    positions: tuple[float, ...] = ()
    fields: Mapping[str, float | bool] = field(default_factory=dict)
