"""The speculative flags: the algorithm for this draft, and the numbers in effect."""

from __future__ import annotations

from typing import Any

from checks.cfg.case import layout_for
from checks.cfg.layouts import EAGLE_ONE, names_of
from checks.draft_shapes import draft_vocab
from checks.engines.versions import Span, span
from checks.finding import Finding, FlagsFix, Verdict
from checks.flags.build import ALGORITHMS
from checks.flags.case import EAGLES, EVERY, Case, flags_check, other_family, slips_of
from checks.flags.method import method_vs_arch
from checks.jsonfile import whole
from checks.launch import PLANNED
from checks.rules import releases

ADJUSTS = span("0.4.6")
_TRIPLE = ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")
# Attention backends that take a tree over pages of several tokens.
_TREE_BACKENDS: tuple[tuple[Span, tuple[str, ...]], ...] = (
    (span("0.5.2", "0.5.5"), ("flashinfer",)),
    (span("0.5.6", "0.5.12"), ("flashinfer", "fa3")),
    (span("0.5.13"), ("flashinfer", "fa3", "triton")),
)
_OLDER = ("eagle", "nextn", "mtp")


@flags_check("flags.algo_vs_arch", every=True)
def algo_vs_arch(case: Case) -> Finding | None:
    """--speculative-algorithm is the one this draft is made for.

    An EAGLE-3 draft under EAGLE (or NEXTN, its other name) starts without an error: no states are captured, the input
    has the width of one, and `fc` is passed over. It then proposes noise: accept length exactly 1.00 for ever, slower
    than no speculation.

    vLLM names it in --speculative-config: `method` builds the class, so `eagle` on an EAGLE-3 draft stops the start, or
    feeds one state where several are read. Without a method it guesses from the path's name.

    FAIL: an EAGLE-3 draft (by its class, its map or its `hidden_norm`) and another algorithm or method; EAGLE3 and a
    draft of EAGLE-1/2 or of a model's own prediction layers; EAGLE3, EAGLE or NEXTN and a draft of another family
    (DFlash, DSpark, Medusa); EAGLE3 without a draft path in a whole command line, when the target itself is loaded as
    its draft and the start stops. WARN: a draft path and no algorithm, so that nothing is speculated. UNKNOWN: no
    algorithm, and a file of flags (--config). INFO: no algorithm, and no draft path either; EAGLE3, and no draft to
    look at.

    What to do: stage the fix, EAGLE3; name the draft.
    """
    if not case.serving.is_sglang:
        return method_vs_arch(case)
    algorithm, by, draft = case.algorithm, case.eagle3, case.draft
    names = names_of(draft.config) if draft is not None else []
    facts: dict[str, Any] = {"algorithm": algorithm or None, "architectures": names, "eagle3_by": by or None}
    fix = FlagsFix(set={"speculative-algorithm": "EAGLE3"}) if by else None
    if not algorithm and case.launch.has("config"):
        held = "the algorithm may stand in the file that --config names, which is not read here"
        return case.say(Verdict.UNKNOWN, held, {**facts, "needs": ["the running server, or its flags spelt out"]})
    if not algorithm:
        if case.launch.facts.draft:
            said = "a draft is given and no --speculative-algorithm: the server runs without it"
            return case.rule(Verdict.WARN, said, EVERY, facts, fix)
        return case.say(Verdict.INFO, "no --speculative-algorithm: the server runs without a draft", facts)
    if algorithm == "EAGLE3" and not _names_draft(case):
        given = FlagsFix(set={"speculative-draft-model-path": str(draft.path)}) if draft is not None else None
        said = (
            "EAGLE3 without --speculative-draft-model-path: the target is loaded as its own draft, and the start stops"
        )
        return case.rule(Verdict.FAIL, said, EVERY, facts, given)
    if by and algorithm != "EAGLE3":
        effect = (
            "it starts, captures no states, passes fc over and accepts nothing (1.00)"
            if algorithm in EAGLES
            else "that algorithm does not run it"
        )
        said = f"an EAGLE-3 draft ({by}) under --speculative-algorithm {algorithm}: {effect}; use EAGLE3"
        return case.rule(Verdict.FAIL, said, EVERY, facts, fix)
    older = next((name for name in names if name.lower().endswith(_OLDER)), "")
    if draft is not None and layout_for(draft) is EAGLE_ONE:
        older = older or f"{next(iter(names), 'it')}, by the width of its fc,"
    if algorithm == "EAGLE3" and older and not by:
        said = f"{older} is no EAGLE-3 draft: EAGLE3 feeds it several states, and it reads one"
        return case.rule(Verdict.FAIL, said, EVERY, facts)
    if (other := other_family(case)) is not None and algorithm in EAGLES:
        name, right = other
        said = f"a draft of {name} under --speculative-algorithm {algorithm}: another class is built, and stops or "
        said += "proposes noise"
        # A config of speculators is read by no release, whatever the algorithm.
        fits = name.startswith("DFlash") and right in ALGORITHMS
        use = f"; use {right} ({releases(ALGORITHMS[right])})" if fits else ""
        mend = FlagsFix(set={"speculative-algorithm": right})
        known = fits and case.serving.within(ALGORITHMS[right])
        return case.rule(Verdict.FAIL, said + use, EVERY, facts, mend if known else None)
    if algorithm == "EAGLE3" and not by:
        return case.say(Verdict.INFO, "EAGLE3, and nothing says which kind the draft is", facts)
    return case.say(Verdict.PASS, f"{algorithm} for {by or 'this draft'}", facts)


