"""`align.final`: is the cached last block before or after the final norm, and is an aux slot the norm's output?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from checks.align.wording import place
from checks.catalog import check
from checks.distance import median, readable, relative
from checks.errors import BadTensors
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict
from checks.naming import all_states_capture, number, texts_of
from checks.nearest import NO_FIT
from checks.teacher import final_norm, greedy_tokens, is_normed
from checks.wiring import fed_states, judged_engines

ID = "align.final"

SAMPLES, ROWS = 4, 64

SAME = 0.02
"""Relative distance up to which a slot is the final state itself, up to rounding."""

WORDS = {"pre": "before the final norm (R_n)", "post": "after the final norm (N)"}


@check(ID, needs=(Need.CACHE, Need.TARGET_WEIGHTS))
def final(evidence: Evidence) -> Iterator[Finding]:
    """The last cached block is the teacher: a trainer applies the final norm to it or not, by its layout. When the
    numbers say the other of the two, the draft was trained on a wrong teacher; write the cache again or correct the
    trainer, no id of the config helps.

    How it decides. Dividing by the norm's weight makes the rms of every token 1 after the norm, and hardly ever before.
    Then the target's head is applied, to the state as it is or after the norm, and has to name the text's next tokens
    more often than the most frequent token would; with a capture of all states, the block is also held against R_n and
    its norm directly.

    - the numbers are not what the layout says: FAIL. They are: PASS. A layout that does not say: INFO.
    - the state names the text no better than a constant, and no capture decides: UNKNOWN.
    - a captured R_n of the same tokens is neither this block nor its norm: FAIL, the block is of other weights.
    - an aux slot that is the norm's output: FAIL. Engines feed states before any norm.
    - an aux slot that equals R_n where the engine feeds another state in its place: FAIL.
    """
    target = evidence.target
    assert target is not None
    weight = target.final_norm()
    for cache in evidence.caches:
        if cache.hidden != len(weight):
            words = f"the cached states are {cache.hidden} wide, the target's norm {len(weight)}: another target"
            yield Finding(ID, Verdict.FAIL, words, place(evidence, cache))
            continue
        seen = _look(evidence, cache, target, weight)
        yield from _judge(evidence, cache, seen)


@dataclass
class _Seen:
    """What the numbers of a cache say of its last block and its slots."""

    rows: int = 0
    final: str = ""
    level: float = float("nan")
    agreement: float = float("nan")
    chance: float = float("nan")
    from_r_n: float = float("nan")
    from_n: float = float("nan")
    normed_slots: list[int] = field(default_factory=list)
    last_slots: list[int] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    def as_json(self, layout: str) -> dict[str, Any]:
        return {
            "layout_says": layout,
            "measured": self.final or None,
            "rms_over_weight": number(self.level),
            "agreement": number(self.agreement),
            "chance": number(self.chance),
            "distance_to_R_n": number(self.from_r_n),
            "distance_to_N": number(self.from_n),
            "normed_slots": self.normed_slots,
            "slots_equal_R_n": self.last_slots,
            "rows": self.rows,
            **({"unreadable": self.damaged} if self.damaged else {}),
        }


def _look(evidence: Evidence, cache: Any, target: Any, weight: npt.NDArray[np.float32]) -> _Seen:
    samples = cache.samples(min(SAMPLES, evidence.request.samples or SAMPLES), evidence.request.seed)
    ids, damaged = readable(samples)
    seen = _Seen(damaged=list(damaged.values()))
    slots: list[list[npt.NDArray[np.float32]]] = [[] for _ in range(cache.slots)]
    finals, following, known = [], [], []
    for index, tokens in ids.items():
        sample, stop = samples[index], min(len(tokens), ROWS)
        seen.rows += stop
        for slot in range(cache.slots):
            slots[slot].append(sample.slot(slot, 0, stop))
        block = sample.final(0, stop)
        if block is not None:
            finals.append(block)
            following.append(np.append(tokens, 0)[1 : stop + 1])
            known.append(np.arange(1, stop + 1) < len(tokens))
    if not seen.rows:
        return seen
    blocks = [np.concatenate(parts) for parts in slots]
    seen.normed_slots = [slot for slot, rows in enumerate(blocks) if is_normed(rows, weight)[0]]
    if not finals:
        return seen
    last = np.concatenate(finals)
    normed, seen.level = is_normed(last, weight)
    seen.final = "post" if normed else "pre"
    teacher = last if normed else final_norm(last, weight, target.rms_eps)
    for slot, rows in enumerate(blocks):
        same = final_norm(rows, weight, target.rms_eps) if normed else rows
        if slot not in seen.normed_slots and median(relative(last, same)) <= SAME:
            seen.last_slots.append(slot)
    _read_text(evidence, target, teacher, np.concatenate(following), np.concatenate(known), seen)
    _against_capture(evidence, cache, weight, seen)
    return seen


def _read_text(
    evidence: Evidence,
    target: Any,
    teacher: npt.NDArray[np.float32],
    following: npt.NDArray[np.int64],
    known: npt.NDArray[np.bool_],
    seen: _Seen,
) -> None:
    """How often the head names the next token, and how often the most frequent one is it."""
    try:
        said = greedy_tokens(target, teacher[known], lambda done, of: evidence.progress(done, of, "applying the head"))
    except BadTensors:
        return  # a target without a readable head still has its norm, which decides
    truth = following[known]
    if len(truth):
        seen.agreement = float(np.mean(said == truth))
        seen.chance = float(np.unique(truth, return_counts=True)[1].max() / len(truth))


def _against_capture(evidence: Evidence, cache: Any, weight: npt.NDArray[np.float32], seen: _Seen) -> None:
    capture, target = all_states_capture(evidence), evidence.target
    if capture is None or target is None or capture.slots != target.n + 1:
        return
    for text in [text.limited(ROWS) for text in texts_of(evidence, cache, capture)[:1]]:
        sample = text.open()
        first, last = int(text.positions[0]), int(text.positions[-1]) + 1
        block = sample.final(first, last)
        if block is None:
            return
        rows, state = block[text.positions - first], text.captured_rows(target.n)
        seen.from_r_n = median(relative(rows, state))
        seen.from_n = median(relative(rows, final_norm(state, weight, target.rms_eps)))


def _judge(evidence: Evidence, cache: Any, seen: _Seen) -> Iterator[Finding]:
    facts = {**seen.as_json(cache.final), **place(evidence, cache)}
    if not seen.rows:
        yield Finding(ID, Verdict.UNKNOWN, "no cached sample could be read", {**facts, "needs": seen.damaged})
        return
    for slot in seen.normed_slots:
        words = f"slot {slot} is the output of the final norm; engines feed states before any norm, so no ids match it"
        yield Finding(ID, Verdict.FAIL, words, {**facts, "slot": slot})
    yield from _last_slots(evidence, cache, seen, facts)
    if not seen.final:
        if not seen.normed_slots:
            yield Finding(ID, Verdict.INFO, "this cache holds no final state", facts)
        return
    measured = f"the last block is {WORDS[seen.final]}"
    if np.isfinite(seen.from_r_n) and min(seen.from_r_n, seen.from_n) > NO_FIT:
        words = f"the last block is neither R_n ({number(seen.from_r_n)} apart) nor its norm ({number(seen.from_n)})"
        yield Finding(ID, Verdict.FAIL, f"{words}: it is of other weights or another text", facts)
    elif _says_nothing(seen):
        needs = ["a capture of all states of the same tokens"]
        words = f"the head names {_percent(seen.agreement)} of the next tokens, a constant {_percent(seen.chance)}"
        words = f"not decided: by its level {measured}, but {words}; it may be of another target"
        yield Finding(ID, Verdict.UNKNOWN, words, {**facts, "needs": needs})
    elif cache.final in WORDS and cache.final != seen.final:
        words = f"{measured}, and the {cache.layout} layout has it {WORDS[cache.final]}: the teacher was wrong"
        yield Finding(ID, Verdict.FAIL, words, facts)
    else:
        verdict = Verdict.PASS if cache.final in WORDS else Verdict.INFO
        agreement = f"; the head names {_percent(seen.agreement)} of the next tokens" if seen.agreement >= 0 else ""
        yield Finding(ID, verdict, measured + agreement, facts)


def _says_nothing(seen: _Seen) -> bool:
    if np.isfinite(seen.from_r_n):
        return False
    return bool(np.isfinite(seen.agreement) and seen.agreement <= seen.chance)


def _last_slots(evidence: Evidence, cache: Any, seen: _Seen, facts: dict[str, Any]) -> Iterator[Finding]:
    """A slot that equals R_n is named without any capture: the engine has to feed R_n there."""
    target, draft = evidence.target, evidence.draft
    if not seen.last_slots or target is None or draft is None or draft.config_error is not None:
        return
    for engine in judged_engines(evidence):
        fed = fed_states(evidence, engine)
        for slot in seen.last_slots:
            if fed.states and slot < len(fed.states) and fed.states[slot] != target.n:
                words = f"slot {slot} of the cache is R_{target.n}, and the engine feeds R_{fed.states[slot]} there"
                verdict = Verdict.WARN if engine.source == "assumed" else Verdict.FAIL
                more = {**facts, "slot": slot, "engine_states": list(fed.states), "source": engine.source}
                yield Finding(ID, verdict, words, more, engine=engine.label)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
