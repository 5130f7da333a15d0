"""Checks of the server's log: what its decode lines say about acceptance."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.catalog import check
from checks.engines import REGISTRY
from checks.engines.events import Decode, Event, Phase
from checks.engines.sglang.flags import effective
from checks.engines.sglang.launch import parse_argv
from checks.errors import NotRunnable
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict

ID = "log.accept"

TAIL = 8 << 20
"""Bytes from the end of the log that are read; at the default interval that is hours of decode lines."""
ENOUGH = 8
"""Decode lines before anything is said about how acceptance runs."""
WINDOW = 200
"""The latest decode lines the numbers are taken from."""
NOTHING = 1.005
"""Accept length counts the bonus token: a window that prints 1.00 accepted no draft token."""

# Variables that make SGLang report an invented acceptance.
_SIMULATED = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN")


@dataclass(frozen=True)
class Tail:
    """The end of a log, read by the engine whose lines it holds; `cut` when the beginning was left out."""

    engine: str
    events: tuple[Event, ...]
    cut: bool


@check(ID, needs=(Need.LOG,))
def accept(evidence: Evidence) -> Iterable[Finding]:
    """What the log's decode lines say: how many tokens a verify step emits.

    The accept length counts the bonus token, so 1.00 means that nothing the draft proposed was accepted. The ceiling
    is min(steps + 1, draft tokens). The value depends on the prompts as much as on the draft: a low one alone says
    nothing about layers, which is what the align and replay checks measure.

    WARN: at least 8 decode lines in a row and every one at 1.00 (a draft whose proposals are all refused: wrong states,
    a wrong vocabulary map, a draft that did not load), or every one at the ceiling (usually an output that repeats
    itself), or an acceptance that the environment simulates.
    INFO: the mean and range over the latest lines, or that the server runs without speculation.
    UNKNOWN: no decode line since the server last started.

    What to do at 1.00: run align.engine_pair and ckpt.vocab_map; at the ceiling, look at what is being generated.
    """
    tail = read_tail(evidence)
    lines = [event for event in _last_life(tail.events) if isinstance(event, Decode)]
    facts: dict[str, Any] = {"engine": tail.engine, "decode_lines": len(lines), "log": evidence.request.log}
    if not lines:
        needs = "decode lines: send the server some requests"
        yield Finding(
            ID, Verdict.UNKNOWN, "the log has no decode line since the server started", {**facts, "needs": [needs]}
        )
        return
    told = [event.accept_len for event in lines if event.accept_len is not None][-WINDOW:]
    if not told:
        yield Finding(ID, Verdict.INFO, "the server decodes without speculation: no accept length is printed", facts)
        return
    ceiling = _ceiling(evidence)
    facts.update(
        lines=len(told),
        mean=round(statistics.fmean(told), 3),
        low=min(told),
        high=max(told),
        last=told[-1],
        ceiling=ceiling,
        by_rank=_by_rank(lines),
    )
    simulated = [name for name in _SIMULATED if evidence.request.env.get(name)]
    if simulated:
        yield Finding(ID, Verdict.WARN, f"{simulated[0]} is set: the server invents its acceptance", facts)
        return
    yield Finding(ID, *_judge(told, ceiling), facts)


def _judge(told: Sequence[float], ceiling: int | None) -> tuple[Verdict, str]:
    mean = statistics.fmean(told)
    span = f"mean {mean:.2f} over {len(told)} decode lines, {min(told):.2f} to {max(told):.2f}"
    of = f" of at most {ceiling}" if ceiling else ""
    if len(told) < ENOUGH:
        return Verdict.INFO, f"accept length {span}{of}: too few lines to judge"
    if max(told) < NOTHING:
        return Verdict.WARN, f"accept length is 1.00 in all of {len(told)} decode lines: no draft token is accepted"
    if ceiling and min(told) >= ceiling - 0.005:
        return (
            Verdict.WARN,
            f"accept length is at its ceiling {ceiling} in all of {len(told)} lines: does the output repeat?",
        )
    return Verdict.INFO, f"accept length {span}{of}"


def read_tail(evidence: Evidence) -> Tail:
    """The end of the log as events; memoised. The engine is the one whose decode lines the log holds most of."""

    def read() -> Tail:
        text, cut = _tail(Path(evidence.request.log).expanduser())
        lines = text.split("\n")
        read_by = {name: tuple(module.log.parse_lines(lines)) for name, module in REGISTRY.items()}
        best = max(read_by, key=lambda name: sum(isinstance(event, Decode) for event in read_by[name]))
        return Tail(best, read_by[best], cut)

    return evidence.memo("log tail", read)


def _tail(path: Path) -> tuple[str, bool]:
    """The last bytes of a file, from the beginning of a line. Raises NotRunnable when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(size - TAIL, 0)
            file.seek(start)
            raw = file.read(TAIL)
    except OSError as error:
        raise NotRunnable(f"--log {path}: {error.strerror or error}") from None
    if start:
        raw = raw.partition(b"\n")[2]
    return raw.decode("utf-8", "replace"), start > 0


def _last_life(events: Sequence[Event]) -> Sequence[Event]:
    """The events since the server last started; several lines mark one start, and the last of them counts."""
    starts = [index for index, event in enumerate(events) if isinstance(event, Phase) and event.phase == "starting"]
    return events[starts[-1] :] if starts else events


def _by_rank(lines: Sequence[Decode]) -> dict[str, float]:
    """The mean accept length of each data-parallel rank, where several print."""
    ranks: dict[str, list[float]] = {}
    for event in lines[-WINDOW:]:
        if event.accept_len is not None and "dp" in event.rank:
            ranks.setdefault(f"dp{event.rank['dp']}", []).append(event.accept_len)
    return {name: round(statistics.fmean(values), 3) for name, values in ranks.items()} if len(ranks) > 1 else {}


def _ceiling(evidence: Evidence) -> int | None:
    request = evidence.request
    argv = request.server.argv or ("python", "-m", "sglang.launch_server", *request.args)
    found = effective(parse_argv(argv))
    return found.ceiling if found is not None else None