def _names_draft(case: Case) -> bool:
    """Whether the server is told its draft, or may be: what is not seen of its command line is not missing from it.

    Flags that are only planned go with the draft that is given beside them; without the target's path they are a part
    of a command line.
    """
    planned = case.launch.source == PLANNED and (case.draft is not None or not case.launch.has("model-path"))
    return bool(case.launch.facts.draft) or planned or case.launch.has("config")


@flags_check("flags.triple")
def triple(case: Case) -> Finding | None:
    """--speculative-num-steps, -eagle-topk and -num-draft-tokens: all three, or none.

    With the steps missing the server stops with a bare AssertionError; with topk missing, with a TypeError; without
    draft tokens and topk above 1 they stay undefined. With none it chooses by the target's class and its release, and
    the choice changed at 0.5.8 (5/4/8 to 3/1/4 for most), so the same command line changes with an upgrade.

    FAIL: one or two of them. INFO: none, with the numbers that will be taken. PASS: three, or adaptive steps (0.5.11).

    What to do: give all three; the fix fills in the missing ones for a chain (topk 1).
    """
    facts_ = case.launch.facts
    given = {"steps": facts_.steps, "topk": facts_.topk, "draft_tokens": facts_.draft_tokens}
    told = [name for name, value in given.items() if value is not None]
    facts: dict[str, Any] = {**given}
    if case.algorithm not in EAGLES:
        return case.say(Verdict.PASS, "no speculation of this family", facts)
    if len(told) == 3:
        return case.say(
            Verdict.PASS, f"steps {facts_.steps}, topk {facts_.topk}, draft tokens {facts_.draft_tokens}", facts
        )
    if not told:
        chosen = case.effective
        if chosen is None:
            return case.say(Verdict.INFO, "none is given: the server chooses", facts)
        facts["chosen"] = [chosen.steps, chosen.topk, chosen.draft_tokens]
        said = f"none is given: {case.serving.words} takes {chosen.steps}/{chosen.topk}/{chosen.draft_tokens}"
        newest = "" if case.serving.version else " (its newest release; up to 0.5.7 other numbers for most targets)"
        return case.say(Verdict.INFO, f"{said}{newest}", facts)
    if case.launch.has("speculative-adaptive") and facts_.steps is None:
        return case.say(Verdict.PASS, "adaptive steps: the server chooses them", facts)
    slips = {slip: name for slip, name in slips_of(case.launch).items() if name in _TRIPLE}
    meant = {name: case.launch.number(slip) for slip, name in slips.items()}
    steps = facts_.steps or meant.get(_TRIPLE[0]) or max((facts_.draft_tokens or 4) - 1, 1)
    topk = facts_.topk or meant.get(_TRIPLE[1]) or 1
    given_tokens = facts_.draft_tokens or meant.get(_TRIPLE[2])
    tokens = given_tokens if given_tokens is not None and topk > 1 else steps + 1
    fix = FlagsFix(
        set={
            "speculative-num-steps": steps,
            "speculative-eagle-topk": topk,
            "speculative-num-draft-tokens": tokens,
        },
        unset=tuple(slips),
    )
    missing = ", ".join(name for name in given if name not in told)
    slipped = "".join(f"; --{slip:.60} is a slip for --{name}" for slip, name in slips.items())
    said = f"{', '.join(told)} given and {missing} not: all three or none{slipped}"
    return case.rule(Verdict.FAIL, said, EVERY, facts, fix)


