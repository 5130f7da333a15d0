"""`log.accept`, `log.accept_low`, `log.accept_ceiling`: how many tokens a verify step emits, and what is suspicious."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from checks.draft import KEY
from checks.engines.events import Decode
from checks.engines.sglang.rates import fits
from checks.errors import CheckError
from checks.evidence import Evidence
from checks.finding import Finding, Verdict
from checks.launch import launch_of
from checks.log.case import log_check
from checks.log.read import (
    ENOUGH,
    LENGTH,
    NOTHING,
    WINDOW,
    Tail,
    by_rank,
    log_name,
    mean_of,
    read_tail,
    share_of,
    silent,
    simulated,
    speculation,
)

ID, LOW_ID, CEILING_ID = "log.accept", "log.accept_low", "log.accept_ceiling"

LOW = 1.25
"""A mean below this, bonus token included: what drafts on wrong states or with a wrong token map reach in the field."""
FALL = 0.15
"""The second position accepted this much less often than the first."""
NEVER = 0.005
"""A second position accepted less often than this is accepted by accident only: a share that prints as 0.00."""
ROUNDING = 0.01
"""Lengths are printed with two decimals."""
DRAFTED = 1000
"""Drafted tokens before it means something that none of them was accepted."""
RUN = 5
"""Lines in a row at the ceiling before the output is suspected to repeat."""


@log_check(ID)
def accept(evidence: Evidence) -> Iterable[Finding]:
    """What the log's decode lines say: how many tokens a verify step emits.

    The accept length counts the bonus token, so 1.00 means that nothing the draft proposed was accepted, whatever
    `accept rate` is printed beside it. The ceiling is min(steps + 1, draft tokens). The value depends on the prompts as
    much as on the draft: a low one alone says nothing about layers, which is what the align and replay checks measure.

    FAIL: at least 8 decode lines in a row and every one at 1.00, or no token accepted of a thousand and more where the
    engine prints only shares. The draft costs time and gives nothing: wrong states, a wrong vocabulary map, EAGLE where
    EAGLE3 is needed, or a draft that did not load. Of a server that has ended it is a WARN, for the next start may be
    of another config; so with every check of the log but log.failure.
    WARN: the environment makes the server invent its acceptance; the flags ask for speculation and no line prints any;
    lengths above the ceiling of the flags, so that the log is another server's.
    INFO: the mean and range over the latest lines, or that the server runs without speculation.
    UNKNOWN: no decode line since the server last started.

    What to do at 1.00: run flags, align.engine_pair and ckpt.vocab_map.
    """
    tail = read_tail(evidence)
    if tail.rated and not tail.told:
        yield _of_shares(evidence, tail.rated)
        return
    invented = simulated(evidence)
    nothing = silent(evidence, ID, tail)
    if nothing is not None and not (invented and tail.told):
        asked = nothing.verdict is Verdict.INFO and len(tail.decodes) >= ENOUGH and _asked(evidence)
        yield (
            replace(nothing, verdict=Verdict.WARN, summary=f"{nothing.summary}: {asked} asks for it")
            if asked
            else nothing
        )
        return
    effective = speculation(evidence)
    ceiling = effective.ceiling if effective is not None else None
    facts: dict[str, Any] = {
        "engine": tail.engine,
        "decode_lines": len(tail.decodes),
        "log": log_name(evidence),
        "lines": len(tail.told),
        "mean": mean_of(tail.told),
        "low": min(tail.told),
        "high": max(tail.told),
        "last": tail.told[-1],
        "ceiling": ceiling,
        "by_rank": by_rank(tail.decodes[-WINDOW:]),
        "definition": "tokens emitted per verify step, bonus token included",
    }
    if invented:
        yield Finding(ID, Verdict.WARN, f"{invented} is set: the server invents its acceptance", facts)
        return
    yield Finding(ID, *_judge(tail.told, ceiling), facts)


def _of_shares(evidence: Evidence, rated: Sequence[Decode]) -> Finding:
    """A log without accept lengths: only that nothing is accepted can be told from it."""
    last = rated[-1]
    facts: dict[str, Any] = {
        "log": log_name(evidence),
        "lines": len(rated),
        "rate": last.accept_rate_printed,
        "accepted": last.accepted,
        "drafted": last.drafted,
        "since_start": bool(last.cumulative),
    }
    drafted = (last.drafted or 0) if last.cumulative else sum(event.drafted or 0 for event in rated)
    if drafted >= DRAFTED and not any(event.accepted or event.accept_rate_printed for event in rated):
        return Finding(ID, Verdict.FAIL, f"{share_of(rated)}: the draft gives nothing", facts)
    return Finding(ID, Verdict.INFO, share_of(rated), facts)


def _judge(told: Sequence[float], ceiling: int | None) -> tuple[Verdict, str]:
    span = f"mean {mean_of(told):.2f} over {len(told)} decode lines, {min(told):.2f} to {max(told):.2f}"
    of = f" of at most {ceiling}" if ceiling else ""
    if len(told) < ENOUGH:
        return Verdict.INFO, f"{LENGTH} {span}{of}: too few lines to judge"
    if ceiling and max(told) > ceiling + ROUNDING:
        return Verdict.WARN, f"{LENGTH} {span}, above the {ceiling} the flags allow: the log is of other flags"
    if max(told) < NOTHING:
        return Verdict.FAIL, f"{LENGTH} is 1.00 in all of {len(told)} decode lines: no draft token is accepted"
    return Verdict.INFO, f"{LENGTH} {span}{of}"


def _asked(evidence: Evidence) -> str:
    """The flag that asks for speculation; empty when none does."""
    launch = launch_of(evidence)
    names = ("speculative-algorithm", "speculative-config")
    return next((f"--{name}" for name in names if launch is not None and launch.has(name)), "")


@log_check(LOW_ID)
def accept_low(evidence: Evidence) -> Iterable[Finding]:
    """Whether acceptance is so low that something is likely wrong, judged by the accept length and never by the rate.

    A big tree makes the printed rate tiny for a very good draft: 5.88 with 0.08 is well.

    How it decides, over the latest decode lines, of which there must be 8: a mean of 1.25 or more is PASS. Below it is
    WARN, and so is a second draft position that is accepted less than 0.15 times as often as the first, where the
    engine prints positions: length 1.0 to 1.2 with a fast fall after the first position is what wrong layers or a wrong
    token map look like. The log alone cannot tell the cause, so it does not fail by itself.
    FAIL: the second position is never accepted (below 0.005) by a draft whose config names no layer ids, so that the
    engine guesses its states: a guess that serves nothing is no working configuration.

    What to do: run the align checks and ckpt.vocab_map. When they pass, the layers are right: look at the training data
    and the chat template, at the requests (prompts without a template give low values for any draft), and at the
    engine's version.
    """
    tail = read_tail(evidence)
    nothing = silent(evidence, LOW_ID, tail)
    if nothing is not None:
        yield nothing
        return
    told = tail.told
    positions = _positions(tail)
    facts: dict[str, Any] = {"lines": len(told), "mean": mean_of(told), "engine": tail.engine, "threshold": LOW}
    if positions:
        facts["positions"] = positions
    if len(told) < ENOUGH:
        yield Finding(LOW_ID, Verdict.INFO, f"{len(told)} decode lines are too few to call acceptance low", facts)
        return
    words = f"{LENGTH} {facts['mean']:.2f} over {len(told)} decode lines"
    falls = len(positions) > 1 and positions[0] > 0 and positions[1] < FALL * positions[0]
    if falls:
        words += f", and the second position is accepted {positions[1]:.3f} to the first's {positions[0]:.3f}"
    if facts["mean"] >= LOW and not falls:
        yield Finding(LOW_ID, Verdict.PASS, words, facts)
        return
    if falls and positions[1] < NEVER and _guessed(evidence):
        facts["ids"] = None
        words += f", and the config names no {KEY}: the states the engine guesses are not what this draft reads, or its"
        yield Finding(LOW_ID, Verdict.FAIL, f"{words} token map is wrong; align and ckpt.vocab_map tell which", facts)
        return
    yield Finding(
        LOW_ID,
        Verdict.WARN,
        f"{words}: as with wrong layers or a wrong token map; not proven, see align and ckpt, then data, template "
        "and the engine's version",
        facts,
    )


def _guessed(evidence: Evidence) -> bool:
    """Whether a draft that reads states is given without ids for them."""
    try:
        draft = evidence.draft
        return draft is not None and draft.uses_aux and draft.aux_ids.value is None
    except CheckError:
        return False


def _positions(tail: Tail) -> list[float]:
    """The mean acceptance by draft position over the latest lines that print it, weighted by what they drafted."""
    rows = [(event.positions, float(event.drafted or 1)) for event in tail.decodes[-WINDOW:] if event.positions]
    if not rows:
        return []
    width = min(len(positions) for positions, _ in rows)
    total = sum(weight for _, weight in rows)
    return [round(sum(row[at] * weight for row, weight in rows) / total, 4) for at in range(width)]


@log_check(CEILING_ID)
def accept_ceiling(evidence: Evidence) -> Iterable[Finding]:
    """Whether acceptance is pinned at its ceiling, which is too good: the output repeats itself, or is corrupted.

    The ceiling is min(steps + 1, draft tokens) by the launch flags; without flags it follows from the lines themselves,
    where a printed rate of 1.00 goes with a whole number of tokens.

    WARN: at least 5 decode lines in a row of one rank at the ceiling. Look at what is being generated: a loop of a few
    tokens is easy to guess, and so are exclamation marks from a target that computes nonsense.
    PASS: no such run. INFO: too few lines, or no ceiling is known.
    """
    tail = read_tail(evidence)
    nothing = silent(evidence, CEILING_ID, tail)
    if nothing is not None:
        yield nothing
        return
    effective = speculation(evidence)
    ceiling = effective.ceiling if effective is not None else None
    if ceiling is None or max(tail.told) > ceiling + ROUNDING:
        ceiling = _ceiling_of(tail.decodes)
    facts: dict[str, Any] = {"ceiling": ceiling, "lines": len(tail.told), "high": max(tail.told)}
    if ceiling is None:
        yield Finding(CEILING_ID, Verdict.PASS, "no line prints a rate of 1.00: acceptance is below its ceiling", facts)
        return
    longest = facts["longest_run"] = _longest(tail.decodes, ceiling)
    if ceiling > 1 and longest >= RUN:
        yield Finding(
            CEILING_ID,
            Verdict.WARN,
            f"{LENGTH} is at its ceiling {ceiling} in {longest} lines in a row: check the output for loops",
            facts,
        )
        return
    few = Verdict.INFO if len(tail.told) < RUN else Verdict.PASS
    yield Finding(CEILING_ID, few, f"at most {longest} lines in a row at the ceiling {ceiling}", facts)


def _ceiling_of(lines: Sequence[Decode]) -> int | None:
    """The number of draft tokens by lines that print a rate of 1.00, None when there are none."""
    full = [
        (event.accept_len, event.accept_rate_printed)
        for event in lines
        if event.accept_len is not None and event.accept_rate_printed is not None and event.accept_rate_printed >= 0.995
    ]
    found = {fit.draft_tokens for fit in fits(full)}
    return found.pop() if len(found) == 1 else None


def _longest(lines: Sequence[Decode], ceiling: int) -> int:
    """The longest run of lines at the ceiling, of any one rank."""
    ranks: dict[int, list[bool]] = {}
    for event in lines[-WINDOW * 8 :]:
        if event.accept_len is not None:
            ranks.setdefault(event.rank.get("dp", -1), []).append(event.accept_len >= ceiling - 0.005)
    runs = [sum(1 for _ in group) for rows in ranks.values() for full, group in groupby(rows) if full]
    return max(runs, default=0)
