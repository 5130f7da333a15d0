"""Which drafts can be run: the tensors and settings each kind has, and by name what is amiss with the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from checks.eagle3.shape import DraftShape, Latent, layer_prefix
from checks.errors import CheckError
from checks.jsonfile import whole
from checks.rotary import UnknownRope, frequencies, latent_frequencies

Sizes = Mapping[str, tuple[int, ...]]
Wanted = tuple[str, tuple[object, ...], bool]
"""A tensor's name, its shape (ANY where nothing else fixes a length), and whether the draft must have it."""

ANY = None

MOST_LAYERS = 16
"""Drafts have one layer, seldom a few; more is the target itself."""

_LAYER = ("midlayer.", "layers.0.")
_IGNORED = ("t2d", "embed_tokens.weight", "mask_hidden")
_LEGACY = ("low", "mid", "high")
_SILU = ("silu", "swish")


class CannotReplay(CheckError):
    """The draft is of a kind whose forward is not computed here; the message names the part."""

    def __init__(self, why: str) -> None:
        super().__init__(f"cannot replay this draft: {why}")


def draft_shape(config: Mapping[str, Any], sizes: Sizes) -> DraftShape:
    """Sizes and switches from the config and the tensors' shapes (by common name). Raises CannotReplay."""
    inner = config.get("transformer_layer_config")
    layer: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    eagle = config.get("eagle_config")
    nested: Mapping[str, Any] = eagle if isinstance(eagle, Mapping) else {}
    if str(layer.get("hidden_act", "silu")) not in _SILU:
        raise CannotReplay(f"activation {layer['hidden_act']!r:.60} is not computed here")
    if "num_attention_heads" not in layer:
        raise CannotReplay("its config has no num_attention_heads")
    layers = _layers(layer, sizes)
    fc = sizes.get("fc.weight", ())
    if len(fc) != 2 or 0 in fc:
        raise CannotReplay(f"fc.weight is {list(fc[:8])}, no matrix" if fc else "it has no fc.weight")
    hidden, width = fc
    heads = _count(layer, "num_attention_heads", 0)
    target_hidden = _count(config, "target_hidden_size", hidden)
    if width % target_hidden:
        raise CannotReplay(f"fc reads {width} values, which is no whole number of states of {target_hidden}")
    latent = _latent(layer, sizes)
    shape = DraftShape(
        hidden=hidden,
        target_hidden=target_hidden,
        slots=width // target_hidden,
        heads=heads,
        kv_heads=heads if latent else _count(layer, "num_key_value_heads", heads),
        head_dim=latent.nope + latent.rope if latent else _count(layer, "head_dim", hidden // heads),
        eps=_epsilon(layer),
        norm_before_residual=bool(config.get("norm_before_residual", nested.get("norm_before_residual", False))),
        norm_output=bool(config.get("norm_output", nested.get("norm_output", False))),
        rope=layer,
        layers=layers,
        latent=latent,
    )
    _fits(shape, sizes)
    if shape.heads % shape.kv_heads:
        raise CannotReplay(f"{shape.heads} heads over {shape.kv_heads} key/value heads")
    _turns(shape)
    return shape


def common_name(stored: str) -> str:
    """The name used here for a tensor of the checkpoint, or "" for one the forward does not read."""
    name = stored[len("model.") :] if stored.startswith("model.") else stored
    if name in _IGNORED or name.endswith("inv_freq"):
        return ""
    for prefix in _LAYER:
        if name.startswith(prefix):
            return layer_prefix(0) + name[len(prefix) :]
    head, _, rest = name.partition(".")
    index, _, part = rest.partition(".")
    if head == "layers" and index.isdecimal() and len(index) < 5 and part:
        return layer_prefix(int(index)) + part
    for i, word in enumerate(_LEGACY):
        if name == f"aux_norm_{word}.weight":
            return f"fc_norm.{i}.weight"
    return "d2t" if name == "draft_id_to_target_id" else name


# -- the config --------------------------------------------------------------------------------------------------------


def _count(config: Mapping[str, Any], key: str, default: int) -> int:
    """A count of the config, `default` where it is absent, null or 0. Raises CannotReplay for what is none."""
    found = whole(config.get(key) or default)
    if found is None and config.get(key) is None:
        raise CannotReplay(f"its config has no {key}")
    if found is None:
        raise CannotReplay(f"{key} is {config.get(key)!r:.60}, not a count")
    return found


def _epsilon(layer: Mapping[str, Any]) -> float:
    value = layer.get("rms_norm_eps", 1e-6)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise CannotReplay(f"rms_norm_eps is {value!r:.60}, not a number that a norm can use")
    return float(value)


def _layers(layer: Mapping[str, Any], sizes: Sizes) -> int:
    """How many layers config and weights agree on. Raises CannotReplay."""
    heads, held = {name.partition(".")[0] for name in sizes}, 1
    while layer_prefix(held)[:-1] in heads:
        held += 1
    said = _count(layer, "num_hidden_layers", held)
    if said != held:
        raise CannotReplay(f"its config says {said} layers, its weights hold {held}")
    if held > MOST_LAYERS:
        raise CannotReplay(f"it has {held} layers, and {MOST_LAYERS} are the most that are run here")
    return held


def _latent(layer: Mapping[str, Any], sizes: Sizes) -> Latent | None:
    """Sizes of latent attention where the weights have it. Raises CannotReplay where the config lacks one."""
    start = f"{layer_prefix(0)}self_attn."
    if f"{start}kv_a_proj_with_mqa.weight" not in sizes:
        return None
    interleaved = layer.get("rope_interleave")
    low = f"{start}q_a_proj.weight" in sizes
    return Latent(
        nope=_count(layer, "qk_nope_head_dim", 0),
        rope=_count(layer, "qk_rope_head_dim", 0),
        value=_count(layer, "v_head_dim", 0),
        query_rank=_count(layer, "q_lora_rank", 0) if low else None,
        key_rank=_count(layer, "kv_lora_rank", 0),
        # DeepSeek's own weights are of neighbours, and so is what trainers and engines do unless told otherwise.
        interleaved=interleaved is None or bool(interleaved),
    )


def _turns(shape: DraftShape) -> None:
    """Raises CannotReplay where the rotary embedding is none that is computed here."""
    try:
        if shape.latent is not None:
            latent_frequencies(shape.latent.rope, shape.rope)
        else:
            frequencies(shape.head_dim, shape.rope)
    except (UnknownRope, KeyError) as error:
        raise CannotReplay(str(error)) from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CannotReplay(f"its rope settings are not the numbers they should be: {error!s:.100}") from error


# -- the tensors -------------------------------------------------------------------------------------------------------


def _fits(shape: DraftShape, sizes: Sizes) -> None:
    """Raises CannotReplay naming the first tensor that is absent, does not fit, or has no place in this draft."""
    wanted = [*_frame(shape, sizes)]
    for index in range(shape.layers):
        wanted += _layer(shape, sizes, index)
    for name, size, needed in wanted:
        found = tuple(sizes.get(name, ()))
        if name not in sizes:
            if needed:
                raise CannotReplay(f"it has no {_shown(name)}")
        elif len(found) != len(size) or any(w not in (ANY, f) for f, w in zip(found, size)) or 0 in found:
            asked = ["any" if length is ANY else length for length in size]
            raise CannotReplay(f"{_shown(name)} is {list(found[:8])}, its config asks {asked}".replace("'", ""))
    known = {name for name, _, _ in wanted}
    extra = [name for name in sizes if name not in known]
    if extra:
        kind = "latent attention" if shape.latent else "the Llama flavour"
        raise CannotReplay(f"{_shown(extra[0])} is no part of {kind}")
    for index in range(1, shape.layers):
        held = [name for name in ("hidden_norm", "input_layernorm") if f"{layer_prefix(index)}{name}.weight" in sizes]
        if len(held) != 1:
            much = "both, of which SGLang reads one and vLLM the other" if held else "neither"
            raise CannotReplay(f"its layer {index} should have hidden_norm or input_layernorm, and has {much}")


def _frame(shape: DraftShape, sizes: Sizes) -> Iterator[Wanted]:
    vocab = (sizes.get("lm_head.weight") or (ANY,))[0]
    yield "fc.weight", (shape.hidden, shape.slots * shape.target_hidden), True
    yield "fc.bias", (shape.hidden,), False
    yield "norm.weight", (shape.hidden,), True
    yield "lm_head.weight", (ANY, shape.hidden), True
    yield "d2t", (vocab,), False
    yield "input_norm.weight", (shape.slots * shape.target_hidden,), False
    if any(name.startswith("fc_norm.") for name in sizes):
        for slot in range(shape.slots):
            yield f"fc_norm.{slot}.weight", (shape.target_hidden,), True


def _layer(shape: DraftShape, sizes: Sizes, index: int) -> Iterator[Wanted]:
    prefix, first, hidden = layer_prefix(index), index == 0, shape.hidden
    inner = (sizes.get(f"{prefix}mlp.gate_proj.weight") or (ANY,))[0]
    for norm, needed in (("input_layernorm", first), ("hidden_norm", first), ("post_attention_layernorm", True)):
        yield f"{prefix}{norm}.weight", (hidden,), needed
    attention = _grouped(shape, first) if shape.latent is None else _low_rank(shape, shape.latent, first)
    for name, size, biased in attention:
        yield f"{prefix}self_attn.{name}.weight", size, True
        if biased:
            yield f"{prefix}self_attn.{name}.bias", size[:1], False
    for name, size in (("gate_proj", (inner, hidden)), ("up_proj", (inner, hidden)), ("down_proj", (hidden, inner))):
        yield f"{prefix}mlp.{name}.weight", size, True
        yield f"{prefix}mlp.{name}.bias", size[:1], False


def _grouped(shape: DraftShape, first: bool) -> Iterator[Wanted]:
    """(name, shape, whether a bias may be) of the projections. The first layer reads twice the width."""
    reads = (2 if first else 1) * shape.hidden
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "q_proj", (query, reads), True
    yield "k_proj", (key, reads), True
    yield "v_proj", (key, reads), True
    yield "o_proj", (shape.hidden, query), True


def _low_rank(shape: DraftShape, latent: Latent, first: bool) -> Iterator[Wanted]:
    """The same of latent attention, where no engine has a bias."""
    reads = (2 if first else 1) * shape.hidden
    if latent.query_rank is None:
        yield "q_proj", (shape.heads * shape.head_dim, reads), False
    else:
        yield "q_a_proj", (latent.query_rank, reads), False
        yield "q_a_layernorm", (latent.query_rank,), False
        yield "q_b_proj", (shape.heads * shape.head_dim, latent.query_rank), False
    yield "kv_a_proj_with_mqa", (latent.key_rank + latent.rope, reads), False
    yield "kv_a_layernorm", (latent.key_rank,), False
    yield "kv_b_proj", (shape.heads * (latent.nope + latent.value), latent.key_rank), False
    yield "o_proj", (shape.hidden, shape.heads * latent.value), False


def _shown(name: str) -> str:
    """A tensor as checkpoints name it."""
    head, _, part = name.partition(".")
    if head == "layer":
        return f"midlayer.{part}"
    return f"layers.{head[len('layer') :]}.{part}" if head.startswith("layer") else name