@flags_check("flags.topk1_tokens")
def topk1_tokens(case: Case) -> Finding | None:
    """With topk 1 the draft tokens are steps + 1.

    A chain of `steps` proposals and the root: 3/1/4 wastes nothing, its fourth slot is the root. Any other number is
    changed to steps + 1 with one line in the log, so 4/1/24 runs as 4/1/5 and 2/1/2 as 2/1/3.

    WARN: another number, with the one in effect. PASS: steps + 1, or topk above 1.

    What to do: stage the fix, so that the command line says what runs.
    """
    facts_, now = case.launch.facts, case.effective
    facts: dict[str, Any] = {"steps": facts_.steps, "topk": facts_.topk, "draft_tokens": facts_.draft_tokens}
    if case.algorithm not in EAGLES or facts_.topk != 1 or now is None or facts_.draft_tokens is None:
        return case.say(Verdict.PASS, "topk is not 1, or the numbers are not given", facts)
    facts["effective"] = now.draft_tokens
    if not now.adjusted:
        return case.say(
            Verdict.PASS, f"{now.steps} steps, topk 1, {now.draft_tokens} draft tokens: as it has to be", facts
        )
    said = f"{facts_.draft_tokens} draft tokens with {now.steps} steps and topk 1 become {now.draft_tokens} (steps + 1)"
    fix = FlagsFix(set={"speculative-num-draft-tokens": now.draft_tokens})
    # Older releases keep the number instead, which wastes or lacks slots: a mismatch is worth the same there.
    by = f"{said} in {releases(ADJUSTS)}; older ones keep {facts_.draft_tokens}"
    return case.rule(Verdict.WARN, by, EVERY, facts, fix)


@flags_check("flags.effective_k")
def effective_k(case: Case) -> Finding | None:
    """How many tokens are really drafted a step, to compare with other engines' K.

    SGLang counts the root among the draft tokens: it drafts one fewer. K=3 elsewhere is 3/1/4 here. A report of a draft
    that is "worse on SGLang" may compare 2/1/2, one drafted token as asked, with K=2.

    WARN: topk 1 and fewer draft tokens than steps + 1, where less is asked for than the steps suggest; more draft
    tokens than the tree of steps and topk has; nothing is drafted at all. INFO: the number.

    What to do: compare at the same number of drafted tokens.
    """
    facts_, now = case.launch.facts, case.effective
    if case.algorithm not in EAGLES:
        return case.say(Verdict.PASS, "no speculation of this family")
    if now is None:
        return case.say(Verdict.INFO, "the numbers are incomplete, see flags.triple")
    asked = (facts_.draft_tokens or now.draft_tokens) - 1
    drafted = now.draft_tokens - 1
    facts = {"steps": now.steps, "topk": now.topk, "asked": asked, "drafted": drafted, "ceiling": now.ceiling}
    if drafted < 1 or now.steps < 1:
        said = f"{now.steps} steps and {now.draft_tokens} draft tokens draft nothing: every step emits one token"
        return case.rule(Verdict.WARN, said, EVERY, facts)
    if now.topk == 1 and asked < now.steps:
        said = (
            f"{facts_.draft_tokens} draft tokens ask for {asked} drafted and {now.steps} steps for {now.steps}; "
            f"{drafted} are drafted, which compares with K={drafted} of other engines"
        )
        return case.rule(Verdict.WARN, said, EVERY, facts)
    tree = now.topk + max(now.steps - 1, 0) * now.topk**2
    if drafted > tree:
        said = f"{drafted} drafted tokens are asked for and {now.steps} steps of topk {now.topk} make a tree of {tree}"
        return case.rule(Verdict.WARN, said, EVERY, facts)
    return case.say(Verdict.INFO, f"{drafted} drafted a step; the accept length is at most {now.ceiling}", facts)


