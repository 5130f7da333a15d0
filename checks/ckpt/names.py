"""The names in the weights against what the engine loads: `ckpt.layers`, `ckpt.names`, `ckpt.flag_weights`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from checks.catalog import check
from checks.cfg.case import layout_for
from checks.cfg.forward import SWITCHES
from checks.cfg.layouts import names_of
from checks.cfg.model import CLASSES, LATENT, MANY_LAYERS
from checks.draft import Draft
from checks.draft_shapes import LATER_NORMS, family, normal_name, normal_names
from checks.engines.versions import Span, span
from checks.evidence import Evidence, Need
from checks.finding import ConfigFix, Finding, Verdict
from checks.jsonfile import whole
from checks.patch import join_pointer, remove_key, set_key, set_keys
from checks.rules import Serving, per_engine, releases, servings
from checks.tensors import TensorInfo
from checks.weights import Weights

LAYERS, NAMES, FLAGS = "ckpt.layers", "ckpt.names", "ckpt.flag_weights"

TAKES_LAYERS = span("0.5.12")
"""Releases of SGLang that load `layers.0.*`; before, only `midlayer.*`."""

# vLLM's own name of the map, inside the engine.
_MAPPED = re.compile(r"(?:^|\.)draft_id_to_target_id$")
# What a draft of either family of names has at least one of.
_CORE = re.compile(r"^(fc\.weight|norm\.weight|lm_head\.weight|layers\.\d+\.(self_attn|mlp)\..+\.weight)$")


@check(LAYERS, needs=(Need.DRAFT, Need.DRAFT_WEIGHTS))
def layers(evidence: Evidence) -> Iterable[Finding]:
    """The config has as many layers as the weights.

    Counted by name, from the headers. A config of more layers leaves the rest as random numbers; one of fewer drops
    trained ones. The usual cause is a `num_hidden_layers` copied from the target.

    FAIL: they differ, or the layers are not numbered from 0 on. UNKNOWN: no tensor has a layer's name.

    What to do: stage the fix, which is the count of the weights.
    """
    draft = evidence.draft
    weights = draft.weights if draft is not None else None
    assert draft is not None and weights is not None
    found = sorted({int(part.group(1)) for name in weights.info if (part := _layer_number(name))})
    said = whole(draft.flat.get("num_hidden_layers"))
    facts = {"layers_in_weights": found, "num_hidden_layers": draft.flat.get("num_hidden_layers")}
    if not found:
        yield Finding(LAYERS, Verdict.UNKNOWN, "no tensor has a layer's name", {**facts, "needs": ["named layers"]})
    elif found != list(range(len(found))):
        shown = ", ".join(map(str, found[:6]))
        yield Finding(LAYERS, Verdict.FAIL, f"the weights have layers {shown}: not numbered from 0 without gaps", facts)
    elif said != len(found):
        fix = ConfigFix(set_key(draft.config, _pointer(draft, "num_hidden_layers"), len(found)))
        what = f"the weights have {len(found)} layer{'s' if len(found) > 1 else ''}, num_hidden_layers says {said}"
        # Absent or no number is cfg.num_hidden_layers' business; here only two numbers can differ.
        yield Finding(LAYERS, Verdict.FAIL if said else Verdict.INFO, what, facts, fix if said else None)
    else:
        yield Finding(LAYERS, Verdict.PASS, f"{said} layer{'s' if len(found) > 1 else ''} in both", facts)


def _layer_number(name: str) -> re.Match[str] | None:
    return re.match(r"layers\.(\d{1,4})\.", normal_name(name))


@check(NAMES, needs=(Need.DRAFT, Need.DRAFT_WEIGHTS))
def names(evidence: Evidence) -> Iterable[Finding]:
    """The tensors have names that the engine's release loads.

    SGLang skips a name it does not know without a word and leaves what it lacks as random numbers. `midlayer.*` (EAGLE,
    SpecForge) is loaded by every release, `layers.0.*` (speculators, ModelOpt) since 0.5.12. Latent-attention drafts
    are loaded without `model.` in front. A trainer's own prefix (`module.`, `draft_model.`) is loaded by none.

    In a draft of several layers those after the first have one norm in front of attention, under two names: SGLang
    reads `hidden_norm` there, and vLLM `input_layernorm`, which speculators and ModelOpt write. Either engine leaves
    the one it reads at ones when it is stored under the other, and says nothing: the layer is served without it.

    FAIL: names this release skips; all names, or a layer's, behind a prefix; the map of the vocabulary under another
    name than d2t; a later layer without the norm that the engine reads. WARN: both families in one checkpoint, of which
    the later one wins; a later layer with one of the two norms, and no engine named. INFO: `layers.0.*` and no release
    named.

    What to do: rename the tensors (the safetensors library loads and saves them in a few lines), or upgrade. A norm of
    a later layer can stand under both names; then either engine serves it.
    """
    draft = evidence.draft
    weights = draft.weights if draft is not None else None
    assert draft is not None and weights is not None
    raw, latent = list(weights.info), LATENT in names_of(draft.config)
    layout = layout_for(draft)
    if layout is not None and not layout.eagle3:
        said = f"a draft of {layout.name}: its names cannot be judged here"
        yield Finding(NAMES, Verdict.UNKNOWN, said, {"needs": ["an EAGLE-3 draft"]})
        return
    yield from per_engine(evidence, lambda serving: _judge_names(raw, family(weights.info), latent, serving))


def _judge_names(raw: list[str], kind: str, latent: bool, serving: Serving) -> Finding:
    prefix = _prefix(raw)
    facts: dict[str, Any] = {"names": kind, "prefix": prefix, "tensors": len(raw)}
    if prefix:
        said = f"every name begins with {prefix!r:.40}, which engines do not take off: they would skip all of it"
        return Finding(NAMES, Verdict.FAIL, said, facts)
    layer = next((name for name in raw if re.search(r"(midlayer|layers\.\d+)\.(self_attn|mlp)\.", name)), "")
    if kind == "unknown" and layer and any(_CORE.match(normal_name(name)) for name in raw):
        said = f"{layer!r:.80} and the rest of its layer have names that engines skip: the layer would be random"
        return Finding(NAMES, Verdict.FAIL, said, facts)
    if kind == "unknown":
        facts["needs"] = ["tensors of an EAGLE-3 draft"]
        return Finding(NAMES, Verdict.UNKNOWN, "no name is an EAGLE-3 draft's", facts)
    if " and " in kind:
        said = "midlayer.* and layers.0.* stand side by side, and become one layer: which wins is chance"
        return Finding(NAMES, Verdict.WARN, said, facts)
    if (amiss := _later_norms(raw, serving, facts)) is not None:
        return amiss
    if not any("d2t" in name for name in raw) and (other := next((name for name in raw if _MAPPED.search(name)), "")):
        said = f"the map of the vocabulary is named {other!r:.60}, and engines look for d2t: they would not load it"
        return Finding(NAMES, Verdict.FAIL, said, facts)
    if not serving.is_sglang:
        return Finding(NAMES, Verdict.PASS, f"{kind} is loaded by {serving.words}", facts)
    if latent and serving.within(CLASSES[LATENT]) is False:
        return Finding(NAMES, Verdict.INFO, f"not asked: {serving.words} has no {LATENT}, see cfg.architectures", facts)
    if latent and any(name.startswith("model.") for name in raw):
        said = f"the names begin with model., and {LATENT} loads them without it ({releases(TAKES_LAYERS)})"
        return Finding(NAMES, Verdict.FAIL, said, facts)
    if kind == "midlayer.*":
        return Finding(NAMES, Verdict.PASS, "midlayer.* is loaded by every release of SGLang", facts)
    known = serving.within(TAKES_LAYERS)
    said = f"layers.0.* is loaded by {releases(TAKES_LAYERS)}"
    if known is False:
        said += f": {serving.version} skips it without a word and serves a random layer"
        return Finding(NAMES, Verdict.FAIL, said, facts)
    return Finding(NAMES, Verdict.PASS if known else Verdict.INFO, said, facts)


def _later_norms(raw: list[str], serving: Serving, facts: dict[str, Any]) -> Finding | None:
    """What is wrong with the norm in front of attention in the layers after the first; None without such layers.

    Read in llama_eagle3.py of SGLang 0.5.12 to 0.5.23 and of vLLM 0.32, deepseek_eagle3.py of vLLM: both build
    both norms, filled with ones, load what has a name they know, and run one.
    """
    held = {normal_name(name) for name in raw}
    later = sorted({int(part.group(1)) for name in held if (part := _layer_number(name))} - {0})
    # A release that takes one layer does not start: cfg.num_hidden_layers says so.
    if not later or (serving.is_sglang and serving.within(MANY_LAYERS) is False):
        return None
    stored = {layer: [norm for norm in LATER_NORMS if f"layers.{layer}.{norm}.weight" in held] for layer in later}
    read = "hidden_norm" if serving.is_sglang else "input_layernorm"
    facts["later_norms"] = {"read": read, "stored": {str(layer): norms for layer, norms in stored.items()}}
    lacking = [layer for layer in later if read not in stored[layer]]
    if not lacking:
        return None
    name = f"layers.{lacking[0]}.{read}.weight"
    more = f" (and {len(lacking) - 1} layers more)" if len(lacking) > 1 else ""
    if not stored[lacking[0]]:
        said = f"layer {lacking[0]} has no norm in front of attention{more}: {name} would stay at ones"
        return Finding(NAMES, Verdict.FAIL, said, facts)
    other = stored[lacking[0]][0]
    if serving.label is None:
        said = f"layer {lacking[0]} has {other}, which vLLM reads there, and SGLang reads hidden_norm{more}"
        return Finding(NAMES, Verdict.WARN, f"{said}: name the engine, or store it under both names", facts)
    said = (
        f"of layer {lacking[0]} {serving.words} reads {read}, and the norm is stored as {other}{more}: {name} stays at "
        "ones, without a word; store it under both names"
    )
    return Finding(NAMES, Verdict.FAIL, said, facts)


def foreign(weights: Weights) -> bool:
    """Whether no name is one that engines load: whatever they lack then is `ckpt.names`' finding."""
    return not any(_CORE.match(normal_name(name)) or normal_name(name) in ("d2t", "t2d") for name in weights.info)


