"""`align.embedding`: is a cached slot the embedding of its tokens? Needs the target's weights and no engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from checks.align.wording import listed, place
from checks.catalog import check
from checks.distance import median, readable, relative
from checks.evidence import Evidence, Need
from checks.finding import ConfigFix, Finding, Verdict
from checks.naming import name_slots, number
from checks.wiring import BELIEF, UNKNOWN, config_fix, fed_states, judged_engines, trained_states

ID = "align.embedding"

SAMPLES, ROWS = 4, 64

IS, IS_NOT = 0.02, 0.20
"""Relative distance to the embedding rows: the copy is exact up to rounding to bfloat16 (0.002, fp8 serving 0.02 at
worst); the state after one layer is already about 1 away."""


@check(ID, needs=(Need.CACHE, Need.TARGET_WEIGHTS))
def embedding(evidence: Evidence) -> Iterator[Finding]:
    """Each cached slot is compared with the target's embedding rows of its own token ids: they are equal exactly when
    the slot is the state before the first layer. When the engine feeds that state and no cached slot is it, or the
    other way round, the wiring is wrong whatever else is true; put the ids right before the next start.

    How it decides. Relative L2 distance per token, median over tokens: up to 0.02 the slot is the embedding, from 0.2
    on it is not. No engine and no capture is needed, only the embedding matrix, so this is the fastest proof there is
    of a wiring like `[-1, 2, 30]`, where a rule of id + 1 makes slot 0 the embedding and shifts every other slot.

    - the engine's rule feeds R_0 in a slot whose cached numbers are not the embedding: FAIL.
    - a cached slot is the embedding and the engine does not feed R_0 there: FAIL.
    - a claim of the cache names R_0 for a slot that is not it, or another state for one that is: FAIL for a trainer's
      side file, WARN for what the deployment says.
    - otherwise PASS. It says nothing of slots that are no embedding: their states are named by a capture
      (align.states).

    The fix is the one of align.engine_pair, when the trained states are known; the finding says what is not.
    """
    target = evidence.target
    assert target is not None
    for cache in evidence.caches:
        if not cache.slots:
            yield Finding(ID, Verdict.INFO, name_slots(evidence, cache).note, place(evidence, cache))
            continue
        distances, rows, damaged = _distances(evidence, cache, target)
        facts: dict[str, Any] = {"distances": [number(value) for value in distances], "rows": rows}
        facts.update(place(evidence, cache), **({"unreadable": damaged} if damaged else {}))
        if rows == 0:
            yield Finding(ID, Verdict.UNKNOWN, "no cached sample could be read", {**facts, "needs": damaged})
        elif cache.hidden != target.hidden:
            words = f"the cached slots are {cache.hidden} wide, the target {target.hidden}: not a cache of this target"
            yield Finding(ID, Verdict.FAIL, words, facts)
        else:
            yield from _judge(evidence, cache, distances, facts)


def _distances(evidence: Evidence, cache: Any, target: Any) -> tuple[list[float], int, list[str]]:
    """Median distance of each slot to the embedding rows, the rows used, and what could not be read."""
    samples = cache.samples(min(SAMPLES, evidence.request.samples or SAMPLES), evidence.request.seed)
    ids, damaged = readable(samples)
    apart: list[list[np.ndarray]] = [[] for _ in range(cache.slots)]
    rows = 0
    for done, (index, tokens) in enumerate(ids.items()):
        sample, stop = samples[index], min(len(tokens), ROWS)
        rows += stop
        if cache.hidden != target.hidden:
            continue
        table = target.embedding(tokens[:stop])
        for slot in range(cache.slots):
            apart[slot].append(relative(sample.slot(slot, 0, stop), table))
        evidence.progress(done + 1, len(ids), "comparing with embedding rows")
    return [median(np.concatenate(parts)) if parts else float("nan") for parts in apart], rows, list(damaged.values())


def _judge(evidence: Evidence, cache: Any, distances: list[float], facts: dict[str, Any]) -> Iterator[Finding]:
    embedded = [slot for slot, value in enumerate(distances) if value <= IS]
    unclear = [slot for slot, value in enumerate(distances) if not (value <= IS or value >= IS_NOT)]
    facts["embedding_slots"] = embedded
    trained = trained_states(evidence, cache)
    known = f"{trained.words}" if trained.how != UNKNOWN else "which states the slots do hold stays unknown"
    conflicts = 0
    for engine in judged_engines(evidence) if evidence.draft is not None else ():
        if evidence.draft is None or evidence.draft.config_error is not None:
            break
        fed = fed_states(evidence, engine)
        served = [slot for slot, k in enumerate(fed.states or ()) if k == 0]
        wrong = [slot for slot in served if slot not in embedded and slot not in unclear and slot < len(distances)]
        absent = [slot for slot in embedded if fed.states and slot < len(fed.states) and slot not in served]
        if not wrong and not absent:
            continue
        conflicts += 1
        here = {**facts, "configured_ids": fed.ids, "engine_states": list(fed.states or ()), "source": engine.source}
        if wrong:
            says = f"the engine feeds {listed(fed.states)}: slot {wrong[0]} is the embedding, and no cached slot is it"
            if embedded:
                says = f"the engine feeds the embedding in slot {wrong[0]}, the cache holds it in slot {embedded[0]}"
        else:
            says = f"slot {absent[0]} of the cache is the embedding, and the engine feeds {listed(fed.states)}"
        fix: ConfigFix | None = None
        if trained.how not in (UNKNOWN, BELIEF):
            fix = config_fix(evidence, engine, trained.states)
        if trained.states is None:
            here["unknown"] = "the states of the other slots"
            here["needs"] = ["a capture from the engine, or the trainer's record of the states"]
            known += "; a capture of all states, or the trainer's record, tells and gives the ids"
        verdict = Verdict.WARN if engine.source == "assumed" else Verdict.FAIL
        yield Finding(ID, verdict, f"{says}; {known}", here, fix, engine=engine.label)
    if conflicts:
        return
    yield _without_engine(cache, distances, embedded, unclear, facts)


def _without_engine(
    cache: Any, distances: list[float], embedded: list[int], unclear: list[int], facts: dict[str, Any]
) -> Finding:
    words = f"slot {', '.join(map(str, embedded))} is the embedding" if embedded else "no cached slot is the embedding"
    claim = cache.claim
    if claim is not None:
        claimed = [slot for slot, k in enumerate(claim.states[: len(distances)]) if k == 0]
        if [slot for slot in claimed if slot not in unclear] != embedded:
            verdict = Verdict.WARN if claim.by == "deployment" else Verdict.FAIL
            facts["claimed"] = list(claim.states)
            return Finding(ID, verdict, f"{words}, and {claim.by} says the slots are {listed(claim.states)}", facts)
    empty = [slot for slot in unclear if not np.isfinite(distances[slot])]
    if empty:
        words = f"slot {', '.join(map(str, empty))} of the cache is empty or not finite"
        return Finding(ID, Verdict.FAIL, words, facts)
    if unclear:
        slots = ", ".join(f"slot {slot} ({number(distances[slot])})" for slot in unclear)
        needs = ["a capture from the engine (align.states)"]
        words = f"not decided for {slots}: near the embedding, but not equal to it"
        return Finding(ID, Verdict.UNKNOWN, words, {**facts, "needs": needs})
    return Finding(ID, Verdict.PASS, words, facts)
