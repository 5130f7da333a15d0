"""The config's sizes against each other, the tensors and the target: head_dim, tying, hidden size, vocabulary."""

from __future__ import annotations

from typing import Any

from checks.cfg.case import Case, cfg_check
from checks.draft_shapes import draft_vocab
from checks.engines.versions import span
from checks.finding import ConfigFix, Finding, Verdict
from checks.jsonfile import whole
from checks.patch import remove_key, set_key
from checks.rules import releases

# transformers ties the embedding and the head of these when the config does not say.
_TIED_BY_DEFAULT = ("gemma",)

SHARES_HEAD = span("0.5.2")
"""Releases of SGLang that take the target's head where draft_vocab_size is null; before, null stops the start."""

OTHER_WIDTH = span("0.9.1")
"""Releases of vLLM that leave a draft of another width than the target's its own embedding."""

# Vocabularies of one tokenizer differ by padding, which is well below this share.
_PADDING = 0.02


@cfg_check("cfg.head_dim")
def head_dim(case: Case) -> Finding | None:
    """The width of an attention head is what the tensors have.

    Without `head_dim` engines divide: hidden_size / num_attention_heads. Real models have other heads (Qwen3-4B: hidden
    2560, 32 heads of 128; gpt-oss: hidden 2880, 64 heads of 64), so a missing key gives a `q_proj` of another shape
    than the stored one. Heads times head_dim need not be hidden_size.

    FAIL: rows of `q_proj` are not heads times head_dim (or times the quotient, when it is missing). WARN: no head_dim,
    no weights to tell, and hidden_size is no multiple of the heads. UNKNOWN: the config gives too few numbers.

    What to do: stage the fix, which is the number the tensors show.
    """
    hidden, heads, given = (case.number(key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
    query = case.tensors.get("layers.0.self_attn.q_proj.weight")
    rows = query.rows if query is not None and len(query.shape) == 2 else None
    facts: dict[str, Any] = {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "head_dim": case.config.get("head_dim"),
        "q_proj_rows": rows,
    }
    if case.config.get("head_dim") is not None and given is None:
        return case.say(Verdict.FAIL, "head_dim is not a positive whole number", facts)
    if heads is None or (given is None and hidden is None):
        return case.unknown("hidden_size and num_attention_heads in the config", facts)
    used = given or (hidden or 0) // heads
    facts["used"] = used
    by = "head_dim" if given else f"head_dim is missing, and {hidden} / {heads} = {(hidden or 0) / heads:g}"
    if rows is not None and rows != heads * used:
        fits = rows % heads == 0
        fix = ConfigFix(set_key(case.draft.config, case.pointer("head_dim"), rows // heads)) if fits else None
        way = f": {'set' if given else 'add'} head_dim: {rows // heads}" if fits else ""
        said = f"q_proj has {rows} rows and {heads} heads of {used} make {heads * used} ({by}){way}"
        return case.say(Verdict.FAIL, said, facts, fix)
    if given is None and hidden is not None and hidden % heads:
        return case.say(Verdict.WARN, f"{by}: no whole number; give head_dim", facts)
    return case.say(Verdict.PASS, f"{heads} heads of {used}" + ("" if rows is None else ", as q_proj has them"), facts)


@cfg_check("cfg.tie", by_engine=True)
def tie(case: Case) -> Finding | None:
    """The output head is not tied to the embedding while the draft's vocabulary is smaller than the target's.

    Tying makes the embedding the head, with one row for every token of the target. A reduced vocabulary has its own,
    smaller head, which would be dropped: wrong shapes, or proposals in ids the map does not know. The flag usually is
    the target's, copied along. vLLM gives an EAGLE-3 draft a head of its own whatever the flag says.

    FAIL: `tie_word_embeddings` is true (or true by the model type's default) and the vocabulary is reduced, on SGLang.
    INFO: true with the whole vocabulary, which works; true, on an engine that passes over it.

    What to do: stage the fix, false.
    """
    given = case.config.get("tie_word_embeddings")
    by_default = given is None and str(case.config.get("model_type", "")).startswith(_TIED_BY_DEFAULT)
    tied = by_default or bool(given)
    small, full = draft_vocab(case.config), case.number("vocab_size")
    facts = {"tie_word_embeddings": given, "draft_vocab_size": small, "vocab_size": full}
    if not tied:
        return case.say(Verdict.PASS, "the head is the draft's own", facts)
    by = "true by the default of its model_type" if by_default else "true"
    if small is None or full is None or small >= full:
        return case.say(Verdict.INFO, f"tie_word_embeddings is {by}: the embedding is the head", facts)
    if not case.serving.is_sglang:
        return case.say(Verdict.INFO, f"tie_word_embeddings is {by}: {case.serving.words} passes over it", facts)
    # Without a head of its own among the weights, untying would only move the fault to ckpt.own_head.
    headless = bool(case.tensors) and "lm_head.weight" not in case.tensors
    fix = None if headless else ConfigFix(set_key(case.draft.config, case.pointer("tie_word_embeddings"), False))
    said = f"tie_word_embeddings is {by}, and the head has {small} of {full} tokens: it has to be false"
    return case.say(Verdict.FAIL, said, facts, fix)


@cfg_check("cfg.hidden_vs_target", by_engine=True)
def hidden_vs_target(case: Case) -> Finding | None:
    """The draft reads states of the target's width.

    `fc` takes some states of the target side by side. A draft as wide as its target needs no more; a narrower or wider
    one has to say `target_hidden_size`, and `fc` has to have that many columns a state.

    PASS: equal, or `target_hidden_size` is the target's width and `fc` fits. FAIL: otherwise, and for another width
    than the target's on vLLM up to 0.9.0, which takes the target's embedding all the same. WARN: `target_hidden_size`
    is null, on which engines stop (they ask only whether the key is there); in the layout of speculators, which vLLM
    translates, null is how a draft of the target's width is written.

    What to do: a draft of another target cannot be served; where `fc` fits and only the key is missing, stage the fix.
    """
    target, hidden = case.target, case.number("hidden_size")
    said_width = case.number("target_hidden_size")
    given = case.config.get("target_hidden_size")
    fc = case.tensors.get("fc.weight")
    columns = fc.shape[1] if fc is not None and len(fc.shape) == 2 else None
    facts: dict[str, Any] = {
        "hidden_size": hidden,
        "target_hidden_size": given,
        "target": target.hidden if target is not None else None,
        "fc_columns": columns,
    }
    usual = given is None and case.draft.is_speculators and not case.serving.is_sglang
    if "target_hidden_size" in case.config and said_width is None and not usual:
        fix = ConfigFix(remove_key(case.draft.config, case.pointer("target_hidden_size"))) if given is None else None
        what = "null" if given is None else "no positive whole number"
        verdict = Verdict.WARN if given is None else Verdict.FAIL
        said = f"target_hidden_size is {what}: {case.serving.words} takes it for the width of a state"
        return case.say(verdict, said, facts, fix)
    if target is None:
        return case.unknown("the target's config.json (--target DIR)", facts)
    if hidden is None:
        return case.unknown("hidden_size in the draft's config", facts)
    width = said_width or hidden
    key = "target_hidden_size" if said_width else "hidden_size"
    whole_states = columns is None or columns % target.hidden == 0
    if width != hidden and not case.serving.is_sglang and case.serving.within(OTHER_WIDTH) is False:
        said = (
            f"the draft is {hidden} wide and the target {target.hidden}, which {releases(OTHER_WIDTH, 'vLLM')} serves"
        )
        return case.say(Verdict.FAIL, f"{said}: {case.serving.words} gives it the target's embedding and stops", facts)
    if width == target.hidden and whole_states:
        slots = f"; fc reads {columns // target.hidden} of them" if columns else ""
        return case.say(Verdict.PASS, f"states are {width} wide ({key}), as the target's{slots}", facts)
    if width == target.hidden:
        said = f"states are {width} wide ({key}) and fc has {columns} columns, which is no whole number of them"
        return case.say(Verdict.FAIL, said, facts)
    fits = said_width is None and columns is not None and columns % target.hidden == 0 and columns % hidden != 0
    # With another width the target's embedding cannot be shared: the draft has to bring its own.
    own = fits and "embed_tokens.weight" in case.tensors
    fix = ConfigFix(set_key(case.draft.config, case.pointer("target_hidden_size"), target.hidden)) if own else None
    said = f"the draft reads states {width} wide ({key}) and the target's are {target.hidden}"
    if fits and columns is not None:
        said += f"; fc fits {columns // target.hidden} states of {target.hidden}: add target_hidden_size"
    return case.say(Verdict.FAIL, said, facts, fix)


@cfg_check("cfg.vocab_alias")
def vocab_alias(case: Case) -> Finding | None:
    """The size of the draft's vocabulary stands under `draft_vocab_size`, the key that engines read.

    Some heads carry it as `truncated_vocab_size`. SGLang reads `draft_vocab_size` alone and, as its source reads, stops
    when it is absent; null is legal since 0.5.2 and means the target's whole vocabulary and head.

    PASS: there; both there and equal; null. WARN: only the alias, or neither. FAIL: both, and they differ; larger than
    vocab_size; no whole number.

    What to do: stage the fix.
    """
    names = ("draft_vocab_size", "truncated_vocab_size")
    size, alias = (case.number(name) for name in names)
    full = case.number("vocab_size")
    facts: dict[str, Any] = {name: case.config.get(name) for name in (*names, "vocab_size")}
    wrong = [name for name in names if case.config.get(name) is not None and whole(case.config.get(name)) is None]
    if wrong:
        return case.say(Verdict.FAIL, f"{wrong[0]} is not a positive whole number", facts)
    if size is not None and alias is not None and size != alias:
        said = f"draft_vocab_size is {size} and truncated_vocab_size {alias}: two sizes for one vocabulary"
        return case.say(Verdict.FAIL, said, facts)
    if size is not None and full is not None and size > full:
        return case.say(Verdict.FAIL, f"draft_vocab_size is {size}, above vocab_size {full}", facts)
    if size is not None:
        return case.say(
            Verdict.PASS, f"draft_vocab_size is {size}" + (" (and so is its alias)" if alias else ""), facts
        )
    if alias is not None:
        fix = ConfigFix(set_key(case.draft.config, case.pointer("draft_vocab_size"), alias))
        reader = "SGLang" if case.serving.is_sglang else case.serving.words
        said = f"only truncated_vocab_size ({alias}) is given, and {reader} reads draft_vocab_size"
        return case.say(Verdict.WARN, said, facts, fix)
    if "draft_vocab_size" in case.config:
        said = f"draft_vocab_size is null: the target's vocabulary and head ({releases(SHARES_HEAD)})"
        return case.say(Verdict.PASS, said, facts)
    if not case.serving.is_sglang:
        return case.say(Verdict.PASS, "no draft_vocab_size: the draft has the target's vocabulary", facts)
    head = case.tensors.get("lm_head.weight")
    rows = head.rows if head is not None and head.shape else None
    mend = ConfigFix(set_key(case.draft.config, case.pointer("draft_vocab_size"), rows)) if rows else None
    return case.say(Verdict.WARN, "draft_vocab_size is absent, and SGLang's Llama draft stops without it", facts, mend)


@cfg_check("cfg.vocab_vs_target")
def vocab_vs_target(case: Case) -> Finding | None:
    """The vocabulary the draft was made for is the target's.

    `vocab_size` of the draft is the range its map leads into. It may differ from the target's by padding, a few rows of
    many thousands; a larger difference is another tokenizer, and every proposed id then means another token.

    PASS: equal. INFO: apart by padding. WARN: further apart.

    What to do: check that this draft belongs to this target.
    """
    target, own = case.target, case.number("vocab_size")
    if target is None:
        return case.unknown("the target's config.json (--target DIR)")
    facts = {"vocab_size": own, "target": target.vocab}
    if own is None:
        return case.unknown("vocab_size in the draft's config", facts)
    if own == target.vocab:
        return case.say(Verdict.PASS, f"both have {own} tokens", facts)
    said = f"the draft was made for {own} tokens and the target has {target.vocab}"
    if abs(own - target.vocab) <= _PADDING * target.vocab:
        return case.say(Verdict.INFO, f"{said}: padding, by the size of the difference", facts)
    return case.say(Verdict.WARN, f"{said}: another tokenizer, by the size of the difference", facts)