def _prefix(raw: list[str]) -> str:
    """What stands in front of every draft's name and is not `model.`; "" when the names are plain."""
    own = [name for name in raw if _CORE.match(normal_name(name))]
    if own:
        return ""
    for name in raw:
        parts = name.split(".")
        for cut in range(1, len(parts)):
            if _CORE.match(normal_name(".".join(parts[cut:]))):
                prefix = ".".join(parts[:cut]) + "."
                behind = [other for other in raw if other.startswith(prefix)]
                if len(behind) * 2 > len(raw):
                    return prefix
    return ""


@dataclass(frozen=True)
class Pair:
    """Keys of the config, one of which has to be on, and the tensors that belong to them.

    `calls`: those of the keys that make no sense without the tensors.
    """

    keys: tuple[str, ...]
    tensors: re.Pattern[str]
    what: str
    calls: tuple[str, ...] = ()
    nested: bool = False

    @property
    def versions(self) -> Span | None:
        """The releases of SGLang that read it."""
        return next((switch.versions for switch in SWITCHES if switch.key == self.keys[0]), None)


_NORMS = ("fc_norm", "use_aux_norm")
_BIASES = r"^layers\.\d+\.self_attn\.[qkv]_proj\.bias$"

PAIRS: tuple[Pair, ...] = (
    Pair(("norm_before_fc",), re.compile(r"^input_norm\.weight$"), "the norm before fc", ("norm_before_fc",), True),
    Pair(_NORMS, re.compile(r"^fc_norm\.\d+\.weight$"), "the norms on states", _NORMS),
    Pair(("bias",), re.compile(r"^fc\.bias$"), "the bias of fc"),
    Pair(("attention_bias", "bias"), re.compile(_BIASES), "the biases of attention", ("attention_bias",)),
)


