"""How acceptance runs over time and ranks: `log.trend`, `log.sparse`, `log.rank_spread`, `log.accept_by_cache`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from checks.distance import middle
from checks.engines.events import Decode, Prefill
from checks.evidence import Evidence
from checks.finding import Finding, Verdict
from checks.launch import launch_of
from checks.log.case import log_check
from checks.log.read import LENGTH, WINDOW, by_rank, mean_of, read_tail, silent

TREND_ID, SPARSE_ID = "log.trend", "log.sparse"
SPREAD_ID, CACHE_ID = "log.rank_spread", "log.accept_by_cache"

HOUR_S = 3600.0
BLOCK = 10
"""Neighbouring lines share their requests: their means, ten at a time, are what is compared."""
BLOCKS = 4
"""Blocks that each side of a comparison needs."""
LOSS = 0.15
"""A drop of the accepted drafts (accept length less 1) below this share is no matter."""
ERRORS = 4.0
"""Standard errors a difference has to exceed: a false alarm in well under a thousand steady logs."""

INTERVAL = 40
"""Decode steps between two decode lines by default."""
SPARSE = 200


@log_check(TREND_ID)
def trend(evidence: Evidence) -> Iterable[Finding]:
    """Whether acceptance has fallen since the beginning: slowly, or at a step.

    How it decides: the lines are split where the means of the two sides differ most, in blocks of ten neighbouring
    lines and with at least four blocks on each side, and the latest lines are compared with the first hour (the first
    quarter where no time is printed). WARN: either way the accepted drafts a step (accept length less 1) fell by 15 %
    or more and by more than four standard errors. PASS: nothing of the kind. INFO: fewer than 80 lines.

    The log does not say why. Other requests look the same as a regression: compare the request mix first, then the
    versions before and after, and restart to see whether it comes back.
    """
    tail = read_tail(evidence)
    nothing = silent(evidence, TREND_ID, tail)
    if nothing is not None:
        yield nothing
        return
    lines = [event for event in tail.decodes if event.accept_len is not None]
    blocks = _blocks([event.accept_len - 1 for event in lines if event.accept_len is not None])
    facts: dict[str, Any] = {"lines": len(lines), "blocks": len(blocks)}
    if len(blocks) < 2 * BLOCKS:
        words = f"{len(lines)} decode lines are too few to see a trend"
        yield Finding(TREND_ID, Verdict.INFO, words, facts)
        return
    first = _first_hour(lines)
    sides = {
        "step": max(range(BLOCKS, len(blocks) - BLOCKS + 1), key=lambda at: _drop(blocks[:at], blocks[at:])[1]),
        "first hour": min(max(first // BLOCK, BLOCKS), len(blocks) - BLOCKS),
    }
    for name, at in sides.items():
        loss, errors = _drop(blocks[:at], blocks[at:])
        # A split chosen for its difference finds one by chance: it has to be clearer.
        clear = ERRORS * (1.5 if name == "step" else 1.0)
        facts[name] = {"before": mean_of(blocks[:at]), "after": mean_of(blocks[at:]), "errors": round(errors, 1)}
        if loss >= LOSS and errors > clear:
            before, after = 1 + facts[name]["before"], 1 + facts[name]["after"]
            when = lines[at * BLOCK].time or f"line {lines[at * BLOCK].line}"
            how = f"at {when}" if name == "step" else "since the first hour"
            words = f"{LENGTH} fell from {before:.2f} to {after:.2f} {how}: compare the requests, then the versions"
            yield Finding(TREND_ID, Verdict.WARN, words, facts)
            return
    yield Finding(TREND_ID, Verdict.PASS, f"acceptance is steady over {len(lines)} decode lines", facts)


def _blocks(values: Sequence[float]) -> list[float]:
    return [float(np.mean(values[at : at + BLOCK])) for at in range(0, len(values) - BLOCK + 1, BLOCK)]


def _drop(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """(share lost, standard errors of the difference) from one side to the other; 0 where nothing is lost."""
    first, last = float(np.mean(before)), float(np.mean(after))
    if last >= first or first <= 0:
        return 0.0, 0.0
    spread = float(np.var(before, ddof=1)) / len(before) + float(np.var(after, ddof=1)) / len(after)
    return (first - last) / first, (first - last) / math.sqrt(max(spread, 1e-6))


def _first_hour(lines: Sequence[Decode]) -> int:
    """How many lines the first hour has; a quarter of them where no time is printed or it spans less than two hours."""
    times = [_moment(event.time) for event in lines]
    start, end = times[0], times[-1]
    if start is None or end is None or end - start < 2 * HOUR_S:
        return len(lines) // 4
    return sum(1 for moment in times if moment is not None and moment - start <= HOUR_S)


def _moment(text: str | None) -> float | None:
    try:
        return datetime.strptime(text[:19].replace("T", " "), "%Y-%m-%d %H:%M:%S").timestamp() if text else None
    except ValueError:
        return None


@log_check(SPARSE_ID)
def sparse(evidence: Evidence) -> Iterable[Finding]:
    """How often decode lines are to be expected. SGLang prints one every `--decode-log-interval` steps, 40 by default.

    PASS: the interval is usual. INFO: it is 200 steps or more, or the log level hides the lines: that no decode line
    came for minutes is then no sign of a hang. The seconds between two lines at the load last seen are in the evidence.

    To see more, restart with a smaller `--decode-log-interval`, or read /metrics.
    """
    tail = read_tail(evidence)
    launch = launch_of(evidence)
    interval = (launch.number("decode-log-interval") if launch is not None else None) or INTERVAL
    level = launch.text("log-level").lower() if launch is not None else ""
    facts: dict[str, Any] = {"interval_steps": interval, "default": INTERVAL, "decode_lines": len(tail.decodes)}
    last = tail.decodes[-1] if tail.decodes else None
    if last is not None and last.throughput:
        tokens = interval * (last.accept_len or 1.0) * (last.running or 1)
        facts["expected_seconds"] = round(tokens / last.throughput, 1)
    if tail.engine != "sglang":
        yield Finding(SPARSE_ID, Verdict.PASS, f"{tail.engine} prints by time, not by steps", facts)
        return
    if level in ("warning", "error", "critical"):
        facts["log_level"] = level
        yield Finding(
            SPARSE_ID, Verdict.INFO, f"--log-level {level} hides decode lines: none is no sign of a hang", facts
        )
        return
    if interval < SPARSE:
        yield Finding(SPARSE_ID, Verdict.PASS, f"a decode line is printed every {interval} steps", facts)
        return
    seconds = facts.get("expected_seconds")
    every = f", about every {seconds:.0f} s at the load last seen" if seconds else ""
    words = f"a decode line is printed every {interval} steps only{every}: a silent log is no hang by itself"
    yield Finding(SPARSE_ID, Verdict.INFO, words, facts)


@log_check(SPREAD_ID)
def rank_spread(evidence: Evidence) -> Iterable[Finding]:
    """How acceptance differs between data-parallel ranks. Each prints its own lines and counts for itself.

    PASS: one rank prints, or all lie within a fifth of the accepted drafts. INFO: they spread more; the lowest is
    named. Lines of an idle rank (no running request) are left out, and means are weighted by running requests.

    One bad rank among good ones is not the draft's doing: it has the same weights everywhere. Look at that rank's GPU,
    its requests, and known defects of the engine.
    """
    tail = read_tail(evidence)
    nothing = silent(evidence, SPREAD_ID, tail)
    if nothing is not None:
        yield nothing
        return
    ranks = by_rank(tail.decodes[-WINDOW * 8 :])
    if not ranks:
        yield Finding(SPREAD_ID, Verdict.PASS, "one rank prints decode lines", {"ranks": {}})
        return
    lengths = list(ranks.values())
    facts: dict[str, Any] = {"ranks": ranks, "low": min(lengths), "mean": mean_of(lengths), "high": max(lengths)}
    words = f"{len(ranks)} ranks: {LENGTH} {facts['low']:.2f} to {facts['high']:.2f}, mean {facts['mean']:.2f}"
    worst = min(ranks, key=lambda name: ranks[name])
    if facts["low"] - 1 < 0.8 * (float(middle(np.array(lengths))) - 1):
        yield Finding(SPREAD_ID, Verdict.INFO, f"{words}; {worst} is the lowest", {**facts, "lowest": worst})
        return
    yield Finding(SPREAD_ID, Verdict.PASS, words, facts)


@log_check(CACHE_ID)
def accept_by_cache(evidence: Evidence) -> Iterable[Finding]:
    """Whether acceptance is lower after prefix-cache hits than after cold prompts: a fault of old engines, whose draft
    cache is misaligned on a hit, and not of the training.

    How it decides: a decode line counts as warm when every prefill line of its rank since the decode line before it
    shows cached tokens, as cold when none does; mixed ones and those without a prefill are left out. With 20 of each,
    WARN: the warm mean of the accepted drafts is at least 3 % and more than four standard errors lower. PASS: it is
    not.
    INFO: too few of one kind.

    What to do: compare with --disable-radix-cache on the same requests, and upgrade the engine.
    """
    tail = read_tail(evidence)
    nothing = silent(evidence, CACHE_ID, tail)
    if nothing is not None:
        yield nothing
        return
    warm, cold = _by_cache(tail.life)
    facts: dict[str, Any] = {"warm_lines": len(warm), "cold_lines": len(cold)}
    if min(len(warm), len(cold)) < 20:
        words = f"{len(warm)} decode lines after cache hits and {len(cold)} after cold prompts: too few to compare"
        yield Finding(CACHE_ID, Verdict.INFO, words, facts)
        return
    facts.update(warm=mean_of(warm), cold=mean_of(cold))
    loss, errors = _drop([value - 1 for value in cold], [value - 1 for value in warm])
    words = f"{LENGTH} {facts['warm']:.2f} after cache hits, {facts['cold']:.2f} after cold prompts"
    if loss >= 0.03 and errors > ERRORS:
        yield Finding(CACHE_ID, Verdict.WARN, f"{words}: the engine's prefix cache, not the training", facts)
        return
    yield Finding(CACHE_ID, Verdict.PASS, words, facts)


def _by_cache(events: Sequence[Any]) -> tuple[list[float], list[float]]:
    """(accept lengths after cache hits, after cold prompts). Health probes prefill one token and tell nothing."""
    warm: list[float] = []
    cold: list[float] = []
    since: dict[int, list[bool]] = {}
    for event in events:
        rank = event.rank.get("dp", -1)
        if isinstance(event, Prefill) and event.new_tokens is not None and event.new_tokens > 1:
            since.setdefault(rank, []).append(bool(event.cached_tokens))
        elif isinstance(event, Decode) and event.accept_len is not None and not event.engine and event.running != 0:
            hits = since.pop(rank, [])
            if hits and all(hits):
                warm.append(event.accept_len)
            elif hits and not any(hits):
                cold.append(event.accept_len)
    return warm, cold
