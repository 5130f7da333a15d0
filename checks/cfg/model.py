"""Which class the engine builds for the draft, and how many layers: `cfg.architectures`, `cfg.num_hidden_layers`."""

from __future__ import annotations

import re
from typing import Any

from checks.cfg.case import Case, cfg_check
from checks.cfg.layouts import EAGLE3_KEYS, names_of
from checks.draft_shapes import layers_in
from checks.engines.versions import Span, span
from checks.finding import ConfigFix, Finding, Verdict
from checks.patch import set_key
from checks.rules import releases

PLAIN, LATENT = "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"

# SGLang's classes of EAGLE-3 drafts, and the releases that have them.
CLASSES: dict[str, Span] = {PLAIN: span(), LATENT: span("0.5.12")}
MANY_LAYERS = span("0.5.12")
MAPS_TYPES = span("0.24")
"""Releases of vLLM that choose the class of a speculators draft by its model_type; before, it is Llama's for all."""
_TRANSLATED = ("llama", "qwen3")

# vLLM's classes of EAGLE-3 drafts: the last release looked into without it, and the first with it (wheels of 0.8.5 to
# 0.11.2 and 0.22.0 to 0.33.0).
VLLM_CLASSES: dict[str, tuple[str, str]] = {
    "Eagle3LlamaForCausalLM": ("", "0.8.5"),
    "LlamaForCausalLMEagle3": ("0.10.1", "0.10.2"),
    "Eagle3Qwen2_5vlForCausalLM": ("0.11.0", "0.11.1"),
    "Eagle3Qwen3vlForCausalLM": ("0.11.2", "0.22"),
    "Eagle3MiniMaxM2ForCausalLM": ("0.11.2", "0.22"),
    "Eagle3DeepseekV2ForCausalLM": ("0.11.2", "0.22"),
    "Eagle3DeepseekV3ForCausalLM": ("0.11.2", "0.22"),
    "Eagle3Qwen3ForCausalLM": ("0.23", "0.24"),
}
VLLM_LOOKED_INTO = span("0.8.5", "0.33")

_MLA = ("q_a_proj", "kv_a_proj_with_mqa", "kv_b_proj")
# Tensors that an EAGLE-3 draft has; fc is EAGLE-1's as well, of another width.
_TENSORS = re.compile(r"^(fc\.weight|d2t|layers\.0\.hidden_norm\.weight)$")


@cfg_check("cfg.architectures", by_engine=True)
def architectures(case: Case) -> Finding | None:
    """`architectures` names the engine's class of an EAGLE-3 draft, and the one its tensors are made for.

    SGLang builds what the name says. The name of the target's class (LlamaForCausalLM, Qwen3ForCausalLM) builds a whole
    ordinary model: loading stops with `KeyError: midlayer…`, or goes on with random weights. vLLM puts `Eagle3` before
    such a name by itself, so it is no fault there, as long as it has a class of that name.

    FAIL: another class although tensors (`fc`, `hidden_norm`, `d2t`) or keys (`draft_vocab_size`, `eagle_config`) say
    EAGLE-3; a class this release does not have; a class of dense attention for tensors of latent attention, or the
    other way round; none at all; in a config of speculators a model_type other than llama and qwen3, on vLLM from 0.24.
    UNKNOWN: nothing says that this is an EAGLE-3 draft.

    What to do: stage the fix, one line of config.json.
    """
    named = case.draft.config.get("architectures")
    names, tensors = names_of(case.draft.config), case.tensors
    marks = sorted(name for name in tensors if _TENSORS.match(name))
    marks += [key for key in EAGLE3_KEYS if case.draft.config.get(key) is not None]
    latent = any(part in name for name in tensors for part in _MLA)
    dense = any(name.endswith("self_attn.q_proj.weight") for name in tensors)
    facts: dict[str, Any] = {"architectures": named, "eagle3_by": marks[:8], "latent_attention": latent}
    right = LATENT if latent or (not dense and LATENT in names) else PLAIN
    # A class that this release lacks would only trade one failure for another.
    lacks = case.serving.within(CLASSES[right]) is False
    fix = None if lacks else ConfigFix(set_key(case.draft.config, "/architectures", [right]))
    first = names[0] if names else ""
    if not case.serving.is_sglang:
        kind = case.config.get("model_type", "llama")
        if case.draft.is_speculators and kind not in _TRANSLATED and case.serving.within(MAPS_TYPES):
            said = (
                f"model_type is {_shown(kind)} in transformer_layer_config, and {releases(MAPS_TYPES, 'vLLM')} "
                f"translates {' and '.join(_TRANSLATED)} alone (ValueError: Unsupported model_type)"
            )
            return case.say(Verdict.FAIL, said, facts)
        names = names or names_of(case.config)
        if (lacking := _unregistered(case, names, facts)) is not None:
            return lacking
        said = f"architectures is {names}; {case.serving.words} takes the EAGLE-3 class of that name"
        return case.say(Verdict.PASS if names else Verdict.UNKNOWN, said, {**facts, "needs": []} if names else facts)
    if not first or len(names) != len(named if isinstance(named, list) else []):
        return case.say(Verdict.FAIL, f"architectures is {_shown(named)}: it has to be [{right!r}]", facts, fix)
    if first not in CLASSES:
        if not marks and "eagle3" not in first.lower():
            return case.unknown(f"an EAGLE-3 draft: {first} has neither its keys nor its tensors", facts)
        by = f" (it has {', '.join(marks[:3])})" if marks else ""
        said = f"architectures is {first!r}, which is not SGLang's class of an EAGLE-3 draft{by}: set {right!r}"
        return case.say(Verdict.FAIL, said, facts, fix)
    if (latent or dense) and first != right:
        kind = "latent" if latent else "dense"
        return case.say(
            Verdict.FAIL, f"{first} is built, and the tensors are of {kind} attention: set {right}", facts, fix
        )
    known = case.serving.within(CLASSES[first])
    if known is False:
        said = f"{first} is in {releases(CLASSES[first])} only, and this is {case.serving.version}"
        return case.say(Verdict.FAIL, said, facts)
    note = f"; it is in {releases(CLASSES[first])}" if known is None else ""
    return case.say(
        Verdict.INFO if note else Verdict.PASS, f"{first} is SGLang's class of an EAGLE-3 draft{note}", facts
    )