@check(FLAGS, needs=(Need.DRAFT, Need.DRAFT_WEIGHTS))
def flag_weights(evidence: Evidence) -> Iterable[Finding]:
    """A key that calls for tensors and the tensors it calls for go together, in both directions.

    `norm_before_fc` and `input_norm.weight`; `fc_norm` (or `use_aux_norm`) and `fc_norm.i.weight`; `bias` and
    `fc.bias`; `attention_bias` (or `bias`, which turns on both) and the biases of `q_proj`, `k_proj` and `v_proj`;
    `quantization_config`, which may have been copied from the target, and quantised tensors with their scales. Tensors
    without their key are dropped, so the draft is computed without a part it was trained with; a key without its
    tensors runs a part that nobody trained. Neither is said by the engine.

    FAIL: one without the other. PASS: both, or neither.

    What to do: tensors without the key: stage the fix. A key without tensors: export again, or take the key out if the
    draft was trained without.
    """
    draft = evidence.draft
    weights = draft.weights if draft is not None else None
    assert draft is not None and weights is not None
    tensors = normal_names(weights.info)
    rows = [
        (pair, _is_on(draft, pair, pair.keys), [name for name in tensors if pair.tensors.match(name)]) for pair in PAIRS
    ]
    facts = {pair.keys[0]: {"on": on, "tensors": sorted(held)} for pair, on, held in rows}
    problems, changes = [], {}
    for pair, on, held in rows:
        if held and not on:
            problems.append(f"{held[0]} is there and {pair.keys[0]} is not on: engines drop {pair.what}")
            changes[_pointer(draft, pair.keys[0])] = True
        elif not held and _is_on(draft, pair, pair.calls):
            problems.append(f"{pair.calls[0]} is on and its tensors are missing: {pair.what} would be untrained")
    problems += _quantised(draft, tensors, facts)
    if not problems:
        used = ", ".join(pair.keys[0] for pair, on, _ in rows if on)
        yield Finding(FLAGS, Verdict.PASS, f"{used or 'no such key'}: keys and tensors go together", facts)
        return
    # Turned on for a release that does not read it, the key would only move the fault to cfg.forward.
    read = all(
        item.within(pair.versions or span()) is not False
        for item in servings(evidence)
        if item.is_sglang
        for pair, on, held in rows
        if held and not on
    )
    fit = all(_fits(draft, tensors, name) for pair, on, held in rows if held and not on for name in held)
    whole = read and fit and len(changes) == len(problems)
    fix = ConfigFix(set_keys(draft.config, changes)) if changes and whole else None
    if len(problems) == 1 and problems[0].startswith(_COPIED) and "quantization_config" in draft.config:
        fix = ConfigFix(remove_key(draft.config, "/quantization_config"))
    yield Finding(FLAGS, Verdict.FAIL, "; ".join(problems), facts, fix)


