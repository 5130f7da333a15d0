"""`log.rate_formula` and `log.engine`: what the printed rate means, and whose lines the log holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from checks.engines.events import Decode
from checks.engines.sglang.rates import STRICT, Fit, fits, rate_meaning
from checks.evidence import Evidence
from checks.finding import Finding, Verdict
from checks.log.case import log_check
from checks.log.read import WINDOW, mean_of, read_tail, silent, speculation, version_of
from checks.wiring import judged_engines

ID, ENGINE_ID = "log.rate_formula", "log.engine"


@log_check(ID)
def rate_formula(evidence: Evidence) -> Iterable[Finding]:
    """What `accept rate` means in this log. SGLang printed three different figures under that name, and older releases
    none, so the printed number is comparable between servers only with its formula; the accept length always is.

    How it decides: the pairs of accept length and rate in the latest lines, two decimals each, are tried with every
    number of draft tokens from 2 to 128 under both formulas, `len / n` and `(len - 1) / (n - 1)`. With the launch flags
    the number of draft tokens is known, with the engine's version the formula.

    PASS: the lines fit one reading, and version and flags, where known, agree with it. At the ceiling of 1.00 and for
    few lines several fit.
    INFO: no rate is printed, several readings fit, or the lines say another number of draft tokens than the flags.
    WARN: the lines follow another formula than the named version prints: the server is not that version.
    UNKNOWN: no reading fits all lines (a changing number of draft tokens, a fork); then only the length means
    something.

    Nothing accepted prints 1/n under the old formula: 0.11 beside a length of 1.00 is no acceptance at all.
    """
    tail = read_tail(evidence)
    nothing = silent(evidence, ID, tail)
    if nothing is not None:
        yield nothing
        return
    if tail.engine != "sglang":
        yield Finding(ID, Verdict.INFO, f"{tail.engine} prints accepted of drafted tokens", {"engine": tail.engine})
        return
    pairs = [
        (event.accept_len, event.accept_rate_printed)
        for event in tail.decodes[-WINDOW:]
        if event.accept_len is not None and event.accept_rate_printed is not None
    ]
    if not pairs:
        yield Finding(
            ID,
            Verdict.INFO,
            "no accept rate is printed, as before SGLang 0.5.4; the accept length says it",
            {"lines": 0},
        )
        return
    found, meaning, flags = fits(pairs), rate_meaning(version_of(evidence)), speculation(evidence)
    facts: dict[str, Any] = {"lines": len(pairs), "fits": [[fit.formula, fit.draft_tokens] for fit in found[:8]]}
    if meaning is not None:
        facts["by_version"] = meaning.formula
    if flags is not None:
        facts["draft_tokens_by_flags"] = flags.draft_tokens
    yield Finding(
        ID, *_judge(found, meaning.strict if meaning else None, flags.draft_tokens if flags else 0, facts), facts
    )


def _judge(found: tuple[Fit, ...], strict: bool | None, tokens: int, facts: dict[str, Any]) -> tuple[Verdict, str]:
    if not found:
        facts["needs"] = ["the accept length: the printed rate follows no known formula here"]
        return Verdict.UNKNOWN, "the printed accept rate fits no known formula: only the accept length means something"
    asked = [fit for fit in found if (strict is None or fit.strict is strict) and fit.draft_tokens == tokens]
    if strict is not None and not any(fit.strict is strict for fit in found):
        words = f"the lines follow {found[0].formula}, which this version does not print: another version serves"
        return Verdict.WARN, words
    if asked and tokens:
        chosen = asked[0]
    else:
        fitting = [fit for fit in found if strict is None or fit.strict is strict]
        chosen = fitting[0]
        if len(fitting) > 1:
            return (
                Verdict.INFO,
                f"{len(fitting)} readings of the printed rate fit; name the version and the launch flags",
            )
        if tokens and chosen.draft_tokens != tokens:
            facts["draft_tokens"] = chosen.draft_tokens
            words = (
                f"the printed rate is {chosen.formula} with {chosen.draft_tokens} draft tokens; the flags say {tokens}"
            )
            return Verdict.INFO, words
    facts.update(formula=chosen.formula, draft_tokens=chosen.draft_tokens)
    bonus = "without" if chosen.formula == STRICT else "with"
    return (
        Verdict.PASS,
        f"the printed rate is {chosen.formula}, {chosen.draft_tokens} draft tokens ({bonus} bonus token)",
    )


@log_check(ENGINE_ID)
def log_engine(evidence: Evidence) -> Iterable[Finding]:
    """Which engine wrote the log. Lines of vLLM, llama.cpp and others are told by their form and never join the series
    of another engine.

    PASS: the log is of one engine, the one that is named, if one is. INFO: lines of other engines stand in it, or its
    counts run since the server started (vLLM V0), so that a change shows late.
    WARN: the log is another engine's than the one to judge for. UNKNOWN: no engine is recognised.
    """
    tail = read_tail(evidence)
    own = [event for event in tail.events if isinstance(event, Decode) and not event.engine]
    facts: dict[str, Any] = {"engine": tail.engine, "decode_lines": len(own), "other_engines": dict(tail.foreign)}
    if not own:
        others = ", ".join(name for name, _ in tail.foreign)
        if others:
            yield Finding(ENGINE_ID, Verdict.INFO, f"the log holds lines of {others}: named, not judged", facts)
            return
        facts["needs"] = ["a log with decode lines"]
        yield Finding(ENGINE_ID, Verdict.UNKNOWN, "no engine's decode lines are in the log", facts)
        return
    judged = {engine.name for engine in judged_engines(evidence)}
    if judged and tail.engine not in judged:
        words = (
            f"the log is {tail.engine}'s, and {', '.join(sorted(judged))} is to be judged: give the log of that server"
        )
        yield Finding(ENGINE_ID, Verdict.WARN, words, facts)
        return
    cumulative = [event for event in own if event.cumulative]
    if cumulative:
        rates = [event.accept_rate_printed for event in cumulative if event.accept_rate_printed is not None]
        facts["cumulative_rate"] = mean_of(rates[-1:]) if rates else None
        words = f"{tail.engine} counts since its start here: a change of acceptance shows late"
        yield Finding(ENGINE_ID, Verdict.INFO, words, facts)
        return
    if tail.foreign:
        others = ", ".join(f"{count} of {name}" for name, count in tail.foreign)
        yield Finding(ENGINE_ID, Verdict.INFO, f"the log is {tail.engine}'s, with lines of others: {others}", facts)
        return
    yield Finding(ENGINE_ID, Verdict.PASS, f"the log is {tail.engine}'s", facts)