@flags_check("flags.accept_threshold")
def accept_threshold(case: Case) -> Finding | None:
    """Draft tokens are accepted as often as the target would choose them, and no oftener.

    --speculative-accept-threshold-single takes a token above a probability, --speculative-accept-threshold-acc raises
    every probability of acceptance; at 1, the default, neither does anything. Below 1 sampled output is no longer the
    target's, and the accept length is higher than that of the same draft elsewhere.

    WARN: one of them below 1. PASS: both at 1, or not given.

    What to do: stage the fix, which takes them out, before acceptance is compared.
    """
    names = ("speculative-accept-threshold-single", "speculative-accept-threshold-acc")
    values = {name: case.launch.decimal(name) for name in names}
    low = [name for name, value in values.items() if value is not None and value < 1]
    facts: dict[str, Any] = {**values}
    if case.algorithm not in EAGLES or not low:
        return case.say(Verdict.PASS, "tokens are accepted as the target chooses them", facts)
    said = " and ".join(f"--{name} {values[name]:g}" for name in low)
    said += " accepts tokens the target would not choose: neither sampled output nor accept length is the exact one"
    return case.rule(Verdict.WARN, said, EVERY, facts, FlagsFix(unset=tuple(low)))


@flags_check("flags.topk_page_size")
def topk_page_size(case: Case) -> Finding | None:
    """A tree (topk above 1) and pages of more than one token need an attention backend that can do both.

    FAIL: trtllm_mha with topk above 1; a page size above 1 and topk above 1 with a named backend that the release
    refuses (0.5.2–0.5.4 flashinfer only; 0.5.6–0.5.12 also fa3; from 0.5.13 on also triton). UNKNOWN: no backend named,
    or no release. PASS: topk 1, or pages of one token.

    What to do: topk 1, or --page-size 1, or one of these backends.
    """
    now, page = case.effective, case.launch.number("page-size")
    backend = case.launch.text("attention-backend") or case.launch.text("decode-attention-backend")
    facts = {"topk": now.topk if now else None, "page_size": page, "attention_backend": backend or None}
    if case.algorithm not in EAGLES or now is None or now.topk <= 1:
        return case.say(Verdict.PASS, "topk is 1, or there is no tree", facts)
    if backend == "trtllm_mha":
        return case.rule(Verdict.FAIL, f"trtllm_mha takes topk 1 only, and this is {now.topk}", EVERY, facts)
    if page is None or page <= 1:
        return case.say(Verdict.PASS, "pages of one token, or the default", facts)
    if backend and all(backend not in taken for _, taken in _TREE_BACKENDS):
        said = f"topk {now.topk} with pages of {page} is refused under {backend}"
        return case.rule(Verdict.FAIL, said, span("0.5.2"), facts)
    for versions, taken in _TREE_BACKENDS:
        if case.serving.within(versions):
            if backend in taken:
                return case.say(Verdict.PASS, f"{backend} takes topk {now.topk} with pages of {page}", facts)
            if backend:
                said = f"topk {now.topk} with pages of {page} needs {' or '.join(taken)}, not {backend}"
                return case.rule(Verdict.FAIL, said, versions, facts)
    needs = ["the attention backend (--attention-backend) and the engine's release"]
    said = f"topk {now.topk} with pages of {page} is refused under most attention backends"
    return case.say(Verdict.UNKNOWN, f"{said}: which one is used is not known", {**facts, "needs": needs})


@flags_check("flags.rejection_sampling")
def rejection_sampling(case: Case) -> Finding | None:
    """--speculative-use-rejection-sampling (and block verification, which turns it on) fits the draft.

    It compares whole distributions, so the draft needs the target's whole vocabulary, topk 1 and thresholds of 1; the
    server stops with a ValueError otherwise. A draft with a reduced vocabulary cannot use it.

    FAIL: given, and the draft's vocabulary is reduced or topk is above 1. PASS: otherwise.

    What to do: stage the fix, which takes the flag out.
    """
    names = ("speculative-use-rejection-sampling", "speculative-use-block-verification")
    on = [name for name in names if case.launch.has(name)]
    config = case.draft.flat if case.draft is not None else {}
    small, full, now = draft_vocab(config), whole(config.get("vocab_size")), case.effective
    facts = {"on": on, "draft_vocab_size": small, "vocab_size": full, "topk": now.topk if now else None}
    if not on:
        return case.say(Verdict.PASS, "not used", facts)
    versions = span("0.5.22") if on == ["speculative-use-block-verification"] else span("0.5.14")
    fix = FlagsFix(unset=tuple(on))
    if small is not None and full is not None and small < full:
        said = f"--{on[0]} with {small} of {full} tokens in the draft: the server stops"
        return case.rule(Verdict.FAIL, said, versions, facts, fix)
    if now is not None and now.topk > 1:
        return case.rule(Verdict.FAIL, f"--{on[0]} with topk {now.topk}: the server stops", versions, facts, fix)
    return case.say(Verdict.PASS, f"--{on[0]} fits this draft", facts)
