"""Two runs side by side: what was changed between them, and what that did to acceptance and speed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from console.measure import Interval, paired

if TYPE_CHECKING:
    from console.benching import Bench
    from console.runs import Run, RunHistory


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs; `kind` is flag, env, config or target. None: absent."""

    kind: str
    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs. `accept` and `speed`: after minus before, prompt by prompt; None without such benches."""

    before: Run
    after: Run
    changes: tuple[Change, ...]
    benches: tuple[Bench, Bench] | None
    accept: Interval | None
    speed: Interval | None

    def as_json(self) -> dict[str, Any]:
        """As one JSON object."""

        def run(item: Run, bench: Bench | None) -> dict[str, Any]:
            keys = ("id", "deployment", "host", "why", "started", "state", "verdict", "accept_len", "tokens_per_s")
            values = {key: getattr(item, key) for key in (*keys, "windows")}
            return {**values, "bench": bench.as_json() if bench is not None else None}

        first, second = self.benches or (None, None)
        return {
            "before": run(self.before, first),
            "after": run(self.after, second),
            "changes": [{key: getattr(item, key) for key in Change.__slots__} for item in self.changes],
            "paired": {
                name: {"mean": value.mean, "interval_95": [value.low, value.high], "prompts": value.count}
                for name, value in (("accept_len", self.accept), ("tokens_per_s", self.speed))
                if value is not None
            },
        }

    def lines(self) -> list[str]:
        """For a person."""
        out = [f"{'':<14}{f'run {self.before.id}':>24}{f'run {self.after.id}':>24}"]
        rows: list[tuple[str, Any, Any]] = [
            ("state", self.before.state, self.after.state),
            ("checks", self.before.verdict, self.after.verdict),
            ("accept length", _number(self.before.accept_len), _number(self.after.accept_len)),
            ("tok/s", _number(self.before.tokens_per_s), _number(self.after.tokens_per_s)),
            ("decode lines", self.before.windows, self.after.windows),
        ]
        if self.benches is not None:
            one, two = self.benches
            rows.append(("bench accept", one.accept.words(), two.accept.words()))
            rows.append(("bench tok/s", one.speed.words(), two.speed.words()))
        out += [f"{name:<14}{_text(before):>24}{_text(after):>24}" for name, before, after in rows]
        if self.accept is not None and self.speed is not None:
            prompts = f"over {self.accept.count} prompts, 95% intervals (Student's t)"
            out.append(f"paired difference {prompts}: accept length {self.accept.words(sign=True)}")
            out.append(f"{'':<18}tok/s {self.speed.words(sign=True)}")
        elif self.benches is None:
            out.append("no benches of the same prompts in both: `console bench` after each start makes them comparable")
        out += [f"{item.kind} {item.name}: {_text(item.before)} → {_text(item.after)}" for item in self.changes]
        return out if self.changes else [*out, "same command, environment and config"]


async def compare(history: RunHistory, before: Run, after: Run) -> Comparison:
    """Set two runs side by side; of their benches the newest two that asked the same."""
    changes = [
        *_differences("flag", _flags(before.argv), _flags(after.argv)),
        *_differences("env", before.env, after.env),
        *_differences("config", *[await _config(history, item) for item in (before, after)]),
    ]
    if before.host != after.host:
        changes.insert(0, Change("target", "host", before.host, after.host))
    pair = _same(await history.benches(before.id), await history.benches(after.id))
    accept = speed = None
    if pair is not None:
        accept = paired(pair[1].accept_lens, pair[0].accept_lens)
        speed = paired(pair[1].speeds, pair[0].speeds)
    return Comparison(before, after, tuple(changes), pair, accept, speed)


def _same(before: Sequence[Bench], after: Sequence[Bench]) -> tuple[Bench, Bench] | None:
    return next(((one, two) for two in after for one in before if one.key == two.key), None)


def _flags(argv: Sequence[str]) -> dict[str, str]:
    """A command's flags with their values, and what it runs as ``command``; for any engine, so without its aliases."""
    flags: dict[str, str] = {}
    name = "command"
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            name, _, value = word[2:].partition("=")
            flags[name] = value
        else:
            flags[name] = f"{flags.get(name, '')} {word}".strip()
    return flags


async def _config(history: RunHistory, item: Run) -> dict[str, Any]:
    """The draft's config of a run, flat, by JSON pointer; empty when it is not kept."""
    text = await history.config(item.config_sha) if item.config_sha else None
    try:
        return dict(_flat(json.loads(text or "{}"), ""))
    except ValueError:
        return {"": "not JSON"}


def _flat(value: Any, at: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        return [pair for key, item in value.items() for pair in _flat(item, f"{at}/{key}")]
    return [(at, value)]


def _differences(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    names = sorted({*before, *after})
    return [
        Change(kind, name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    ]


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _text(value: Any) -> str:
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
