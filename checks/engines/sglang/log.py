"""SGLang's log, all releases from 0.4.6: lines to events, the phases of a start, what the printed accept rate means.

Batch lines are read as `key: value` pairs in whatever order a release prints them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from checks.engines.events import Decode, Error, Event, Other, Phase, Prefill
from checks.engines.lines import pieces, without_front
from checks.engines.sglang.errors import match
from checks.engines.versions import Span, release, span

# `[2026-08-10 09:20:45.123 DP0 TP0] `: either part may be missing, the tags come in any order.
_HEAD = re.compile(
    r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?)?(?P<tags>(?:(?:^|(?<=\[)| )[A-Z_]+\d{1,6})*)\] "
)
_TAG = re.compile(r"([A-Z_]+)(\d{1,6})")
# The head of a line that a progress bar was glued in front of.
_GLUED = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?: [A-Z_]+\d{1,6})*\] ")

_BATCH = re.compile(r"(Prefill|Decode) batch(?: \[\d{1,12}\])?[.,] ")
_PAIR = re.compile(r"(?:^|, )\s*([#A-Za-z][^:,]{0,60}): (-?\d{1,18}(?:\.\d{1,12})?%?|True|False)(?=,|\s*$)")
_BAR = re.compile(r"(?P<what>[^:|]{0,120}):\s{0,8}(?P<percent>\d{1,3})%")
_BAR_END = re.compile(r"\d{1,9}/\d{1,9} \[|it/s|s/it|Completed \|")


def parse(line: str, number: int = 0) -> tuple[Event, ...]:
    """The events of one physical line; more than one where carriage returns or a glued progress bar join several.

    Total: any text gives events, at least Other for a line that is not empty.
    """
    return tuple(event for piece in pieces(line) for event in _piece(piece, number))


def parse_lines(lines: Iterable[str], start: int = 1) -> Iterator[Event]:
    """The events of consecutive lines, with the phases that only their order shows; numbered from `start`."""
    reader = Reader(start)
    for line in lines:
        yield from reader.feed(line)


def phase_of(events: Iterable[Event]) -> str | None:
    """The last phase that events enter, None when they enter none."""
    phase = None
    for event in events:
        if isinstance(event, Phase):
            phase = event.phase
    return phase


class Reader:
    """Reads a log line by line and follows the server's phase.

    What single lines do not say: the first decode line of a server that is up means `serving`; a fatal error before
    `ready` means `crashed`; and `ready` after the port was found taken is another server's answer, not this one's.
    """

    def __init__(self, start: int = 1) -> None:
        self.line = start - 1
        self.phase: str | None = None
        self._port_taken = False

    def feed(self, line: str) -> Iterator[Event]:
        """The events of the next line."""
        self.line += 1
        for event in parse(line, self.line):
            yield from self._follow(event)

    def _follow(self, event: Event) -> Iterator[Event]:
        if isinstance(event, Phase):
            if event.phase == "starting":
                self._port_taken = False
            if event.phase == "ready" and self._port_taken:
                yield Other(event.line, event.text, event.time, event.rank)
                return
            if self._backwards(event.phase):
                yield Other(event.line, event.text, event.time, event.rank)
                return
            self.phase = event.phase
        elif isinstance(event, Decode) and self.phase in (None, "warming", "ready"):
            self.phase = "serving"
            yield Phase(event.line, event.text, event.time, event.rank, phase="serving")
        yield event
        if isinstance(event, Error) and event.fatal and self.phase != "crashed":
            self._port_taken = self._port_taken or event.kind == "port-taken"
            if self._deadly(event):
                self.phase = "crashed"
                yield Phase(event.line, event.text, event.time, event.rank, phase="crashed", detail=event.kind)

    def _backwards(self, phase: str) -> bool:
        """Loading and capturing go on in turns for target and draft, but a server that is up is not loading."""
        return phase in ("loading", "capturing", "warming") and self.phase in ("ready", "serving", "draining")

    def _deadly(self, event: Error) -> bool:
        """The end of the process, rather than a text that a client's request may also bring about."""
        return event.kind in _ENDS or (self.phase in _BEFORE_UP and event.kind not in ("kv-full",))


