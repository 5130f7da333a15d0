"""Lines of other engines in a log: recognised, named, and kept out of the series of the engine at hand.

A log may be given to the wrong reader, and logs of several servers end up in one file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Callable

from checks.engines.events import Decode, Event, Other

SGLANG, VLLM, LLAMA_CPP, ATOM = "sglang", "vllm", "llama.cpp", "atom"

Figures = dict[str, "float | bool"]


@dataclass(frozen=True)
class Line:
    """How one kind of an engine's lines is told, and what it says: numbers by the printed name, positions apart."""

    engine: str
    shows: re.Pattern[str]
    read: Callable[[str], Other]


_LIST = re.compile(r"(?:acceptance rate per position|#acc rate/pos) = \(([\d., ]{1,800})\)")
_EQUALS = re.compile(r"(#?[A-Za-z][\w /()#]{0,40}?)\s*=\s*(\d{1,15}(?:\.\d{1,9})?)(?![\d.]|\s+accepted)")
_COUNTS = re.compile(r"\(\s*(\d{1,15}) accepted /\s*(\d{1,15}) generated\)")
_DIST = re.compile(r"dist ([\d/]{1,200}): ([\d./]{1,400})%")


def _llama_slot(message: str) -> Other:
    """`draft acceptance = 0.64479 (  167 accepted /   259 generated), mean acceptance length =  2.92, …`"""
    fields = dict(_numbers(message))
    counts, listed = _COUNTS.search(message), _LIST.search(message)
    rate = re.search(r"draft acceptance(?: rate)? = (\d\.\d{1,9})", message)
    return Other(
        0,
        "",
        accept_len=fields.get("mean acceptance length"),
        accept_rate_printed=float(rate.group(1)) if rate else None,
        accepted=int(counts.group(1)) if counts else None,
        drafted=int(counts.group(2)) if counts else None,
        positions=_positions(listed),
        fields=fields,
    )


def _llama_totals(message: str) -> Other:
    """`statistics     draft-eagle3: … #gen tokens =    259, #acc tokens =   167, #mean acc len = 2.92, …`"""
    fields = dict(_numbers(message))
    accepted, drafted = fields.get("#acc tokens"), fields.get("#gen tokens")
    return Other(
        0,
        "",
        accept_len=fields.get("#mean acc len"),
        accepted=int(accepted) if accepted is not None else None,
        drafted=int(drafted) if drafted is not None else None,
        positions=_positions(_LIST.search(message)),
        fields=fields,
    )


def _atom(message: str) -> Other:
    """`[MTP Stats] acceptance: 59.62%  avg toks/fwd: 2.79  dist 0/1/2/3: 21.69/19.53/16.97/41.80%`

    The distribution is of accepted drafts per step; at least k accepted is the sum from k on.
    """
    rate = re.search(r"acceptance: (\d{1,3}(?:\.\d{1,6})?)%", message)
    length = re.search(r"avg toks/fwd: (\d{1,4}(?:\.\d{1,6})?)", message)
    found = _DIST.search(message)
    shares = [float(share) / 100 for share in found.group(2).split("/") if _is_number(share)] if found else []
    return Other(
        0,
        "",
        accept_len=float(length.group(1)) if length else None,
        accept_rate_printed=float(rate.group(1)) / 100 if rate else None,
        positions=tuple(round(sum(shares[k:]), 6) for k in range(1, len(shares))),
        fields={f"accepted {count}": share for count, share in enumerate(shares)},
    )


def _only_named(message: str) -> Other:
    return Other(0, "")


LINES: tuple[Line, ...] = (
    Line(
        VLLM,
        re.compile(r"SpecDecoding metrics: |Speculative metrics: |(?:Engine \d{1,4}: )?Avg prompt throughput: "),
        _only_named,
    ),
    Line(LLAMA_CPP, re.compile(r"[\d.]{0,24} ?I? ?(?:slot )?.{0,40}?draft acceptance(?: rate)? = "), _llama_slot),
    Line(
        LLAMA_CPP, re.compile(r"[\d.]{0,24} ?I? ?.{0,40}?statistics\s+draft-?\w{0,20}: #(?:calls|gen)"), _llama_totals
    ),
    Line(ATOM, re.compile(r"\[MTP Stats\] "), _atom),
    Line(SGLANG, re.compile(r"(?:Prefill|Decode) batch(?: \[\d{1,12}\])?[.,] "), _only_named),
)
# What shows in a raw line that it is worth a look.
_HINTS = ("etrics: ", "Avg prompt", "draft acceptance", "statistics", "[MTP Stats]", "code batch", "fill batch")
_VLLM_HEAD = re.compile(
    r"(?:\([A-Za-z][^()]{0,100}\) ){0,3}"
    r"(?:(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,120}:\d{1,6}\] )?"
)


def named(text: str) -> bool:
    """Whether a raw line may be another engine's."""
    return any(hint in text for hint in _HINTS)


def recognise(message: str, number: int, text: str, time: str | None, rank: Mapping[str, int]) -> Other | None:
    """The line as another engine's, with the engine's name and what it prints; None when it is none that is known."""
    if not named(message):
        return None
    front = _VLLM_HEAD.match(message)
    body = message[front.end() :] if front else message
    for line in LINES:
        if line.shows.match(body):
            told = line.read(body)
            return replace(told, line=number, text=text, time=time, rank=rank, kind="metrics", engine=line.engine)
    return None


def read_as(event: Other) -> Iterator[Event]:
    """The events of a named line by its own engine's grammar, marked with the engine; the line itself where none is."""
    if event.engine != VLLM:
        yield event
        return
    # Each engine's grammar names the other's lines: the import waits until one is met.
    from checks.engines.vllm import log

    for told in log.parse(event.text, event.line):
        yield replace(told, engine=VLLM) if isinstance(told, Decode) else told


def _numbers(message: str) -> Iterator[tuple[str, float]]:
    for key, value in _EQUALS.findall(message):
        yield key.strip(), float(value)


def _positions(found: re.Match[str] | None) -> tuple[float, ...]:
    return tuple(float(item) for item in found.group(1).split(",") if _is_number(item)) if found else ()


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*\d{1,6}(?:\.\d{1,9})?\s*", text) is not None
