"""The draft's config beside the target's and the launch: rotary base, window of positions, dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.cfg.case import Case, cfg_check
from checks.cfg.layouts import names_of
from checks.cfg.model import LATENT
from checks.engines.versions import span
from checks.finding import Finding, FlagsFix, Verdict
from checks.jsonfile import whole
from checks.launch import launch_of
from checks.rules import releases

READS_ROPE_PARAMETERS = span("0.5.10")
TAKES_ALL_FOR_YARN = span("0.22", "0.27")
"""Releases of vLLM with the fault that upstream pull request 51092 mends; before 0.22 there is no latent draft."""
OVERRIDES_WINDOW = span("0.5.3")
GUARD = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"

FILLS_IN_ROPE = span("0.5.10")
"""Releases of SGLang that put a default in place of a key that rope_scaling lacks, with a warning."""
_FOUR = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
# What engines ask of a scaling of this kind; vLLM gets the window that it scales from transformers.
_ASKED: dict[str, tuple[str, ...]] = {
    "llama3": _FOUR,
    "yarn": ("factor", "original_max_position_embeddings"),
    "linear": ("factor",),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}

_COMPARED = ("rope_theta", "rope_scaling", "rms_norm_eps")
# Where engines look for a window, in their order.
_LENGTHS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")


@cfg_check("cfg.rope_vs_target", by_engine=True)
def rope_vs_target(case: Case) -> Finding | None:
    """The draft's rotary base, scaling and norm epsilon beside the target's, which need not be the same.

    A draft is trained with its own attention; published heads that work have another rotary base than their target. So
    a difference is only told. What matters is that the engine reads the one it was trained with: configs of newer
    transformers keep it in `rope_parameters`, which SGLang understands since 0.5.10 and, as its source reads, passes
    over before, taking a base of 10000.

    INFO: they differ. WARN: only `rope_parameters`, and a release that does not read it; a draft of latent attention
    without yarn, on vLLM 0.22 to 0.27; a scaling without a key that its kind calls for, which SGLang since 0.5.10 fills
    in with a default. FAIL: the same, on an older release and on vLLM, which stop.

    What to do: complete the scaling from the training's config; nothing for a difference; for an older release write
    `rope_theta` and `rope_scaling` as well.
    """
    target = case.target
    own = {key: _rope(case.config, key) for key in _COMPARED}
    facts: dict[str, Any] = {"draft": own}
    modern = isinstance(case.config.get("rope_parameters"), dict) and "rope_theta" not in case.config
    if modern and case.serving.is_sglang and case.serving.within(READS_ROPE_PARAMETERS) is False:
        said = (
            f"the rotary base stands only in rope_parameters, which {releases(READS_ROPE_PARAMETERS)} reads: this "
            f"{case.serving.version} falls back to its default (inferred from its source)"
        )
        return case.say(Verdict.WARN, said, facts)
    plain = LATENT in names_of(case.config) and own["rope_scaling"] not in ("yarn", "deepseek_yarn")
    if plain and not case.serving.is_sglang and case.serving.within(TAKES_ALL_FOR_YARN):
        said = (
            f"no yarn, and {releases(TAKES_ALL_FOR_YARN, 'vLLM')} takes the rope of every draft of latent attention "
            "for yarn under transformers 5: it stops with KeyError: 'factor' (inferred from its source)"
        )
        return case.say(Verdict.WARN, said, facts)
    if (amiss := _incomplete(case, facts)) is not None:
        return amiss
    if target is None:
        return case.unknown("the target's config.json (--target DIR)", facts)
    theirs = {key: _rope(target.text, key) for key in _COMPARED}
    facts["target"] = theirs
    apart = [key for key in _COMPARED if own[key] != theirs[key] and None not in (own[key], theirs[key])]
    apart += ["rope_scaling"] if (own["rope_scaling"] is None) != (theirs["rope_scaling"] is None) else []
    facts["differ"] = sorted(set(apart))
    if not apart:
        return case.say(Verdict.PASS, "rotary base, scaling and epsilon are the target's, as far as both say", facts)
    said = ", ".join(f"{key} {own[key]} against {theirs[key]}" for key in facts["differ"])
    return case.say(Verdict.INFO, f"{said}: legal, a draft has its own attention", facts)


def _incomplete(case: Case, facts: dict[str, Any]) -> Finding | None:
    """What engines make of a rope_scaling that lacks a key they ask for; None where it lacks none."""
    held = case.config.get("rope_parameters") or case.config.get("rope_scaling")
    kind = held.get("rope_type", held.get("type")) if isinstance(held, dict) else None
    if not isinstance(held, dict) or not isinstance(kind, str):
        return None
    lacking = [key for key in _ASKED.get(kind, ()) if held.get(key) is None]
    if not case.serving.is_sglang:
        lacking = [key for key in lacking if key != _FOUR[-1]]
    if not lacking:
        return None
    facts["lacking"] = lacking
    said = f"rope_scaling is {kind} and lacks {', '.join(lacking)}"
    if not case.serving.is_sglang:
        return case.say(Verdict.FAIL, f"{said}: {case.serving.words} stops with a KeyError", facts)
    known = case.serving.within(FILLS_IN_ROPE)
    until = f"before {releases(FILLS_IN_ROPE)} the start stops with a KeyError"
    if known is False:
        return case.say(Verdict.FAIL, f"{said}: {until}", facts)
    filled = "a default is put in its place, another rope than the trained one"
    return case.say(Verdict.WARN, f"{said}: {filled}" + ("" if known else f"; {until}"), facts)


def _rope(config: Mapping[str, Any], key: str) -> Any:
    nested = config.get("rope_parameters")
    value = config.get(key)
    if value is None and isinstance(nested, dict):
        if key == "rope_scaling":
            return nested.get("rope_type") if nested.get("rope_type") not in (None, "default") else None
        value = nested.get(key)
    if key == "rope_scaling" and isinstance(value, dict):
        return str(value.get("rope_type", value.get("type", "")))
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@cfg_check("cfg.draft_window", by_engine=True)
def draft_window(case: Case) -> Finding | None:
    """The draft's window of positions covers the context that is served.

    The window is `max_position_embeddings`, times the factor of `rope_scaling` where that does not name the window it
    scales, as engines derive it. Beyond it the draft has rotary positions it never saw: it proposes badly, and up to
    0.5.2 a long prompt reads past its table and stops the server. SGLang refuses a draft with a shorter window than the
    served context, unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 turns that guard off; since 0.5.3 the window is
    then overwritten.

    WARN: shorter, with both numbers. FAIL: shorter, and a release up to 0.5.2. INFO: shorter than the target's own
    window, and no launch flags that say what is served. The served context is --context-length (vLLM's
    --max-model-len), else the target's window.

    What to do: serve a shorter context, or a draft trained for the long one; expect less acceptance beyond the window.
    """
    own = _window(case.config)
    target, launch = case.target, launch_of(case.evidence)
    flag = "context-length" if case.serving.is_sglang else "max-model-len"
    served = launch.number(flag) if launch is not None else None
    theirs = _window(target.text) if target is not None else None
    off = launch is not None and launch.switched_on(GUARD)
    facts = {"max_position_embeddings": own, "context_length": served, "target": theirs, "guard_off": off}
    length = served or theirs
    if own is None:
        return case.say(Verdict.INFO, "max_position_embeddings is absent: the default of its model type holds", facts)
    if length is None:
        return case.say(Verdict.INFO, f"the draft has {own} positions; what context is served is not known", facts)
    by = f"--{flag}" if served else "the target's window"
    if own >= length:
        return case.say(Verdict.PASS, f"the draft has {own} positions, and {length} are served ({by})", facts)
    said = f"the draft has {own} positions and {length} are served ({by})"
    if not case.serving.is_sglang:
        said = f"{said}: beyond {own} it proposes at positions it was never trained on"
        return case.say(Verdict.INFO if launch is None else Verdict.WARN, said, facts)
    guard = (
        f"{GUARD} is set, so the guard that refuses this is off and positions beyond {own} were never trained"
        if off
        else f"the server refuses this at the start, unless {GUARD}=1 turns the guard off"
    )
    if launch is None:
        return case.say(Verdict.INFO, f"{said}, unless --context-length says otherwise: {guard}", facts)
    if case.serving.within(OVERRIDES_WINDOW) is False:
        stops = f"{releases(span('', '0.5.2'))} stops on a longer prompt (its rotary table ends there)"
        return case.say(Verdict.FAIL, f"{said}: {stops}" if off else f"{said}; {guard}, and {stops}", facts)
    return case.say(Verdict.WARN, f"{said}; {guard} ({releases(OVERRIDES_WINDOW)})", facts)


def _window(config: Mapping[str, Any]) -> int | None:
    """The positions a config has, as engines derive them (SGLang's get_context_length)."""
    length = next((found for key in _LENGTHS if (found := whole(config.get(key))) is not None), None)
    scaling = config.get("rope_scaling")
    if length is None or not isinstance(scaling, dict):
        return length
    fixed = "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3"
    factor = scaling.get("factor")
    scales = not fixed and isinstance(factor, (int, float)) and not isinstance(factor, bool) and 0 < factor < 1e6
    return int(length * factor) if scales and factor else length


@cfg_check("cfg.dtype_vs_target", by_engine=True)
def dtype_vs_target(case: Case) -> Finding | None:
    """Draft and target compute in one dtype.

    Without --dtype each model takes its own config's, and a state of one meets a matrix of the other: `mat1 and mat2
    must have the same dtype`, or a failing graph capture; float16 also overflows where bfloat16 does not. Both
    spellings are read, `dtype` and `torch_dtype`. A float32 config is served in float16.

    WARN: they differ, and no --dtype is given. INFO: they differ and --dtype settles it, or one config does not say.

    What to do: give --dtype, as the fix does, or write the target's dtype into the draft's config.
    """
    target, launch = case.target, launch_of(case.evidence)
    own, other = _dtype(case.config), _dtype(target.text) or _dtype(target.config) if target is not None else ""
    flag = launch.text("dtype") if launch is not None else ""
    facts = {"draft": own or None, "target": other or None, "--dtype": flag or None}
    if target is None:
        return case.unknown("the target's config.json (--target DIR)", facts)
    if flag and flag != "auto":
        said = f"--dtype {flag} holds for both"
        return case.say(Verdict.PASS if own == other else Verdict.INFO, f"{said} ({own or '?'}, {other or '?'})", facts)
    if not own or not other:
        who = "the draft's" if not own else "the target's"
        return case.say(Verdict.INFO, f"{who} config names no dtype ({own or other or 'neither'} otherwise)", facts)
    if own == other:
        return case.say(Verdict.PASS, f"both are {own}", facts)
    if not case.serving.is_sglang:
        said = f"the draft is {own} and the target {other}: what {case.serving.words} makes of it is not known here"
        return case.say(Verdict.INFO, said, facts)
    fix = FlagsFix(set={"dtype": other}) if other in ("bfloat16", "float16") else None
    said = f"the draft is {own} and the target {other}, and no --dtype settles it"
    return case.say(Verdict.WARN, said, facts, fix)


def _dtype(config: Mapping[str, Any]) -> str:
    for key in ("dtype", "torch_dtype"):
        value = config.get(key)
        if isinstance(value, str) and value:
            return value.rpartition(".")[2]
    return ""