_ENDS = frozenset({"exception", "child-died", "start-failed", "port-taken", "watchdog"})
_BEFORE_UP = ("starting", "loading", "capturing", "warming")


def _piece(text: str, number: int) -> Iterator[Event]:
    text = without_front(text)
    head = _HEAD.match(text)
    if head is None:
        glued = _GLUED.search(text)
        if glued is not None and _BAR_END.search(text[: glued.start()]):
            yield from _piece(text[: glued.start()], number)
            yield from _piece(text[glued.start() :], number)
            return
    time, rank, message = (head["time"], _ranks(head["tags"]), text[head.end() :]) if head else (None, {}, text)
    yield _message(message, number, text, time, rank)


def _message(message: str, number: int, text: str, time: str | None, rank: Mapping[str, int]) -> Event:
    batch = _BATCH.match(message)
    if batch is not None:
        fields = dict(_pairs(message[batch.end() :]))
        make = _decode if batch.group(1) == "Decode" else _prefill
        return make(fields, number, text, time, rank)
    if message.startswith("INFO:") and ' "' in message:
        return Other(number, text, time, rank)  # an access line quotes what a client sent
    for milestone in MILESTONES:
        found = milestone.pattern.match(message)
        if found is not None:
            detail = found.groupdict().get("detail")
            return Phase(number, text, time, rank, phase=milestone.phase, detail=detail, progress=_progress(message))
    known = match(message)
    if known is not None and not _quoting(message):
        return Error(number, text, time, rank, kind=known.kind, advice=known.advice, fatal=known.fatal)
    return Other(number, text, time, rank)


# -- batch lines ---------------------------------------------------------------------------------------------------


def _pairs(text: str) -> Iterator[tuple[str, float | bool]]:
    """The `key: value` pairs whose value is a number, a percentage (as a fraction) or a truth value."""
    for found in _PAIR.finditer(text):
        key, value = found.group(1).strip(), found.group(2)
        if value in ("True", "False"):
            yield key, value == "True"
        elif value.endswith("%"):
            yield key, float(value[:-1]) / 100
        else:
            yield key, float(value) if "." in value else int(value)


def _decode(fields: Mapping[str, Any], number: int, text: str, time: str | None, rank: Mapping[str, int]) -> Decode:
    return Decode(
        number,
        text,
        time,
        rank,
        running=_count(fields, "#running-req"),
        queue=_count(fields, "#queue-req"),
        tokens=_count(fields, "#token", "#full token"),
        token_usage=_number(fields, "token usage", "full token usage"),
        accept_len=_number(fields, "accept len"),
        accept_rate_printed=_number(fields, "accept rate"),
        throughput=_number(fields, "gen throughput (token/s)"),
        graph=_graph(fields),
        fields=fields,
    )


def _prefill(fields: Mapping[str, Any], number: int, text: str, time: str | None, rank: Mapping[str, int]) -> Prefill:
    return Prefill(
        number,
        text,
        time,
        rank,
        new_seqs=_count(fields, "#new-seq"),
        new_tokens=_count(fields, "#new-token"),
        cached_tokens=_count(fields, "#cached-token"),
        running=_count(fields, "#running-req"),
        queue=_count(fields, "#queue-req"),
        token_usage=_number(fields, "token usage", "full token usage"),
        throughput=_number(fields, "input throughput (token/s)"),
        graph=_graph(fields),
        fields=fields,
    )


def _count(fields: Mapping[str, Any], *names: str) -> int | None:
    values = (fields.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)


def _number(fields: Mapping[str, Any], *names: str) -> float | None:
    values = (fields.get(name) for name in names)
    return next((float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)), None)


