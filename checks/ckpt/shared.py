"""What the engine shares between draft and target: `ckpt.own_head`, `ckpt.embed_matches_target`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from checks.catalog import check
from checks.cfg.case import layout_for
from checks.cfg.shape import SHARES_HEAD
from checks.ckpt.names import foreign
from checks.draft import Draft
from checks.draft_shapes import draft_vocab, normal_names
from checks.evidence import Evidence, Need
from checks.finding import ConfigFix, Finding, Verdict
from checks.jsonfile import whole
from checks.patch import set_key
from checks.rules import Serving, per_engine, releases
from checks.tensors import TensorInfo, take_rows

HEAD, EMBED = "ckpt.own_head", "ckpt.embed_matches_target"

ROWS = 64
"""Rows of the embeddings that are compared, spread over the vocabulary."""
SAME, RELATED = 0.02, 0.5
"""Median relative distance of rows below which they are the same, and below which one was trained from the other."""


@check(HEAD, needs=(Need.DRAFT, Need.DRAFT_WEIGHTS))
def own_head(evidence: Evidence) -> Iterable[Finding]:
    """Which head and which embedding the engine will use, and that there is one.

    SGLang puts the target's embedding in place of the draft's, unless `target_hidden_size` says that the widths differ.
    The head is the draft's own; where `draft_vocab_size` is null it is the target's (0.5.2 and later), where tied, the
    embedding. vLLM shares what the checkpoint lacks or what equals the target's, and this changed between releases.

    INFO: which are used. FAIL: there is none: a head that is missing with a vocabulary of its own stays random.

    What to do: nothing; for a missing head export again, or stage the fix where the target's own head fits.
    """
    draft = evidence.draft
    weights = draft.weights if draft is not None else None
    assert draft is not None and weights is not None
    tensors = normal_names(weights.info)
    layout = layout_for(draft)
    if foreign(weights) or (layout is not None and not layout.eagle3):
        what = (
            "no tensor has a name that engines load, see ckpt.names" if foreign(weights) else "another family of drafts"
        )
        said = f"what engines share with it is not judged: {what}"
        yield Finding(HEAD, Verdict.UNKNOWN, said, {"needs": ["an EAGLE-3 draft"]})
        return
    yield from per_engine(evidence, lambda serving: _judge_head(draft, tensors, serving))


def _judge_head(draft: Draft, tensors: dict[str, TensorInfo], serving: Serving) -> Finding:
    config = draft.flat
    own_embed, head = "embed_tokens.weight" in tensors, "lm_head.weight" in tensors
    # vLLM gives an EAGLE-3 draft a head of its own, tied or not.
    tied = bool(config.get("tie_word_embeddings")) and serving.is_sglang
    null = config.get("draft_vocab_size", 0) is None
    small, full = draft_vocab(config), whole(config.get("vocab_size"))
    wide = whole(config.get("target_hidden_size")) not in (None, whole(config.get("hidden_size")))
    facts: dict[str, Any] = {"lm_head": head, "embed_tokens": own_embed, "tied": tied, "draft_vocab_size": small}
    embed = "its own embedding" if wide and own_embed else "the target's embedding"
    if wide and not own_embed:
        said = "no embed_tokens, and the target's embedding does not fit: the widths differ (target_hidden_size)"
        return Finding(HEAD, Verdict.FAIL, said, facts)
    if head or tied:
        which = "the embedding as its head" if tied else "its own head"
        return Finding(HEAD, Verdict.INFO, f"{serving.words} uses {which} and {embed}", facts)
    fits = full is not None and small in (None, full)
    if not serving.is_sglang:
        if fits:
            return Finding(HEAD, Verdict.INFO, f"{serving.words} uses the target's head and {embed}", facts)
        said = f"no lm_head, and the draft has {small} of {full} tokens: the target's head does not fit"
        return Finding(HEAD, Verdict.FAIL, said, facts)
    if null and serving.within(SHARES_HEAD) is not False:
        said = f"{serving.words} uses the target's head ({releases(SHARES_HEAD)}) and {embed}"
        return Finding(HEAD, Verdict.INFO, said, facts)
    if null:
        said = f"no lm_head, and only {releases(SHARES_HEAD)} takes the target's: {serving.version} stops"
        return Finding(HEAD, Verdict.FAIL, said, facts)
    aliased = config.get("truncated_vocab_size") is not None
    share = fits and not aliased and serving.within(SHARES_HEAD) is not False
    fix = ConfigFix(set_key(draft.config, "/draft_vocab_size", None)) if share and not draft.is_speculators else None
    said = f"no lm_head, and SGLang shares the target's only where draft_vocab_size is null ({releases(SHARES_HEAD)})"
    return Finding(HEAD, Verdict.FAIL, f"{said}: the head stays random", facts, fix)


@check(EMBED, needs=(Need.DRAFT, Need.DRAFT_WEIGHTS))
def embed_matches_target(evidence: Evidence) -> Iterable[Finding]:
    """An embedding in the draft's weights is the target's.

    Some exporters write a fresh, random one. SGLang puts the target's in its place, so nothing is lost there; vLLM
    keeps the draft's own where it differs, and every proposal starts from noise.

    64 rows spread over the vocabulary are compared, by the median of their relative distance. PASS: none of its own, or
    the same (below 0.02). INFO: another one that the engine ignores, or one that was trained on from the target's
    (below 0.5). FAIL: unrelated, on an engine that keeps it. UNKNOWN: no weights of the target, on an engine that keeps
    it, or another width than the target's, so that there is nothing to compare.

    What to do: take embed_tokens out of the draft's weights.
    """
    draft = evidence.draft
    weights = draft.weights if draft is not None else None
    assert weights is not None
    own = normal_names(weights.info).get("embed_tokens.weight")
    if own is None:
        yield Finding(EMBED, Verdict.PASS, "no embedding of its own: engines use the target's", {"rows": 0})
        return
    reason = evidence.missing(Need.TARGET) or evidence.missing(Need.TARGET_WEIGHTS)
    target = evidence.target
    if reason is not None or target is None:
        yield from per_engine(evidence, lambda serving: _not_compared(serving, str(reason)))
        return
    if own.row_shape != (target.hidden,):
        said = f"the draft's embedding is {list(own.shape)} and the target's states are {target.hidden} wide"
        needs = ["an embedding of the target's width"]
        yield Finding(EMBED, Verdict.UNKNOWN, f"{said}: not comparable", {"needs": needs})
        return
    ids = np.unique(np.linspace(0, min(own.rows, target.vocab) - 1, ROWS).astype(np.int64))
    mine = np.asarray(take_rows(own, ids), dtype=np.float32)
    theirs = target.embedding(ids) / np.float32(target.embedding_scale)
    norms = np.linalg.norm(theirs, axis=1)
    distance = np.linalg.norm(mine - theirs, axis=1) / np.maximum(norms, np.float32(1e-12))
    apart = float(np.median(distance[norms > 0])) if bool((norms > 0).any()) else 0.0
    facts = {"rows": int(ids.size), "median_distance": round(apart, 4) if np.isfinite(apart) else None}
    yield from per_engine(evidence, lambda serving: _judge_embed(apart, facts, serving))


def _not_compared(serving: Serving, reason: str) -> Finding:
    if serving.is_sglang:
        said = "an embedding of its own, which no release of SGLang uses: the target's is put in its place"
        return Finding(EMBED, Verdict.INFO, said, {"rows": 0})
    return Finding(EMBED, Verdict.UNKNOWN, f"not checked: {reason}", {"needs": [Need.TARGET_WEIGHTS.value]})


def _judge_embed(apart: float, facts: dict[str, Any], serving: Serving) -> Finding:
    if apart < SAME:
        return Finding(EMBED, Verdict.PASS, "the draft's embedding is the target's", facts)
    trained = apart < RELATED
    how = (
        f"the draft's embedding is {'trained on from' if trained else 'unrelated to'} the target's ({apart:.2f} apart)"
    )
    if serving.is_sglang:
        return Finding(
            EMBED, Verdict.INFO, f"{how}: ignored there, every release of SGLang puts the target's in", facts
        )
    said = f"{how}: {serving.words} keeps it"
    return Finding(EMBED, Verdict.INFO if trained else Verdict.FAIL, said, facts)
