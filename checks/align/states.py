"""`align.states`: each cached slot against captured states of the same tokens, all of them, one slot at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from checks.align.running import RESTART, Running, captured_since, running
from checks.align.wording import place
from checks.capture_ranks import NO_FUSION, differences
from checks.catalog import check
from checks.evidence import Evidence, Need
from checks.finding import Finding, FlagsFix, Verdict
from checks.naming import NamedSlot, Naming, engine_capture, name_served, name_slots, number
from checks.nearest import ROUNDING, STRAY
from checks.trainers import trainers_with_default
from checks.wiring import config_fix, configured_ids, fed_states, judged_engines, offsets

ID = "align.states"


@check(ID, needs=(Need.CACHE, Need.CAPTURE))
def states(evidence: Evidence) -> Iterator[Finding]:
    """The cached states are compared with captured states of the same tokens, which says what each slot really holds
    whatever config, side files and people say. Where a slot holds another state than the engine feeds, stage the fix;
    where it holds no state of this target at all, no id can help and the cache or the target is another one.

    How it decides. Texts are paired by token ids. For every slot by itself (two right slots would hide a wrong third)
    the relative L2 distance to every captured state is taken per token, and its median over tokens. The slot is the
    state it is nearest to, unless it is farther than half the length of the vector from it, or leans to another one.
    The lean is how far along the way from the nearest state to a rival (the next nearest, and the layers beside it) the
    slot lies. Noise has no direction, so the lean of a right slot stays near 0 however coarse the precision: up to 0.4
    it is named; over at least 256 rows, from 0.15 on it is no state but something between two (the partial sum of one
    rank, say); both with three standard errors to spare, and UNKNOWN otherwise. The rule's error rate is measured, see
    docs/method.md: over 528 inputs of a kind, half of them of a target, texts and roundings it was not made for, down
    to 4 bits and texts of 16 tokens, right ones had no FAIL and no UNKNOWN, and faulty ones no PASS. Slots that are not
    the same numbers as their state are also moved by a token either way: rows that then fit much better are FAIL.

    The found states are held against what the engine feeds: measured, where an engine capture is there too; else by
    its rule for the configured ids; without an engine, against what the cache claims. A running server that was started
    with another config than the one on disk feeds what that one says: where it is not known, nor captured in this life
    of the server, what agrees does so after a restart, and is UNKNOWN. Different: FAIL, with how many
    layers late or early each slot is. No state fits, for another target, another basis or partial sums: FAIL, and no
    ids are suggested. A right wiring with a wrong claim, or with rows here and there that lie off the state of the
    others: WARN. A slot that lies beyond a capture of only the first layers: UNKNOWN.

    The right states at a distance beyond rounding (0.02) are said in an INFO of its own: an older checkpoint and a
    quantised target look alike from here, and neither is a fault of the wiring.

    Of a server of several ranks the capture holds one text in other ways too: by every rank, and at the head of more
    than 2048 tokens, up to which all-reduce may be fused. Apart by more than 0.05: FAIL, for the ranks feed parts of
    sums.

    With an engine capture alone there are no neighbours to compare with: a slot within 3 % of what the engine feeds
    in its place is the same, beyond 18 % it is another (FAIL), in between UNKNOWN until all states are captured.
    """
    yield from _by_rank(evidence)
    for cache in evidence.caches:
        naming = name_slots(evidence, cache)
        if not cache.slots:
            yield Finding(ID, Verdict.INFO, naming.note, place(evidence, cache))
        elif naming.foreign:
            yield Finding(ID, Verdict.FAIL, f"not a cache of this target: {naming.note}", place(evidence, cache))
        elif naming.how == "nothing":
            yield Finding(
                ID, Verdict.UNKNOWN, f"not compared: {naming.note}", {"needs": [naming.note], **place(evidence, cache)}
            )
        elif naming.how == "engine":
            yield _against_served(evidence, cache, naming)
        else:
            yield _against_all(evidence, cache, naming)
            yield from _kinship(evidence, cache, naming)


def _by_rank(evidence: Evidence) -> Iterator[Finding]:
    """A server of several ranks whose states depend on how a text is computed has no states to compare with."""
    capture = engine_capture(evidence)
    if capture is None:
        return
    found = [item for item in differences(capture) if item.apart]
    if found:
        worst = {item.how: number(max(item.slots)) for item in found}
        words = ", ".join(f"{distance} apart by {how}" for how, distance in worst.items())
        yield Finding(
            ID,
            Verdict.FAIL,
            f"the engine's ranks do not feed the draft the same states: {words}. They are parts of sums over the "
            f"ranks, as with fused all-reduce in a model that takes them before it; --{NO_FUSION} (SGLang 0.5.10 and "
            "later) turns that off",
            {"capture": str(capture.path), "ranks": capture.ranks, "apart": worst},
            FlagsFix(set={NO_FUSION: True}),
        )


@dataclass(frozen=True)
class _Expected:
    """The states to hold the slots against, and who says so: the engine (measured, or by its rule), or a claim."""

    states: tuple[int, ...] | None
    source: str
    who: str
    engine: Any = None
    note: str = ""
    served: dict[str, Any] = field(default_factory=dict)
    restart: Running | None = None
    """Where the states are those after a restart: what the running server has instead."""


_WEIGHT = [Verdict.PASS, Verdict.WARN, Verdict.UNKNOWN, Verdict.FAIL]


def _against_all(evidence: Evidence, cache: Any, naming: Naming) -> Finding:
    expected = _expected(evidence, cache)
    facts = _facts(evidence, cache, naming)
    facts.update(expected=list(expected.states) if expected.states is not None else None, expected_from=expected.source)
    facts.update(expected.served)
    troubles = list(_troubles(naming))
    found = naming.states
    fix = None
    verdict, words = Verdict.PASS, f"the slots hold {_labels(naming)}"
    if troubles:
        verdict = max((trouble for trouble, _ in troubles), key=_WEIGHT.index)
        words += "; " + "; ".join(text for _, text in troubles)
        if verdict is Verdict.UNKNOWN:
            facts["needs"] = ["a capture of all states from the same weights and the same texts"]
    elif found is not None and expected.states is None:
        verdict = Verdict.INFO
        if list(found) != sorted(found):
            verdict, words = Verdict.WARN, f"{words}, out of order: every engine feeds ascending states"
    if found is not None and expected.states is not None:
        facts["offsets"] = offsets(found, expected.states)
        if found != expected.states:
            verdict = Verdict.FAIL
            words += f"; {expected.who} {_labels_of(expected.states)} ({_offset_words(found, expected.states)})"
            if sorted(found) == sorted(expected.states):
                facts["permutation"] = [expected.states.index(k) for k in found]
                words += ": the same states in another order, which no ids change"
            fix = config_fix(evidence, expected.engine, found) if expected.engine is not None else None
        elif not troubles:
            words += f", as {expected.who}"
    if found is not None and evidence.target is not None:
        facts["default_of"] = [item.label for item in trainers_with_default(found, evidence.target.n)]
    verdict, words = _with_claim(cache, found, expected, verdict, words, facts)
    if expected.restart is not None:
        words = f"after a restart: {words}; {expected.restart.words}"
        if verdict is Verdict.PASS:
            verdict, facts["needs"] = Verdict.UNKNOWN, [RESTART]
    if expected.note:
        words += f"; {expected.note}"
    return Finding(ID, verdict, words, facts, fix)


def _with_claim(
    cache: Any, found: tuple[int, ...] | None, expected: _Expected, verdict: Verdict, words: str, facts: dict[str, Any]
) -> tuple[Verdict, str]:
    """A claim that the numbers refute is said whatever else is found."""
    claim = cache.claim
    if claim is None:
        return verdict, words
    facts["claimed"], facts["claimed_by"] = list(claim.states), claim.by
    if found is None or tuple(claim.states) == found or expected.source == "claim":
        return verdict, words
    words += f"; {claim.by} claims {','.join(map(str, claim.states))}, which the numbers refute"
    return (Verdict.WARN if verdict in (Verdict.PASS, Verdict.INFO) else verdict), words


def _expected(evidence: Evidence, cache: Any) -> _Expected:
    """What the slots are held against, the strongest knowledge first."""
    engines = judged_engines(evidence) if evidence.draft is not None else ()
    engine = engines[0] if len(engines) == 1 else None
    by_rule: tuple[int, ...] | None = None
    note = ""
    if engine is not None and evidence.draft is not None and evidence.draft.config_error is None:
        fed = fed_states(evidence, engine)
        by_rule = fed.states if fed.states and len(fed.states) == cache.slots else None
    now = running(evidence, engine) if by_rule is not None else None
    if now is not None:
        facts: dict[str, Any] = {"running": now.as_json()}
        if now.states is not None and len(now.states) == cache.slots:
            source = "engine capture" if now.measured else "config at the start"
            note = f"after a restart it would feed {_labels_of(by_rule or ())}: {now.words}"
            return _Expected(now.states, source, "the running server feeds", engine, note, facts)
        return _Expected(by_rule, "rule", "the engine feeds", engine, "", facts, now)
    capture = engine_capture(evidence)
    if capture is not None:
        served = name_served(evidence)
        facts = {"served": [slot.as_json() for slot in served.slots]}
        if stale := _stale(evidence, capture, engine):
            note = stale
        elif served.states is not None and len(served.states) == cache.slots:
            if by_rule is not None and by_rule != served.states:
                note = (
                    f"by its rule the engine would feed {_labels_of(by_rule)}: the config was changed after the server "
                    "started, or the build is patched; restart it and check again"
                )
            return _Expected(served.states, "engine capture", "the engine feeds", engine, note, facts)
        else:
            return _Expected(by_rule, "rule" if by_rule else "", "the engine feeds", engine, note, facts)
    if by_rule is not None:
        return _Expected(by_rule, "rule", "the engine feeds", engine, note)
    if cache.claim is not None and engine is None:
        return _Expected(tuple(cache.claim.states), "claim", f"{cache.claim.by} says", None, note)
    return _Expected(None, "", "", engine, note)


def _stale(evidence: Evidence, capture: Any, engine: Any) -> str:
    """Words when the capture was made under other ids than the config has now; empty when not.

    One of this life of a server that has another config than the one on disk is of what is served.
    """
    if (
        captured_since(evidence, capture)
        or capture.ids is None
        or engine is None
        or evidence.draft is None
        or evidence.draft.config_error is not None
    ):
        return ""
    now = configured_ids(evidence, engine)
    if list(capture.ids) == now:
        return ""
    return f"the capture was made under ids {list(capture.ids)}, the config now says {now}: restart and capture again"


def _against_served(evidence: Evidence, cache: Any, naming: Naming) -> Finding:
    facts = _facts(evidence, cache, naming)
    capture = engine_capture(evidence)
    engines = judged_engines(evidence)
    if stale := _stale(evidence, capture, engines[0] if len(engines) == 1 else None):
        return Finding(ID, Verdict.UNKNOWN, stale, {**facts, "needs": [stale]})
    if capture is not None and capture.slots != cache.slots:
        counts = f"the engine feeds {capture.slots} slots, the cache holds {cache.slots}"
        return Finding(ID, Verdict.FAIL, counts, facts)
    facts["expected"] = [f"served {slot}" for slot in range(cache.slots)]
    words, verdicts = [], []
    for slot in naming.slots:
        verdict, text = _served_slot(slot)
        verdicts.append(verdict)
        words.append(text)
    if naming.mixed:
        verdicts.append(Verdict.FAIL)
        words.append("samples differ: the cache is a mixture")
    if naming.shifted is not None:
        words.append(_shift_text(naming.shifted))
    if all(verdict is Verdict.PASS for verdict in verdicts):
        return Finding(ID, Verdict.PASS, "every cached slot has the numbers the engine feeds in its place", facts)
    verdict = Verdict.FAIL if Verdict.FAIL in verdicts else Verdict.UNKNOWN
    decides = "a capture of all states, or a reference capture"
    facts["needs"] = [decides]
    bad = [text for text, each in zip(words, verdicts) if each is not Verdict.PASS] + words[len(verdicts) :]
    return Finding(ID, verdict, "; ".join(bad) + f"; {decides}, says which states they are", facts)


def _served_slot(slot: NamedSlot) -> tuple[Verdict, str]:
    own = f"served {slot.slot}"
    if slot.decided and slot.label == own:
        return Verdict.PASS, ""
    if slot.decided:
        return Verdict.FAIL, f"slot {slot.slot} of the cache is what the engine feeds in slot {slot.label[7:]}"
    if slot.kind == "empty":
        return Verdict.FAIL, f"slot {slot.slot} is empty or not finite"
    apart = f"{number(slot.best)} from the nearest served slot"
    if slot.kind == "between":
        return Verdict.UNKNOWN, f"slot {slot.slot} is {apart}: a neighbouring state, or other weights"
    return Verdict.FAIL, f"slot {slot.slot} is none of what the engine feeds ({apart})"


def _troubles(naming: Naming) -> Iterator[tuple[Verdict, str]]:
    for slot in naming.slots:
        nearest = f"nearest is {slot.label} at {number(slot.best)}"
        if slot.kind == "empty":
            yield Verdict.FAIL, f"slot {slot.slot} is empty or not finite"
        elif slot.decided and slot.k is None:
            yield Verdict.FAIL, f"slot {slot.slot} is the final norm's output, and engines feed states before any norm"
        elif slot.kind == "between":
            rival = f"{slot.runner_up} at {number(slot.second)}"
            yield Verdict.UNKNOWN, f"slot {slot.slot} is not decided ({nearest}, {rival})"
        elif slot.kind == "none" and naming.partial:
            yield Verdict.UNKNOWN, f"slot {slot.slot} fits no captured state ({nearest}); it may be a higher one"
        elif slot.kind == "split":
            yield (
                Verdict.FAIL,
                f"slot {slot.slot} lies {number(slot.lean)} of the way from {slot.label} to another state: no offset "
                "fits, it may be the partial sum of one rank, or a state before something was added",
            )
        elif slot.kind == "scaled":
            yield Verdict.FAIL, f"slot {slot.slot} points along {slot.label} but has another scale"
        elif slot.kind == "none" and naming.shifted is None:
            yield (
                Verdict.FAIL,
                f"slot {slot.slot} fits no state ({nearest}), so no offset fits: another target, basis or text",
            )
        elif slot.strays > STRAY * slot.looked:
            yield (
                Verdict.WARN,
                f"{slot.strays} of {slot.looked} rows of slot {slot.slot} lie off its {slot.label}: damage in places, "
                "as where chunks of a prefill meet",
            )
    if naming.shifted is not None:
        yield Verdict.FAIL, _shift_text(naming.shifted)
    for slot_index in naming.mixed:
        yield Verdict.FAIL, f"slot {slot_index} holds different states in different samples: the cache is a mixture"


def _shift_text(shift: int) -> str:
    return f"the cached rows belong to the token {'after' if shift < 0 else 'before'} their own"


def _facts(evidence: Evidence, cache: Any, naming: Naming) -> dict[str, Any]:
    return {
        **naming.as_json(),
        "best": [slot.label for slot in naming.slots],
        "runner_up": [slot.runner_up for slot in naming.slots],
        "margin": [number(slot.margin) for slot in naming.slots],
        "k": [slot.k if slot.decided else None for slot in naming.slots],
        **({"unreadable": list(naming.unreadable)} if naming.unreadable else {}),
        **place(evidence, cache),
    }


def _labels(naming: Naming) -> str:
    return ", ".join(slot.label if slot.decided else "?" for slot in naming.slots)


def _labels_of(ks: Sequence[int]) -> str:
    return ", ".join(f"R_{k}" for k in ks)


def _offset_words(found: Sequence[int], expected: Sequence[int]) -> str:
    if len(found) != len(expected):
        return f"{len(found)} slots cached, {len(expected)} fed"
    return ", ".join(f"slot {i} {word}" for i, word in enumerate(offsets(found, expected)) if word != "right")


def _kinship(evidence: Evidence, cache: Any, naming: Naming) -> Iterator[Finding]:
    """A right state of other numbers is its own answer, and no fault of the wiring."""
    near = [slot for slot in naming.slots if slot.decided and slot.best > ROUNDING]
    if not near or naming.states is None:
        return
    quantised = _quantised(evidence)
    why = (
        f"as {quantised} gives" if quantised else "an older or other checkpoint, or a quantised or otherwise run target"
    )
    apart = ", ".join(f"slot {slot.slot} {number(slot.best)}" for slot in near)
    words = f"the same layers, from other weights or another precision: {apart} apart, rounding is 0.01; {why}"
    facts = {
        "distances": [number(slot.best) for slot in naming.slots],
        "leans": [number(slot.lean) for slot in naming.slots],
        "quantised": quantised or None,
        **place(evidence, cache),
    }
    yield Finding(ID, Verdict.INFO, words, facts)


def _quantised(evidence: Evidence) -> str:
    """What says that the target runs quantised; empty when nothing does."""
    args = " ".join(evidence.request.args).replace("=", " ").split()
    for flag, value in zip(args, args[1:]):
        if flag == "--quantization":
            return f"{flag} {value}"
    target = evidence.target
    config = target.config.get("quantization_config") if target is not None else None
    return f"a target of {config.get('quant_method', 'quantised')} weights" if isinstance(config, dict) else ""
