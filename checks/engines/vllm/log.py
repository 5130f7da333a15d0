"""vLLM's log, V0 and V1: the speculation metrics of every generation and the throughput line, as events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from checks.engines import foreign
from checks.engines.columns import History, read_columns
from checks.engines.events import Decode, Error, Event, Other, Phase
from checks.engines.lines import pieces, progress, with_speaker, without_front
from checks.engines.shapes import Plans
from checks.engines.vllm.errors import FAILURES

# `(APIServer pid=347228) INFO 08-04 20:51:08 [metrics.py:120] `; older releases `INFO 10-16 19:05:47 metrics.py:367] `.
_HEAD = re.compile(
    r"(?P<processes>(?:\([A-Za-z][^()]{0,100}\)(?: |$)){0,3})"
    r"(?:(?:INFO|WARNING|ERROR|DEBUG) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?) \[?[\w./]{1,120}:\d{1,6}\] )?"
)
_RANK = re.compile(r"[_ ](DP|PP|TP|EP|DCP|PCP)(\d{1,4})")
_NUMBER = r"(\d{1,15}(?:\.\d{1,9})?)"

_METRICS = re.compile(r"(?:SpecDecoding|Speculative) metrics: ")
_THROUGHPUT_LINE = re.compile(r"(?:Engine (\d{1,4}): )?Avg prompt throughput: ")
_LENGTH = re.compile(rf"Mean acceptance length: {_NUMBER}")
# V0 and the first V1 releases say `Number of accepted tokens`, once with the word `tokens` twice.
_ACCEPTED = re.compile(r"(?:Accepted: |Number of accepted tokens(?: tokens)?: )(\d{1,15})")
_DRAFTED = re.compile(r"(?:Drafted: |Number of draft tokens(?: tokens)?: )(\d{1,15})")
_POSITIONS = re.compile(r"Per-position acceptance rate: ((?:\d(?:\.\d{1,6})?(?:, |\s*$))+)")
_RATE = re.compile(rf"(?:Avg )?[Dd]raft acceptance rate: {_NUMBER}(%?)")
_RUNNING = re.compile(r"Running: (\d{1,9}) reqs")
_WAITING = re.compile(r"(?:Waiting|Pending): (\d{1,9}) reqs")
_THROUGHPUT = re.compile(rf"Avg generation throughput: {_NUMBER} tokens/s")
_USAGE = re.compile(rf"[A-Za-z]{{2,8}} KV cache usage: {_NUMBER}%")
_PAIR = re.compile(rf"([A-Z][A-Za-z0-9 -]{{1,40}}): {_NUMBER}(%?)(?= tokens| reqs|,|\.?\s*$)")

_MILESTONES = (
    ("starting", re.compile(r"vLLM API server version|Initializing a(?:n LLM| V1 LLM) engine|non-default args: ")),
    ("loading", re.compile(r"Starting to load model|Loading (?P<detail>safetensors checkpoint shards|weights took)")),
    ("loading", re.compile(r"(?P<detail>Multi-thread loading shards): |Model loading took|Loading drafter model")),
    ("capturing", re.compile(r"(?P<detail>Capturing CUDA graph|Graph capturing finished)")),
    ("warming", re.compile(r"(?:INFO: {1,8})?(?:Started server process|Waiting for application startup)")),
    ("warming", re.compile(r"Starting vLLM (?:API )?server")),
    ("ready", re.compile(r"INFO: {1,8}Application startup complete|Application startup complete\.")),
    (
        "draining",
        re.compile(r"(?:INFO: {1,8})?Shutting down\b|Received SIGTERM|\[shutdown\] API server: shutdown trig"),
    ),
    # A server that is told to end is gone before uvicorn names its process.
    ("stopped", re.compile(r"INFO: {1,8}(?:Finished server process|Application shutdown complete)")),
)


def parse(line: str, number: int = 0) -> tuple[Event, ...]:
    """The events of one physical line."""
    return tuple(_spoken(_piece(without_front(piece), number), piece) for piece in pieces(line))


def parse_lines(lines: Iterable[str], start: int = 1) -> Iterator[Event]:
    """The events of consecutive lines, with the phases that only their order shows; numbered from `start`."""
    reader = Reader(start)
    for line in lines:
        yield from reader.feed(line)


def history(lines: Iterable[bytes]) -> History:
    """The metrics and throughput lines of a log as columns of numbers."""
    return read_columns(lines, PLANS, b": ", _batch_lines)


def _batch_lines(line: str, number: int) -> tuple[Event, ...]:
    """The events of a line that is worth a look; most are not, and cost one search."""
    return parse(line, number) if "etrics: " in line or "Avg prompt" in line else ()


def _spoken(event: Event, piece: str) -> Event:
    """The event with the rank that stood before its text, where the text has no head that says it."""
    shown = with_speaker(piece, event.text) if isinstance(event, (Other, Error)) else event.text
    return event if shown == event.text else replace(event, text=shown)


def _piece(text: str, number: int) -> Event:
    head = _HEAD.match(text)
    time = head["time"] if head else None
    message = text[head.end() :] if head else text
    rank = {name.lower(): int(value) for name, value in _RANK.findall(head["processes"])} if head else {}
    if _METRICS.match(message):
        return _metrics(message, number, text, time, rank)
    throughput = _THROUGHPUT_LINE.match(message)
    if throughput is not None:
        if throughput.group(1):
            rank = {**rank, "dp": int(throughput.group(1))}
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
            fields=dict(_pairs(message)),
        )
    if message.startswith("INFO:") and ' "' in message:
        return Other(number, text, time, rank, kind="access")  # it quotes what a client sent
    if message.startswith("# ") or "Received request" in message:
        return Other(number, text, time, rank)
    for phase, pattern in _MILESTONES:
        found = pattern.match(message)
        if found is not None:
            detail = found.groupdict().get("detail")
            return Phase(number, text, time, rank, phase=phase, detail=detail, progress=progress(message))
    other = foreign.recognise(message, number, text, time, rank)
    if other is not None:
        return other
    known = FAILURES.match(message)
    if known is not None:
        return Error(number, text, time, rank, kind=known.kind, advice=known.advice, fatal=known.fatal)
    return Other(number, text, time, rank)


def _metrics(message: str, number: int, text: str, time: str | None, rank: Mapping[str, int]) -> Decode:
    positions = _POSITIONS.search(message)
    rate = _RATE.search(message)
    printed = float(rate.group(1)) / (100 if rate.group(2) else 1) if rate else None
    return Decode(
        number,
        text,
        time,
        rank,
        accept_len=_float(_LENGTH, message),
        accept_rate_printed=printed,
        accepted=_int(_ACCEPTED, message),
        drafted=_int(_DRAFTED, message),
        positions=tuple(float(item) for item in positions.group(1).split(",") if item.strip()) if positions else (),
        # Only V0 prints its efficiency, and only V0 counts from the start of the server.
        cumulative=True if "System efficiency: " in message else None,
        fields=dict(_pairs(message)),
    )


def _pairs(message: str) -> Iterator[tuple[str, float | bool]]:
    for key, value, percent in _PAIR.findall(message):
        if key != "Per-position acceptance rate":
            yield key, float(value) / 100 if percent else float(value) if "." in value else int(value)


def _float(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found.group(1)) if found else None


def _int(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found.group(1)) if found else None


class Reader:
    """Reads a log line by line and follows the server's phase.

    What single lines do not say: the first decode line of a server that is up means `serving`, and a fatal error before
    `ready`, or the death of the engine's process, means `crashed`.
    """

    def __init__(self, start: int = 1) -> None:
        self.line = start - 1
        self.phase: str | None = None

    def feed(self, line: str) -> Iterator[Event]:
        """The events of the next line."""
        self.line += 1
        for event in parse(line, self.line):
            yield from self._follow(event)

    def _follow(self, event: Event) -> Iterator[Event]:
        if isinstance(event, Phase):
            # Several processes print these lines, each when it gets there: the server goes forward only.
            backwards = event.phase in _BEFORE_UP[1:] and self.phase in ("ready", "serving", "draining")
            # What is left of a server whose engine died still takes its leave in order.
            if backwards or (event.phase in ("draining", "stopped") and self.phase == "crashed"):
                yield Other(event.line, event.text, event.time, event.rank)
                return
            self.phase = event.phase
        elif isinstance(event, Decode) and self.phase in (None, "warming", "ready"):
            self.phase = "serving"
            yield Phase(event.line, event.text, event.time, event.rank, phase="serving")
        yield event
        deadly = isinstance(event, Error) and event.fatal and self.phase != "crashed"
        if deadly and isinstance(event, Error) and (event.kind in _ENDS or self.phase in _BEFORE_UP):
            self.phase = "crashed"
            yield Phase(event.line, event.text, event.time, event.rank, phase="crashed", detail=event.kind)


_BEFORE_UP = ("starting", "loading", "capturing", "warming")
_ENDS = frozenset({"exception", "child-died", "start-failed", "port-taken"})


PLANS = Plans(lambda line: None)
