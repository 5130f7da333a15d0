"""`align.engine_pair`: what an engine will feed under the draft's config, against what the cache holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checks.align.running import RESTART, Running, nameless, running
from checks.align.wording import listed, place
from checks.catalog import check
from checks.evidence import Evidence, Need
from checks.finding import ConfigFix, Finding, Verdict
from checks.naming import name_slots
from checks.wiring import (
    BELIEF,
    SIDE_FILE,
    UNKNOWN,
    Fed,
    Trained,
    config_fix,
    fed_states,
    offsets,
    served_in_capture,
    trained_states,
)

ID = "align.engine_pair"


@check(ID, needs=(Need.DRAFT, Need.CACHE, Need.ENGINE))
def engine_pair(evidence: Evidence) -> Iterator[Finding]:
    """The engine's own rule turns the config's layer ids into the states it will feed the draft, and the cache tells
    which states the training used. Where they differ, stage the fix and restart: the draft reads the wrong layers.

    The same ids mean different states to different engines and versions, so there is one finding per engine. The rule
    is read from the engine's source where that can be found, else taken from the table. Where the two disagree the
    source counts, and the finding says so.

    How it decides. The states of the cache are taken from numbers where a capture names them (align.states), else from
    the trainer's side file, else from what the deployment says. Fed and trained must be the same, slot by slot:

    - measured, or recorded in a side file, and different: FAIL. The same: PASS.
    - only believed: different is WARN, the same is UNKNOWN, for a belief proves nothing.
    - an engine that was assumed, neither named nor found: FAIL becomes WARN, PASS becomes UNKNOWN.
    - ids that this engine cannot serve (a state its loop never reaches, duplicates): FAIL.
    - a rule that could not be read, or a cache whose states nothing tells: UNKNOWN, with what would decide.
    - a running server that was started with another config than the one on disk, by its content or by the time it was
      written: what is right on disk is right after a restart, and UNKNOWN for what is served; FAIL where the config
      of its start is known, or a capture of this life of the server, and it feeds other states than the cache holds.

    The fix holds the ids under which this engine feeds the trained states, found by running its
    rule over candidates. Where no ids can (the engine always feeds in ascending order, and cannot reach every state),
    there is no fix of the config: the draft has to be retrained, or its `fc` columns reordered.
    """
    for cache in evidence.caches:
        if not cache.slots:
            yield Finding(ID, Verdict.INFO, name_slots(evidence, cache).note, place(evidence, cache))
            continue
        for engine in evidence.engines:
            yield _judge(evidence, cache, engine)


def _judge(evidence: Evidence, cache: Any, engine: Any) -> Finding:
    fed, trained = fed_states(evidence, engine), trained_states(evidence, cache)
    if nameless(evidence, cache):
        trained = Trained(None, UNKNOWN, "only what the running server feeds is captured, and not under which ids")
    facts: dict[str, Any] = {
        "configured_ids": fed.ids,
        "engine_states": list(fed.states) if fed.states is not None else None,
        "trained_states": list(trained.states) if trained.states is not None else None,
        "source": engine.source,
        "rule": engine.rule.source if engine.rule is not None else None,
        "trained_by": trained.how,
        **place(evidence, cache),
    }
    now = running(evidence, engine)
    if now is not None:
        facts["running"] = now.as_json()
    if fed.problem:
        facts["problem"] = fed.problem
    if engine.differs:
        facts["table_differs"] = engine.differs
    if trained.refuted is not None:
        facts["refuted_claim"] = list(trained.refuted)
    if fed.unknown:
        return Finding(
            ID,
            Verdict.UNKNOWN,
            f"what {engine.label} feeds is not known: {fed.unknown}",
            {**facts, "needs": [fed.unknown]},
            engine=engine.label,
        )
    verdict, summary, fix = _compare(evidence, cache, engine, fed, trained, facts)
    if now is not None:
        verdict, summary = _as_served(engine, now, trained, verdict, summary, facts)
    summary += f"; {engine.differs}" if engine.differs else ""
    return Finding(ID, verdict, summary, facts, fix, engine=engine.label)


def _compare(
    evidence: Evidence, cache: Any, engine: Any, fed: Fed, trained: Trained, facts: dict[str, Any]
) -> tuple[Verdict, str, ConfigFix | None]:
    served = fed.states or ()
    feeds = f"engine feeds {listed(served)}" if served else "engine feeds nothing"
    if fed.problem:
        fix = config_fix(evidence, engine, trained.states)
        return _assumed(engine, Verdict.FAIL), f"{feeds}; {fed.problem}; {trained.words}", fix
    if trained.states is None:
        decides = "a capture from the engine, or the trainer's record of the states"
        facts["needs"] = [decides]
        return Verdict.UNKNOWN, f"{feeds}; what the cache holds is not known: {trained.why}; needs {decides}", None
    if trained.how in (SIDE_FILE, BELIEF) and (differing := _numbers_differ(evidence, cache, fed)):
        # The claim may say what is served; the numbers of the two say they are not the same.
        facts["unlike_served"] = differing
        agree = trained.states == served
        fix = None if agree or trained.how == BELIEF else config_fix(evidence, engine, trained.states)
        slots = ", ".join(map(str, differing))
        return (
            _assumed(engine, Verdict.FAIL),
            f"{feeds}, and the captured numbers are not the cached ones in slot {slots}; {trained.words}"
            + ("; the claim is wrong" if agree else ""),
            fix,
        )
    if trained.states == served:
        verdict = Verdict.UNKNOWN if trained.how == BELIEF else Verdict.PASS
        if verdict is Verdict.UNKNOWN:
            facts["needs"] = ["a capture from the engine: a belief proves nothing"]
        claim = f"; the claim {listed(trained.refuted)} is wrong" if trained.refuted else ""
        return _assumed(engine, verdict), f"{feeds}; {trained.words}{claim}", None
    if len(served) == len(trained.states):
        facts["offsets"] = offsets(trained.states, served)
    fix = config_fix(evidence, engine, trained.states)
    verdict = Verdict.WARN if trained.how == BELIEF else Verdict.FAIL
    unfit = "" if fix is not None else "; no ids make this engine feed them in this order"
    return _assumed(engine, verdict), f"{feeds}; {trained.words}{unfit}", fix


def _as_served(
    engine: Any, now: Running, trained: Trained, verdict: Verdict, summary: str, facts: dict[str, Any]
) -> tuple[Verdict, str]:
    """The verdict on what is served, where that is not what the config on disk says."""
    known = trained.states is not None and trained.how != BELIEF
    if now.states is not None and known and now.states != trained.states:
        facts["offsets"] = offsets(trained.states or (), now.states)
        after = f"right ({summary})" if verdict is Verdict.PASS else summary
        served = f"the running server feeds {listed(now.states)}, {trained.words}: {now.words}"
        return _assumed(engine, Verdict.FAIL), f"{served}; after a restart: {after}"
    if verdict is Verdict.PASS and now.states is None:
        facts["needs"] = [RESTART]
        return Verdict.UNKNOWN, f"after a restart: right ({summary}); {now.words}"
    if now.states is not None:
        return verdict, f"after a restart: {summary}; the running server feeds {listed(now.states)}: {now.words}"
    return verdict, f"after a restart: {summary}; {now.words}"


def _assumed(engine: Any, verdict: Verdict) -> Verdict:
    """An engine nobody named and no source showed cannot condemn or acquit."""
    if engine.source != "assumed":
        return verdict
    return {Verdict.FAIL: Verdict.WARN, Verdict.PASS: Verdict.UNKNOWN}.get(verdict, verdict)


def _numbers_differ(evidence: Evidence, cache: Any, fed: Fed) -> list[int]:
    """Slots whose cached numbers are clearly not the served ones, when the capture was made under this wiring."""
    naming = name_slots(evidence, cache)
    if naming.how != "engine" or served_in_capture(evidence) != fed.states:
        return []
    return [
        slot.slot
        for slot in naming.slots
        if slot.kind in ("none", "empty") or (slot.decided and slot.label != f"served {slot.slot}")
    ]