def _graph(fields: Mapping[str, Any]) -> bool | None:
    """`cuda graph`, `cpu graph`, `npu graph`, …: whatever the device calls it."""
    return next((value for key, value in fields.items() if key.endswith(" graph") and isinstance(value, bool)), None)


def _ranks(tags: str) -> dict[str, int]:
    return {name.lower(): int(number) for name, number in _TAG.findall(tags)}


# -- phases --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Milestone:
    """A message that marks the begin of a phase, at the start of the text after the head."""

    phase: str
    pattern: re.Pattern[str]


MILESTONES: tuple[Milestone, ...] = tuple(
    Milestone(phase, re.compile(pattern))
    for phase, pattern in (
        ("starting", r"server_args="),
        ("starting", r"Init (?:torch distributed|parallel) begin"),
        ("loading", r"Load weight begin"),
        ("loading", r"(?P<detail>Loading safetensors checkpoint shards|Multi-thread loading shards): "),
        ("loading", r"Load weight end\..{0,80}?type=(?P<detail>[A-Za-z_]\w{0,100})"),
        ("loading", r"(?P<detail>KV Cache is allocated|Memory pool end)"),
        (
            "capturing",
            r"(?P<detail>Capture (?:[\w ]{0,60} )?(?:CUDA graph|cuda graph|cpu graph|npu graph)) (?:begin|end|bs)",
        ),
        ("capturing", r"(?P<detail>Capturing (?:batches|num tokens)[^:]{0,60}): "),
        ("warming", r"INFO: {1,8}(?P<detail>Started server process|Application startup complete)"),
        ("warming", r"INFO: {1,8}(?P<detail>Uvicorn running on) "),
        ("ready", r"The server is fired up and ready to roll!"),
        ("draining", r"SIGTERM received\."),
        ("draining", r"Gracefully exiting\.\.\."),
        ("stopped", r"INFO: {1,8}Finished server process"),
    )
)


def _progress(message: str) -> float | None:
    bar = _BAR.match(message)
    return min(int(bar["percent"]), 100) / 100 if bar is not None else None


def _quoting(message: str) -> bool:
    """Lines that repeat what a client sent, and complaints about models that are not served."""
    return message.startswith(("Receive: ", "Finish: ", "Ignore import error"))


# -- the printed accept rate ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RateMeaning:
    """What `accept rate` is in some releases: in words, and as a function of accept length and draft tokens."""

    versions: Span
    formula: str
    strict: bool
    """True where the bonus token is left out, so that no acceptance at all prints 0."""

    def rate(self, accept_len: float, draft_tokens: int) -> float:
        """The rate these releases print for an accept length, with topk 1 (draft tokens = steps + 1)."""
        return (accept_len - 1) / (draft_tokens - 1) if self.strict else accept_len / draft_tokens


RATE_MEANINGS: tuple[RateMeaning, ...] = (
    RateMeaning(span("0.5.4", "0.5.5"), "accept len / (steps + 1)", strict=False),
    RateMeaning(span("0.5.6", "0.5.10"), "accept len / draft tokens", strict=False),
    RateMeaning(span("0.5.11"), "(accept len - 1) / (draft tokens - 1)", strict=True),
)


def rate_meaning(version: str) -> RateMeaning | None:
    """What the printed accept rate means in a release; None before 0.5.4, which prints none, or without a version."""
    asked = release(version)
    return next((item for item in RATE_MEANINGS if asked and asked in item.versions), None)


def rates_that_fit(accept_len: float, rate: float, draft_tokens: int) -> tuple[RateMeaning, ...]:
    """The meanings under which a printed pair (two decimals each) is consistent; () when none is."""
    if draft_tokens < 2:
        return ()
    slack = 0.0051 + 0.0051 / (draft_tokens - 1)
    return tuple(item for item in RATE_MEANINGS if abs(item.rate(accept_len, draft_tokens) - rate) <= slack)


def per_step(accept_len: float, steps: int) -> float:
    """Mean acceptance of a draft token on a chain: (accept length - 1) / steps, the same in every release."""
    return (accept_len - 1) / steps