_SCALES = re.compile(r"(?:scale(?:_inv)?|scales|zeros|qweight|weight_packed|g_idx|absmax|quant_state.*)$")
_PACKED = re.compile(r"(?:weight_scale(?:_inv)?|qweight|weight_packed)$")
_EXCEPTIONS = ("ignore", "modules_to_not_convert", "exclude_modules")
_COPIED = "quantization_config is there"
_SCALED = ("fp8", "compressed-tensors", "gptq", "awq", "modelopt", "modelopt_fp4", "mxfp4", "bitsandbytes")


def _quantised(draft: Draft, tensors: Mapping[str, TensorInfo], facts: dict[str, Any]) -> list[str]:
    """Where quantization_config and the tensors do not go together; a draft may leave every module out of it."""
    held = draft.flat.get("quantization_config")
    method = held.get("quant_method") if isinstance(held, dict) else None
    scaled = [name for name in tensors if _SCALES.search(name)]
    packed = [name for name, info in tensors.items() if _PACKED.search(name) or info.dtype[:2] == "F8"]
    facts["quantization_config"] = {"method": method, "tensors": sorted({*scaled, *packed})[:6]}
    excepted = isinstance(held, dict) and any(held.get(key) for key in _EXCEPTIONS)
    if method in _SCALED and not scaled and not packed and not excepted:
        return [f"{_COPIED} ({method}) and no tensor is quantised: engines would run with scales that nobody set"]
    beside = draft.path.is_dir() and (draft.path / "hf_quant_config.json").is_file()
    if packed and held is None and not beside:
        return [f"{packed[0]} is quantised and the config has no quantization_config: engines would load it as it is"]
    return []


def _fits(draft: Draft, tensors: Mapping[str, TensorInfo], name: str) -> bool:
    """Whether a tensor has the shape its part of the draft would need; a key turned on for another is no fix."""
    fc, shape = tensors.get("fc.weight"), tensors[name].shape
    if fc is None or len(fc.shape) != 2:
        return False
    if name == "fc.bias":
        # The key turns the biases of attention on as well, which would then be random.
        return shape == fc.shape[:1] and any(re.match(_BIASES, other) for other in tensors)
    if name.endswith("_proj.bias"):
        matrix = tensors.get(name[: -len("bias")] + "weight")
        return matrix is not None and shape == matrix.shape[:1]
    if name == "input_norm.weight":
        return shape == fc.shape[1:]
    count = sum(1 for other in tensors if other.startswith("fc_norm."))
    return draft.target_hidden is not None and shape == (draft.target_hidden,) and count * shape[0] == fc.shape[1]


def _is_on(draft: Draft, pair: Pair, keys: tuple[str, ...]) -> bool:
    nested = draft.config.get("eagle_config")
    places = [draft.flat, *([nested] if pair.nested and isinstance(nested, dict) else [])]
    return any(bool(place.get(key)) for place in places for key in keys)


def _pointer(draft: Draft, key: str) -> str:
    nested = draft.config.get("transformer_layer_config")
    return join_pointer(["transformer_layer_config", key] if isinstance(nested, dict) and key in nested else [key])