def _unregistered(case: Case, names: list[str], facts: dict[str, Any]) -> Finding | None:
    """A class that this vLLM does not have for an EAGLE-3 draft, by the name it makes of the config's; else None.

    It puts Eagle3 before a name that neither begins nor ends with it (transformers_utils/configs/eagle.py); a config of
    speculators names its class by another rule.
    """
    wrapped = case.draft.config.get("model_type") == "eagle"  # of EAGLE-1 as a rule, whose classes are others
    if not names or wrapped or case.draft.is_speculators or not case.serving.within(VLLM_LOOKED_INTO):
        return None
    asked = names[0]
    built = asked if asked.startswith("Eagle3") or asked.endswith("Eagle3") else f"Eagle3{asked}"
    until, since = VLLM_CLASSES.get(built, ("0.33", ""))
    if not until or not case.serving.within(span("", until)):
        return None
    came = f"{since} has it" if since else "no release looked into has it"
    right = PLAIN if case.serving.within(span("0.10.2")) else "LlamaForCausalLM"
    dense = not any(part in name for name in case.tensors for part in _MLA)
    fix = ConfigFix(set_key(case.draft.config, "/architectures", [right])) if dense and not since else None
    said = f"architectures is {names}: {case.serving.words} looks for {built}, which it has not ({came}), and stops"
    return case.say(Verdict.FAIL, said, {**facts, "built": built}, fix)


@cfg_check("cfg.num_hidden_layers", by_engine=True)
def num_hidden_layers(case: Case) -> Finding | None:
    """The draft's own number of layers is one that the engine's release can build.

    An EAGLE-3 draft has one layer. Drafts of several exist since SGLang 0.5.12, whose first layer reads twice the width
    and the others once; before, and for latent attention in every release, starting stops with `EAGLE3 currently only
    supports 1 layer`. A large number usually is the target's, copied along with its config.

    FAIL: not a positive whole number, or other than 1 where the release takes only 1. INFO: several, where they are
    taken. WARN: absent, when transformers puts in the 32 of its Llama. UNKNOWN: several, and no release named.

    What to do: stage the fix where the tensors show one layer; else upgrade.
    """
    given = case.config.get("num_hidden_layers")
    layers, held = case.number("num_hidden_layers"), layers_in(case.tensors)
    latent = LATENT in names_of(case.draft.config)
    facts: dict[str, Any] = {"num_hidden_layers": given, "layers_in_weights": held or None}
    fix = ConfigFix(set_key(case.draft.config, case.pointer("num_hidden_layers"), held or 1))
    if given is None:
        return case.say(Verdict.WARN, "num_hidden_layers is absent: transformers puts in 32, its default", facts, fix)
    if layers is None:
        return case.say(Verdict.FAIL, f"num_hidden_layers is {_shown(given)}, not a positive whole number", facts, fix)
    if layers == 1:
        return case.say(Verdict.PASS, "one layer", facts)
    fix_or_none = fix if held == 1 else None
    if not case.serving.is_sglang:
        return case.say(Verdict.INFO, f"{layers} layers", facts)
    target = case.target
    copied = f"; {layers} is the target's number" if target is not None and target.n == layers else ""
    if latent:
        said = f"{layers} layers, and {LATENT} takes one only in {releases(CLASSES[LATENT])}{copied}"
        return case.say(Verdict.FAIL, said, facts, fix_or_none)
    known = case.serving.within(MANY_LAYERS)
    if known is False:
        said = f"{layers} layers, and only {releases(MANY_LAYERS)} takes more than one{copied}"
        return case.say(Verdict.FAIL, said, facts, fix_or_none)
    said = f"{layers} layers: taken by {releases(MANY_LAYERS)}, refused before{copied}"
    if known is None:
        return case.say(Verdict.UNKNOWN, said, {**facts, "needs": ["the engine's release (--engine sglang==VERSION)"]})
    return case.say(Verdict.INFO, said, facts)


def _shown(value: object) -> str:
    return "absent" if value is None else repr(value)[:60]
