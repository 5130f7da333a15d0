"""Judging a draft by what its proposals are worth over cached states, as they are and under other wirings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from checks.acceptance import REPLAYED, Estimate, Hits, accept_length, accuracy, paired_gain
from checks.align.wording import place
from checks.eagle3 import CannotReplay, Drafter, load_drafter
from checks.errors import CheckError
from checks.evidence import Evidence
from checks.finding import ConfigFix, Finding, Verdict
from checks.naming import all_states_capture, engine_capture, name_slots, number, texts_of
from checks.patch import set_key
from checks.replay.accuracy import ID
from checks.stretches import NEXT_TOKEN, Bench, bench
from checks.trials import States, search
from checks.turning import Tried, tried_turnings
from checks.wiring import config_fix, fed_states, ids_feeding, judged_engines, trained_states

DEFAULT_STEPS = 5
_STEPS = {str(steps) for steps in range(1, 17)}

FEW = 64
"""Anchors below which nothing is concluded."""

LEAST_GAIN = 0.02
"""Tokens a round: a certain gain smaller than this is no other wiring."""

BLIND = 0.3
"""Tokens a round: while another wiring may gain more than this, there are too few anchors for an all-clear."""

WORTHLESS = 0.05
"""Tokens a round: states that are worth no more than this are not read."""


def judged(evidence: Evidence) -> Iterator[Finding]:
    """The findings of `replay.accuracy`, one a cache."""
    draft = evidence.draft
    assert draft is not None
    try:
        drafter = load_drafter(draft)
        for cache in evidence.caches:
            yield _judge(evidence, cache, drafter)
    except CannotReplay as error:
        yield Finding(ID, Verdict.UNKNOWN, str(error), {"needs": [str(error)]})


def _judge(evidence: Evidence, cache: Any, drafter: Drafter) -> Finding:
    shape = drafter.shape
    if (cache.slots, cache.hidden) != (shape.slots, shape.target_hidden):
        reads = f"the draft reads {shape.slots} of {shape.target_hidden}"
        words = f"the cache holds {cache.slots} slots of {cache.hidden}, {reads}"
        return Finding(ID, Verdict.FAIL, words, place(evidence, cache))
    steps = num_steps(evidence)
    board = bench(evidence, cache, drafter, steps)
    facts: dict[str, Any] = {
        "steps": steps,
        "anchors": board.anchors,
        "samples": len(board.stretches),
        "teacher": board.teacher,
        "loss_mask": board.masked,
        **place(evidence, cache),
        **({"unreadable": list(board.damaged)} if board.damaged else {}),
    }
    if board.anchors < FEW:
        words = f"only {board.anchors} places to judge in {len(board.stretches)} texts: too few"
        return Finding(ID, Verdict.UNKNOWN, words, {**facts, "needs": ["more cached samples (--samples all)"]})
    hits = board.run(lambda stretch: stretch.cached(cache.slots), _teller(evidence, "replaying the draft"))
    seen = accuracy(hits, board.valid)
    length = accept_length(hits, board.valid)
    facts.update(
        marginal=[number(value) for value in seen.marginal],
        conditional=[number(value) for value in seen.conditional],
        accept_length=_estimate(length),
        constant_token=number(board.constant()),
    )
    words = f"expected accept length {_words(length)} (bonus token included) at {steps} steps"
    words += f"; first step {100 * seen.marginal[0]:.0f} % right"
    verdict, trouble = _no_better_than_nothing(evidence, cache, board, hits, facts)
    turned = _other_turning(evidence, cache, board, hits, facts)
    found = _against_others(evidence, cache, drafter, facts, words + _caveats(board))
    if turned is not None:
        return _turned_otherwise(evidence, turned, found)
    if trouble and found.verdict is not Verdict.FAIL:
        return replace(found, verdict=verdict, summary=f"{trouble}; {found.summary}")
    return found


def num_steps(evidence: Evidence) -> int:
    """Draft steps a round: `speculative-num-steps` of the launch flags or of the running server, else 5."""
    for arguments in (evidence.request.args, evidence.request.server.argv):
        words = [part for word in arguments for part in str(word).split("=", 1)]
        for name, value in zip(words, words[1:]):
            if name.lstrip("-").replace("_", "-") == "speculative-num-steps" and value in _STEPS:
                return int(value)
    return DEFAULT_STEPS


def _no_better_than_nothing(
    evidence: Evidence, cache: Any, board: Bench, hits: Sequence[Hits], facts: dict[str, Any]
) -> tuple[Verdict, str]:
    """Whether the draft's first step is worse than a constant, or its states could be any others; "" when neither."""
    first = [one[:1] for one in hits]
    right, chance = paired_gain([np.zeros_like(one) for one in first], first, board.valid), board.constant()
    if right.high < chance:
        return Verdict.FAIL, (
            f"the draft's first step is right {100 * right.mean:.0f} % of the time, the most frequent token would be "
            f"{100 * chance:.0f} %: its token map, its weights or this cache is broken or of another target"
        )
    foreign = board.run(lambda stretch: np.roll(stretch.cached(cache.slots), stretch.last // 2, axis=0))
    worth = paired_gain(foreign, hits, board.valid)
    facts["worth_of_states"] = _estimate(worth)
    if not worth.low > 0 and worth.mean < WORTHLESS:
        return Verdict.WARN, "the draft does as well with the states of other tokens: it draws nothing from these"
    return Verdict.PASS, ""


def _other_turning(
    evidence: Evidence, cache: Any, board: Bench, hits: Sequence[Hits], facts: dict[str, Any]
) -> Tried | None:
    """The rotary embedding that suits a latent draft certainly better than its config's, if one does."""
    draft = evidence.draft
    assert draft is not None
    tried = tried_turnings(draft, board, hits, lambda stretch: stretch.cached(cache.slots))
    if tried:
        facts["turnings"] = [{"what": one.turning.words, "gain": _estimate(one.gain)} for one in tried]
    better = [one for one in tried if one.gain.low > 0 and one.gain.mean >= LEAST_GAIN]
    return better[0] if better else None


def _turned_otherwise(evidence: Evidence, tried: Tried, found: Finding) -> Finding:
    """FAIL with the key that turns as training did; beside a finding of other states, whose fix comes first."""
    assert evidence.draft is not None
    way = tried.turning
    words = f"the draft was trained with {way.words}, worth {_words(tried.gain, True)} tokens a round here"
    if found.verdict is Verdict.FAIL:
        return replace(found, summary=f"{found.summary}; {words}")
    patch = set_key(evidence.draft.config, way.pointer, way.value)
    return replace(found, verdict=Verdict.FAIL, summary=f"{words}; {found.summary}", fix=ConfigFix(patch))


def _against_others(evidence: Evidence, cache: Any, drafter: Drafter, facts: dict[str, Any], words: str) -> Finding:
    """Replay the captured texts under what the engine feeds and under other wirings."""
    capture = all_states_capture(evidence)
    n = evidence.target.n if evidence.target is not None else None
    if capture is not None and n is not None and capture.slots <= n:
        capture = None  # the first layers only: neighbours and defaults are not all in it
    board = _shared(evidence, cache, drafter, capture) if capture is not None else None
    if capture is None or board is None:
        words = _served_only(evidence, cache, drafter, facts, words)
        facts["needs"] = ["a capture of all states of cached texts tells whether others suit the draft better"]
        return Finding(ID, Verdict.INFO, f"{words}; without a capture of all states no wiring is proven", facts)
    top = int(capture.slots) - 1
    named = name_slots(evidence, cache).states
    fed = _fed(evidence, drafter.shape.slots, top)
    believed = trained_states(evidence, cache).states

    def run(states: States, done: int, of: int) -> list[Hits]:
        evidence.progress(done, of, f"trying states {_csv(states)}")
        return board.run(lambda stretch: stretch.captured(states))

    base = run(named, 0, 1) if named else board.run(lambda stretch: stretch.cached(cache.slots))
    facts["paired_on"] = {"samples": len(board.stretches), "anchors": board.anchors}
    words += _worth_of_fix(evidence, board, base, fed, run, facts)
    starts = [states for states in (named, believed, *fed.values()) if states is not None and max(states) <= top]
    trials = search(board, base, starts, (n if n is not None else top, top), run, {named} if named else set())
    facts["tried"] = len(trials)
    facts["wirings"] = [_wiring("cached", named, accept_length(base, board.valid), None)] + [
        _wiring("tried", trial.states, accept_length(trial.hits, board.valid), trial.gain) for trial in trials[:12]
    ]
    if not trials:
        facts["needs"] = ["named states to start from (align.states)"]
        return Finding(ID, Verdict.UNKNOWN, f"{words}; the cached states have no name to start from", facts)
    best = trials[0]
    if best.gain.low > 0 and best.gain.mean >= LEAST_GAIN:
        text = (
            f"the draft was trained on other states: with {_csv(best.states)} it gets {_words(best.gain, True)} tokens "
            f"a round more than with {_csv(named) if named else 'the cached ones'}"
        )
        return _other_states(evidence, best.states, text, facts, words)
    if not all(trial.gain.high < BLIND for trial in trials):
        facts["needs"] = ["captures of more or longer cached texts"]
        blind = f"too few places in the captured texts ({board.anchors}) to tell wirings apart"
        return Finding(ID, Verdict.UNKNOWN, f"{words}; {blind}", facts)
    return Finding(ID, Verdict.PASS, f"{words}; none of {len(trials)} other wirings suits the draft better", facts)


def _other_states(evidence: Evidence, states: States, text: str, facts: dict[str, Any], words: str) -> Finding:
    """The finding that names other states, with their ids where one engine is judged."""
    facts["suggested_states"] = list(states)
    engines = judged_engines(evidence)
    ids = ids_feeding(evidence, engines[0], states) if len(engines) == 1 else None
    facts["suggested_ids"] = list(ids) if ids is not None else None
    if ids is None:
        return Finding(ID, Verdict.FAIL, f"{text}; {words}", facts)
    text += f"; {engines[0].label} feeds them for ids {list(ids)}"
    return Finding(ID, Verdict.FAIL, f"{text}; {words}", facts, config_fix(evidence, engines[0], states))


def _fed(evidence: Evidence, slots: int, top: int) -> dict[str, States]:
    """Per engine the states it feeds under the config, where they are known and captured."""
    out = {}
    for engine in judged_engines(evidence):
        try:
            states = fed_states(evidence, engine).states
        except CheckError:
            continue
        if states is not None and len(states) == slots and max(states) <= top:
            out[engine.label] = states
    return out


def _leave(evidence: Evidence, served: Estimate) -> None:
    """Leave what the served wiring should accept for `log.expected` to hold against the live log."""
    evidence.memo(REPLAYED, lambda: served)


def _worth_of_fix(
    evidence: Evidence,
    board: Bench,
    base: Sequence[Hits],
    fed: dict[str, States],
    run: Callable[[States, int, int], list[Hits]],
    facts: dict[str, Any],
) -> str:
    """What the engines' present wiring costs against the cached one on the same anchors; words where it costs."""
    facts["served"], words = [], ""
    for engine, states in fed.items():
        hits = run(states, 0, 1)
        worth, length = paired_gain(hits, base, board.valid), accept_length(hits, board.valid)
        if len(fed) == 1:
            _leave(evidence, length)
        measured = {"accept_length": _estimate(length), "fix_is_worth": _estimate(worth)}
        facts["served"].append({"engine": engine, "states": list(states), **measured})
        if worth.low > 0:
            words += f"; fed {_csv(states)} by {engine} it is {_words(length)}, {_words(worth)} tokens a round less"
    return words


def _served_only(evidence: Evidence, cache: Any, drafter: Drafter, facts: dict[str, Any], words: str) -> str:
    """With a capture of what is served alone: its worth against the cached states, by whatever names."""
    served = engine_capture(evidence)
    if served is None or served.slots != drafter.shape.slots:
        return words
    board = _shared(evidence, cache, drafter, served)
    if board is None:
        return words
    ours = board.run(lambda stretch: stretch.captured(range(served.slots)))
    base = board.run(lambda stretch: stretch.cached(cache.slots))
    worth, length = paired_gain(ours, base, board.valid), accept_length(ours, board.valid)
    _leave(evidence, length)
    facts["served"] = [{"states": None, "accept_length": _estimate(length), "fix_is_worth": _estimate(worth)}]
    if worth.low > 0:
        words += f"; on what the engine feeds it is {_words(length)}, {_words(worth)} tokens a round less"
    if worth.high < 0:
        words += f"; on what the engine feeds it is better, {_words(length)}: is this the cache it was trained on?"
    return words


def _shared(evidence: Evidence, cache: Any, drafter: Drafter, capture: Any) -> Bench | None:
    """The bench over the texts a capture shares with the cache; None when they give too few anchors."""
    texts = texts_of(evidence, cache, capture)
    if not texts:
        return None
    board = bench(evidence, cache, drafter, num_steps(evidence), texts)
    return board if board.anchors >= FEW else None


def _caveats(board: Bench) -> str:
    out = "" if board.masked else "; the cache has no loss mask, so prompts count too"
    return out + ("; hits are against the text, not against the target" if board.teacher == NEXT_TOKEN else "")


def _teller(evidence: Evidence, note: str) -> Callable[[int, int], None]:
    return lambda done, of: evidence.progress(done, of, note)


def _wiring(what: str, states: States | None, length: Estimate, gain: Estimate | None) -> dict[str, Any]:
    return {
        "what": what,
        "states": list(states) if states is not None else None,
        "accept_length": _estimate(length),
        "gain": _estimate(gain) if gain is not None else None,
    }


def _estimate(value: Estimate) -> dict[str, Any]:
    return {"mean": number(value.mean), "low": number(value.low), "high": number(value.high), "units": value.units}


def _csv(states: Sequence[int]) -> str:
    return ",".join(map(str, states))


def _words(value: Estimate, signed: bool = False) -> str:
    mean = f"{value.mean:+.2f}" if signed else f"{value.mean:.2f}"
    return f"{mean} [{value.low:.2f}, {value.high:.2f}]" if np.isfinite(value.low) else mean
