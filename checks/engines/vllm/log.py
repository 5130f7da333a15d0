"""vLLM's log, V1 engines: the speculation metrics and the throughput line, as events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from checks.engines.events import Decode, Event, Other, Phase
from checks.engines.lines import pieces, without_front

# `(APIServer pid=347228) INFO 08-04 20:51:08 [metrics.py:120] `
_HEAD = re.compile(
    r"(?:\((?P<process>[A-Za-z]\w{0,40})(?: pid=\d{1,10})?\) )?"
    r"(?:(?:INFO|WARNING|ERROR|DEBUG) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) \[?[\w./]{1,120}:\d{1,6}\] )?"
)
_RANK = re.compile(r"_([A-Z]+)(\d{1,4})")
_NUMBER = r"(\d{1,15}(?:\.\d{1,9})?)"

_METRICS = "SpecDecoding metrics: "
_ENGINE = re.compile(r"Engine (\d{1,4}): ")
_LENGTH = re.compile(rf"Mean acceptance length: {_NUMBER}")
_ACCEPTED = re.compile(r"Accepted: (\d{1,15}) tokens")
_DRAFTED = re.compile(r"Drafted: (\d{1,15}) tokens")
_POSITIONS = re.compile(r"Per-position acceptance rate: ((?:\d(?:\.\d{1,6})?(?:, |$))+)")
_RATE = re.compile(rf"(?:Avg )?[Dd]raft acceptance rate: {_NUMBER}%")
_RUNNING = re.compile(r"Running: (\d{1,9}) reqs")
_WAITING = re.compile(r"(?:Waiting|Pending): (\d{1,9}) reqs")
_THROUGHPUT = re.compile(rf"Avg generation throughput: {_NUMBER} tokens/s")
_USAGE = re.compile(rf"GPU KV cache usage: {_NUMBER}%")

_MILESTONES = (
    ("starting", re.compile(r"vLLM API server version|Initializing a V1 LLM engine")),
    ("loading", re.compile(r"Starting to load model|Loading safetensors checkpoint shards")),
    ("capturing", re.compile(r"Capturing CUDA graph|Graph capturing finished")),
    ("ready", re.compile(r"INFO: {1,8}Application startup complete|Application startup complete\.")),
    ("stopped", re.compile(r"INFO: {1,8}Finished server process")),
)


def parse(line: str, number: int = 0) -> tuple[Event, ...]:
    """The events of one physical line."""
    return tuple(_piece(without_front(piece), number) for piece in pieces(line))


def parse_lines(lines: Iterable[str], start: int = 1) -> Iterator[Event]:
    """The events of consecutive lines, with the phases that only their order shows; numbered from `start`."""
    reader = Reader(start)
    for line in lines:
        yield from reader.feed(line)


def _piece(text: str, number: int) -> Event:
    head = _HEAD.match(text)
    time = head["time"] if head else None
    message = text[head.end() :] if head else text
    rank = {name.lower(): int(value) for name, value in _RANK.findall((head["process"] or "") if head else "")}
    if message.startswith(_METRICS):
        positions = _POSITIONS.search(message)
        percent = _float(_RATE, message)
        return Decode(
            number,
            text,
            time,
            rank,
            accept_len=_float(_LENGTH, message),
            accept_rate_printed=percent / 100 if percent is not None else None,
            accepted=_int(_ACCEPTED, message),
            drafted=_int(_DRAFTED, message),
            positions=tuple(float(item) for item in positions.group(1).split(", ") if item) if positions else (),
        )
    engine = _ENGINE.match(message)
    if engine is not None or message.startswith("Avg prompt throughput: "):
        if engine is not None:
            rank = {**rank, "dp": int(engine.group(1))}
        usage = _float(_USAGE, message)
        return Decode(
            number,
            text,
            time,
            rank,
            running=_int(_RUNNING, message),
            queue=_int(_WAITING, message),
            throughput=_float(_THROUGHPUT, message),
            token_usage=usage / 100 if usage is not None else None,
        )
    for phase, pattern in _MILESTONES:
        if pattern.match(message):
            return Phase(number, text, time, rank, phase=phase)
    return Other(number, text, time, rank)


def _float(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found.group(1)) if found else None


def _int(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found.group(1)) if found else None


class Reader:
    """Reads a log line by line; the phase is what the last milestone said, `serving` from the first decode line on."""

    def __init__(self, start: int = 1) -> None:
        self.line = start - 1
        self.phase: str | None = None

    def feed(self, line: str) -> Iterator[Event]:
        """The events of the next line."""
        self.line += 1
        for event in parse(line, self.line):
            if isinstance(event, Phase):
                self.phase = event.phase
            elif isinstance(event, Decode) and self.phase in (None, "ready"):
                self.phase = "serving"
                yield Phase(event.line, event.text, event.time, event.rank, phase="serving")
            yield event
