"""`cfg.format`: whose layout the draft's config.json has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from checks.catalog import check
from checks.cfg.case import layout_for, reads
from checks.cfg.layouts import Layout, names_of
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict
from checks.rules import Serving, per_engine

ID = "cfg.format"


@check(ID, needs=(Need.DRAFT,))
def layout(evidence: Evidence) -> Iterable[Finding]:
    """The draft's config.json has the layout the engine reads: the model's keys at the top level.

    Other tools nest them (speculators in `transformer_layer_config`), and SGLang has no reader for those layouts in any
    release: it would miss hidden_size, the vocabulary, the head, all at once. So the layout is told first, by the keys
    that mark it, and this is the one finding; the other cfg checks then say so and judge nothing.

    FAIL: a layout SGLang does not read; `evidence.mapping` says where each key has to go. PASS: the flat layout, or one
    this engine reads (vLLM reads speculators'). UNKNOWN: a draft of another family than EAGLE-3 (EAGLE-1, DFlash,
    Medusa), which these checks do not judge, or a layout of which it is not known whether this engine reads it.

    What to do: serve it with the engine it was made for, or move the keys to the top level, name the class in
    `architectures`, and put the layer ids into `eagle_config` in SGLang's counting (align.engine_pair gives them).
    """
    draft = evidence.draft
    assert draft is not None
    config = draft.config
    found = layout_for(draft)
    yield from per_engine(evidence, lambda serving: _judge(config, found, serving))


def _judge(config: dict[str, Any], layout: Layout | None, serving: Serving) -> Finding:
    facts: dict[str, Any] = {"layout": layout.name if layout else "flat", "architectures": names_of(config)}
    if layout is None:
        return Finding(ID, Verdict.PASS, "the model's keys stand at the top level, where engines read them", facts)
    held = config.get(layout.holder) if layout.holder else None
    facts["mapping"] = {f"/{layout.holder}/{key}": f"/{key}" for key in held} if isinstance(held, dict) else {}
    what = f"config.json is of the layout of {layout.name}"
    if not layout.eagle3:
        facts["needs"] = ["an EAGLE-3 draft"]
        return Finding(ID, Verdict.UNKNOWN, f"{what}: no EAGLE-3 draft, which is what these checks judge", facts)
    if reads(serving, layout):
        return Finding(ID, Verdict.PASS, f"{what}, which {serving.words} reads", facts)
    if not serving.is_sglang:
        facts["needs"] = [f"whether {serving.words} reads this layout"]
        return Finding(ID, Verdict.UNKNOWN, f"{what}: whether {serving.words} reads it is not known", facts)
    dtype = config.get("torch_dtype", config.get("dtype"))
    notes = [f"its weights are declared {dtype}"] if isinstance(dtype, str) else []
    notes += [layout.hint] if layout.hint else []
    where = f"the model's keys stand in {layout.holder}" if facts["mapping"] else "its keys have other names"
    summary = f"{what}, which no release of SGLang reads: {where}" + "".join(f"; {note}" for note in notes)
    return Finding(ID, Verdict.FAIL, summary, facts)
