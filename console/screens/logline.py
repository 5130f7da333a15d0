"""An engine's event as a line of the log view: batch lines drawn as columns, everything else as it came."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from console.plain import one_line
from console.widgets.logview import LogLine

# Words that make an unclassified line a warning; severity names come first on a line or in brackets.
_WARNINGS = ("WARNING", "Warning:", "WARN ", "deprecated")

# Columns of a batch line: (attribute, format).
_DECODE = (
    ("running", "run {:>3}"),
    ("queue", "queue {:>3}"),
    ("accept_len", "accept {:>4.2f}"),
    ("accept_rate_printed", "rate {:>4.2f}"),
    ("throughput", "{:>6.1f} tok/s"),
    ("token_usage", "kv {:>4.2f}"),
)
_PREFILL = (
    ("running", "run {:>3}"),
    ("queue", "queue {:>3}"),
    ("new_tokens", "new {:>5}"),
    ("cached_tokens", "cached {:>5}"),
    ("throughput", "{:>6.1f} tok/s"),
)


def log_lines(events: Iterable[Any]) -> list[LogLine]:
    """A batch of events as lines; a phase that the parser read out of a line already there is no line of its own."""
    batch = list(events)
    there = {(event.line, event.text) for event in batch if event.event != "phase"}
    return [log_line(event) for event in batch if event.event != "phase" or (event.line, event.text) not in there]


def log_line(event: Any) -> LogLine:
    """The event as one line; its text is made safe to draw."""
    shown = _SHOWN.get("probe" if _probe(event) else event.event, _as_it_came)
    return LogLine(event.line, _kind(event), one_line(shown(event).expandtabs()), partial(_fields, event))


def _kind(event: Any) -> str:
    if _probe(event):
        return "other"
    if event.event != "other":
        return str(event.event)
    return "warning" if any(word in event.text for word in _WARNINGS) else "other"


def _probe(event: Any) -> bool:
    """A health probe's line: one every few seconds, which no filter for prefills asks for."""
    return bool(getattr(event, "probe", False))


def _columns(name: str, table: tuple[tuple[str, str], ...]) -> Callable[[Any], str]:
    def draw(event: Any) -> str:
        clock = (event.time or "")[-8:]
        rank = " ".join(f"{key}{value}" for key, value in event.rank.items())
        cells = [template.format(value) for key, template in table if (value := getattr(event, key)) is not None]
        return " ".join(filter(None, [clock, rank, name, *cells]))

    return draw


def _as_it_came(event: Any) -> str:
    return str(event.text)


_SHOWN: dict[str, Callable[[Any], str]] = {
    "decode": _columns("decode ", _DECODE),
    "prefill": _columns("prefill", _PREFILL),
    "probe": _columns("probe", ()),
}


def _fields(event: Any) -> tuple[tuple[str, str], ...]:
    """Everything the parser read from the line, safe to draw."""
    rows = []
    for key, value in event.as_json().items():
        if key in ("text", "event"):
            continue
        pairs = value.items() if isinstance(value, dict) else [("", value)]
        head = "" if key == "fields" else key  # the engine's own names of what it printed
        rows += [(one_line(f"{head} {name}".strip()), one_line(str(item))) for name, item in pairs]
    return (*rows, ("as it came", one_line(event.text)))
