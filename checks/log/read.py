"""The end of the server's log as events of its last life, read once for all checks of the family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.engines import REGISTRY
from checks.engines.events import Decode, Error, Event, Other, Phase, Prefill
from checks.engines.sglang.flags import Effective, effective
from checks.errors import CheckError, NotRunnable, Unreadable
from checks.evidence import Evidence
from checks.finding import Finding, Verdict
from checks.launch import launch_of
from checks.regular import open_regular

TAIL = 8 << 20
"""Bytes from the end of the log that are read; at the default interval that is hours of decode lines."""
ENOUGH = 8
"""Decode lines before anything is said about how acceptance runs."""
WINDOW = 200
"""The latest decode lines the numbers are taken from."""
LENGTH = "accept length (bonus token included)"
"""What a summary calls it: others report the same without the token that the target always emits, one lower."""
NOTHING = 1.005
"""Accept length counts the bonus token: a window that prints 1.00 accepted no draft token."""

# Variables that make SGLang report an invented acceptance.
SIMULATED = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN")


@dataclass(frozen=True)
class Tail:
    """The end of a log, read by the engine whose lines it holds; `cut` when the beginning was left out.

    `foreign`: how many lines name another engine, by its name.
    """

    engine: str
    events: tuple[Event, ...]
    cut: bool
    foreign: tuple[tuple[str, int], ...] = ()

    @property
    def life(self) -> tuple[Event, ...]:
        """The events since the server last started; several lines mark one start, and the last of them counts."""
        starts = [at for at, event in enumerate(self.events) if isinstance(event, Phase) and event.phase == "starting"]
        return self.events[starts[-1] :] if starts else self.events

    @property
    def decodes(self) -> tuple[Decode, ...]:
        """The decode lines of the last life, without those of another engine or of counts since the start."""
        return tuple(
            event
            for event in self.life
            if isinstance(event, Decode) and not event.engine and not event.cumulative and event.running != 0
        )

    @property
    def told(self) -> tuple[float, ...]:
        """The accept lengths of the latest decode lines."""
        return tuple(event.accept_len for event in self.decodes if event.accept_len is not None)[-WINDOW:]

    @property
    def rated(self) -> tuple[Decode, ...]:
        """The lines of the last life that tell what share of the draft is accepted, and no accept length: early vLLM's.

        Those of V0 count from the start of the server on.
        """
        return tuple(
            event
            for event in self.life
            if isinstance(event, Decode)
            and not event.engine
            and event.accept_len is None
            and event.accept_rate_printed is not None
        )


def log_name(evidence: Evidence) -> str:
    """The log as the user names it: a path, or what the file that is read is a copy of."""
    return evidence.request.log_of or evidence.request.log


def read_tail(evidence: Evidence) -> Tail:
    """The end of the log as events; memoised.

    The engine is the one whose decode lines the log holds most of; of a log without any, the one whose start it shows.
    Raises NotRunnable for a file that cannot be read, Unreadable for one that was a copy made for the run.
    """

    def read() -> Tail:
        text, cut = _text(evidence)
        lines = text.split("\n")
        read_by = {name: tuple(REGISTRY[name].log.parse_lines(lines)) for name in _may_have_written(text)}
        best = max(read_by, key=lambda name: _held(read_by[name]))
        named: dict[str, int] = {}
        for event in read_by[best]:
            if isinstance(event, (Other, Decode)) and event.engine and event.engine != best:
                named[event.engine] = named.get(event.engine, 0) + 1
        return Tail(best, read_by[best], cut, tuple(sorted(named.items())))

    return evidence.memo("log tail", read)


def silent(evidence: Evidence, id: str, tail: Tail) -> Finding | None:
    """What a check of acceptance says when there is nothing to judge: no decode line, no speculation, an invented one.

    None when there are accept lengths of the server's own.
    """
    facts: dict[str, Any] = {"engine": tail.engine, "decode_lines": len(tail.decodes), "log": log_name(evidence)}
    if tail.rated and not tail.told:
        return Finding(id, Verdict.INFO, f"{share_of(tail.rated)}: nothing else is judged by it", facts)
    if not tail.decodes:
        died = any(isinstance(event, Phase) and event.phase == "crashed" for event in tail.life)
        over = died or evidence.request.ended
        needs = "a server that runs: see log.failure" if over else "decode lines: send the server some requests"
        said = "the log has no decode line since the server started" + (", and it died (log.failure)" if died else "")
        return Finding(id, Verdict.UNKNOWN, said, {**facts, "needs": [needs]})
    if not tail.told:
        return Finding(id, Verdict.INFO, "the server runs without speculation, or does not print it", facts)
    invented = simulated(evidence)
    if invented:
        return Finding(id, Verdict.INFO, f"{invented} is set: what the log prints is invented, and not judged", facts)
    return None


def share_of(rated: Sequence[Decode]) -> str:
    """What lines without an accept length say, in words."""
    last = rated[-1]
    rate = last.accept_rate_printed or 0.0
    drafted = f" of {last.drafted} drafted tokens" if last.drafted else " of what is drafted"
    span = "counted from the server's start on" if last.cumulative else "over its latest window"
    return f"the log prints no {LENGTH}; {rate:.1%}{drafted} are accepted, {span}"


def simulated(evidence: Evidence) -> str:
    """The variable that makes the server invent its acceptance; empty when none is set."""
    launch = launch_of(evidence)
    return next((name for name in SIMULATED if launch is not None and launch.env.get(name)), "")


def speculation(evidence: Evidence) -> Effective | None:
    """Steps and draft tokens in effect by the flags at hand; None when they do not say."""
    launch = launch_of(evidence)
    return effective(launch.facts, version_of(evidence)) if launch is not None else None


def version_of(evidence: Evidence) -> str:
    """The version of the engine that wrote the log, as far as one engine is named or found; else empty."""
    tail = read_tail(evidence)
    try:
        versions = {engine.version for engine in evidence.engines if engine.name == tail.engine}
    except CheckError:
        return ""
    return versions.pop() if len(versions) == 1 else ""


def by_rank(lines: Sequence[Decode]) -> dict[str, float]:
    """The mean accept length of each data-parallel rank, weighted by its running requests, where several print."""
    ranks: dict[str, list[tuple[float, float]]] = {}
    for event in lines:
        if event.accept_len is not None and "dp" in event.rank:
            ranks.setdefault(f"dp{event.rank['dp']}", []).append((event.accept_len, float(event.running or 1)))
    if len(ranks) < 2:
        return {}
    return {
        name: round(sum(length * weight for length, weight in rows) / sum(weight for _, weight in rows), 3)
        for name, rows in sorted(ranks.items(), key=lambda item: int(item[0][2:]))
    }


def mean_of(values: Sequence[float]) -> float:
    """The mean, rounded as evidence is."""
    return round(sum(values) / len(values), 3)


def _may_have_written(text: str) -> list[str]:
    """The engines to read the log as: the one that has most of its batch lines, every one where none is ahead."""
    raw = text.encode("utf-8").split(b"\n")
    found = {name: module.log.history(raw) for name, module in REGISTRY.items()}
    batches = {name: len(item.decode) + len(item.prefill) for name, item in found.items()}
    most = max(batches.values())
    return [name for name, count in batches.items() if count == most]


def _held(events: Sequence[Event]) -> tuple[int, int]:
    """How many lines an engine's grammar knows as its own: of batches, and of a server's life."""
    batches = sum(isinstance(event, (Decode, Prefill)) and not event.engine for event in events)
    return batches, sum(isinstance(event, (Phase, Error)) for event in events)


def _text(evidence: Evidence) -> tuple[str, bool]:
    """The end of the log, and whether its beginning was left out."""
    request = evidence.request
    try:
        return _tail(Path(request.log).expanduser())
    except NotRunnable as error:
        if not request.log_of:
            raise
        # A path that the user never gave is no reason to end the run.
        raise Unreadable(f"the copy of {request.log_of} could not be read ({error}); run the checks again") from None


def _tail(path: Path) -> tuple[str, bool]:
    """The last bytes of a file, from the beginning of a line. Raises NotRunnable when it cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            start = max(size - TAIL, 0)
            file.seek(start)
            raw = file.read(TAIL)
    except OSError as error:
        raise NotRunnable(f"--log {path}: {error.strerror or error}") from None
    if start:
        raw = raw.partition(b"\n")[2]
    return raw.decode("utf-8", "replace"), start > 0
