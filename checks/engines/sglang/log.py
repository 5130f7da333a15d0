"""SGLang's log, all releases from 0.4.6: lines to events, and the phases of a start."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from checks.engines import foreign
from checks.engines.columns import History, read_columns
from checks.engines.events import Decode, Error, Event, Other, Phase, Prefill
from checks.engines.lines import BAR_END, pieces, progress, with_speaker, without_front
from checks.engines.sglang.batch import batch_event, batch_plan
from checks.engines.sglang.errors import FAILURES
from checks.engines.sglang.rates import RATE_MEANINGS, RateMeaning, per_step, rate_meaning, rates_that_fit
from checks.engines.shapes import Plan, Plans

__all__ = [
    "RATE_MEANINGS",
    "RateMeaning",
    "Reader",
    "history",
    "parse",
    "parse_lines",
    "per_step",
    "phase_of",
    "rate_meaning",
]
__all__ += ["rates_that_fit"]

_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
# `[2026-08-10 09:20:45.123 DP0 TP0] `: either part may be missing, the tags come in any order.
# A logging config of one's own may put a level and the place in the source behind it.
_HEAD = re.compile(
    rf"\[(?:({_TIME})((?: [A-Z_]+\d{{1,6}})*)|([A-Z_]+\d{{1,6}}(?: [A-Z_]+\d{{1,6}})*))\] "
    r"(?:(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) [\w./]{1,120}:\d{1,6}:? )?"
)
_TAG = re.compile(r"(?<![A-Za-z_])(DP|PP|ATTN_CP|MOE_DP|TP|EP|[A-Z_]+)(\d{1,6})(?![\w.])")
# The head of a line that a progress bar was glued in front of.
_GLUED = re.compile(rf"\[{_TIME}(?: [A-Z_]+\d{{1,6}})*\] ")
# A batch line behind a logger's own front, whatever it looks like: what a client sent stands in quotes.
_ELSEWHERE = re.compile(
    r"(?P<front>[^'\"`]{0,240}?[\s\]|:>-])(?=(?:Prefill batch(?: \[\d{1,12}\])?[.,] #new-seq: \d|"
    r"Decode batch(?: \[\d{1,12}\])?[.,] #running-req: \d))"
)
_ANY_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_RANK_TAG = re.compile(r"(?<![A-Za-z_])(DP|PP|ATTN_CP|MOE_DP|TP|EP)(\d{1,6})(?![\w.])")


def parse(line: str, number: int = 0) -> tuple[Event, ...]:
    """The events of one physical line; more than one where carriage returns or a glued progress bar join several.

    Total: any text gives events, at least Other for a line that is not empty.
    """
    line = line[:-1] if line.endswith("\n") else line
    plan = PLANS.of(line)
    if plan is not None:
        return (plan.event(line, number),)
    return tuple(event for piece in pieces(line) for event in _piece(piece, number))


def parse_lines(lines: Iterable[str], start: int = 1) -> Iterator[Event]:
    """The events of consecutive lines, with the phases that only their order shows; numbered from `start`."""
    reader = Reader(start)
    for line in lines:
        yield from reader.feed(line)


def history(lines: Iterable[bytes]) -> History:
    """The batch lines of a log as columns of numbers: the values `parse` gives, several times as fast."""
    return read_columns(lines, PLANS, b" batch", parse)


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
        self._own = False

    def feed(self, line: str) -> Iterator[Event]:
        """The events of the next line."""
        self.line += 1
        for event in parse(line, self.line):
            if type(event) in _PLAIN and self.phase not in _UNTIL_DECODE:
                self._own = True
                yield event
                continue
            self._own = self._own or isinstance(event, (Decode, Prefill))
            if isinstance(event, Other) and event.engine == "vllm" and not self._own:
                # A log without one line of SGLang's own is the other engine's, and read as such.
                yield from foreign.read_as(event)
            else:
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
        elif isinstance(event, Decode) and self.phase in _UNTIL_DECODE:
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


_ENDS = frozenset({"exception", "child-died", "start-failed", "port-taken", "watchdog", "path-missing", "launch-flags"})
"""The last two are found out before the first line that names a phase."""
_UNTIL_DECODE = (None, "warming", "ready")
_PLAIN = (Decode, Prefill)
_BEFORE_UP = ("starting", "loading", "capturing", "warming")


def _piece(text: str, number: int) -> Iterator[Event]:
    head, piece = _HEAD.match(text), text
    if head is None:
        text = without_front(text, actors=not foreign.named(text))
        head = _HEAD.match(text)
    if head is not None:
        message = text[head.end() :]
        yield _message(message, number, text, head.group(1), _ranks(head.group(2) or head.group(3) or ""))
        return
    glued = _GLUED.search(text)
    if glued is not None and BAR_END.search(text[: glued.start()]):
        yield from _piece(text[: glued.start()], number)
        yield from _piece(text[glued.start() :], number)
        return
    elsewhere = _ELSEWHERE.match(text)
    if elsewhere is not None and not any(word in elsewhere["front"] for word in ("Receive: ", "Finish: ", "said:")):
        front, time = elsewhere["front"], _ANY_TIME.search(elsewhere["front"])
        rank = {name.lower(): int(value) for name, value in _RANK_TAG.findall(front)}
        event = batch_event(text[elsewhere.end() :], number, text, time.group() if time else None, rank)
        if event is not None:
            yield event
            return
    yield _message(text, number, with_speaker(piece, text), None, _NO_RANK)


def _message(message: str, number: int, text: str, time: str | None, rank: Mapping[str, int]) -> Event:
    event = batch_event(message, number, text, time, rank)
    if event is not None:
        return event
    if message.startswith("INFO:") and ' "' in message:
        return Other(number, text, time, rank, kind="access")  # it quotes what a client sent
    if _MILESTONE.match(message) is not None:
        for milestone in MILESTONES:
            found = milestone.pattern.match(message)
            if found is not None:
                detail = found.groupdict().get("detail")
                return Phase(number, text, time, rank, phase=milestone.phase, detail=detail, progress=progress(message))
    if message.startswith(_QUOTING):
        return Other(number, text, time, rank)
    if _NOTICE.match(message) is not None:
        return Other(number, text, time, rank, kind="notice")
    if message.startswith("{"):
        return Other(number, text, time, rank, kind="request" if (fields := _request(message)) else "", fields=fields)
    other = foreign.recognise(message, number, text, time, rank)
    if other is not None and other.engine != "sglang":
        return other
    known = FAILURES.match(message)
    if known is not None:
        return Error(number, text, time, rank, kind=known.kind, advice=known.advice, fatal=known.fatal)
    return Other(number, text, time, rank)


# Lines that repeat what a client sent, complaints about models that are not served, and comments.
_QUOTING = ("Receive: ", "Finish: ", "Ignore import error", "# ")
_NO_RANK: Mapping[str, int] = MappingProxyType({})

_NOTICE = re.compile(
    r"Spec v[12] is |Max running requests is reset to \d|Mixed chunked prefill is disabled|Beta spec is enabled"
    r"|SGLANG_ENABLE_SPEC_V2 has been removed|speculative_num_draft_tokens is adjusted|speculative_adaptive disabled"
    r"|Overlap scheduler is disabled because|Adaptive spec params updated|DeepSeek MTP does not require"
    r"|Overriding the draft model's max_position_embeddings|Non-overlap \(synchronous\) spec v2"
)


@lru_cache(maxsize=4096)
def _ranks(tags: str) -> Mapping[str, int]:
    return MappingProxyType({name.lower(): int(number) for name, number in _TAG.findall(tags)})


def _request(message: str) -> dict[str, float | bool]:
    """The speculation figures in the metadata of one request, as the HTTP server gives them; {} when it is none."""
    try:
        record = json.loads(message)
    except (ValueError, RecursionError):
        return {}
    meta = record.get("meta_info", record) if isinstance(record, dict) else None
    if not isinstance(meta, dict) or not any(str(key).startswith("spec_") for key in meta):
        return {}
    return {str(key): value for key, value in meta.items() if isinstance(value, (int, float)) and abs(value) < 1e15}


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
# Nearly every line is no milestone: one look says so. Names of groups may stand once in a pattern only.
_MILESTONE = re.compile("|".join(f"(?:{item.pattern.pattern.replace('?P<detail>', '?:')})" for item in MILESTONES))


# -- lines of a shape met before -----------------------------------------------------------------------------------


def _plan(line: str) -> Plan | None:
    """The plan for batch and access lines in the server's own format, with or without a collector's front."""
    parts = list(pieces(line))
    if len(parts) != 1:
        return None
    text = parts[0] if _HEAD.match(parts[0]) else without_front(parts[0], actors=not foreign.named(parts[0]))
    head, begin = _HEAD.match(text), line.rfind(text)
    if head is None or begin < 0:
        return None
    whole, message = (begin, begin + len(text)), text[head.end() :]
    time = (begin + head.start(1), begin + head.end(1)) if head.group(1) else None
    group = 2 if head.group(2) is not None else 3
    tags = (begin + head.start(group), begin + head.end(group))
    if message.startswith("INFO:") and ' "' in message:
        return Plan(Other, whole, time, _ranks, tags, (), {"kind": "access"})
    return batch_plan(message, begin + head.end(), whole, time, tags, _ranks)


PLANS = Plans(_plan)
