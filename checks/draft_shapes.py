"""The tensors an EAGLE-3 draft has by its config: names of both families, and the shape each should have.

Names are told apart by their prefix: `midlayer.` is EAGLE's and SpecForge's, `layers.0.` speculators' and ModelOpt's.
Here both read `layers.0.`; an optional `model.` in front is dropped, as the loaders do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from checks.draft import Draft
from checks.jsonfile import whole
from checks.tensors import TensorInfo

Shape = tuple[int, ...]

# Attention and MLP spelt as one matrix or in latent form: real drafts, whose shapes these formulas do not give.
FUSED = ("qkv_proj", "gate_up_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "fused_qkv_a_proj")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
# The first layer has both; of those after it SGLang reads the one and vLLM the other (`ckpt.names`).
LATER_NORMS = ("input_layernorm", "hidden_norm")

# Written by trainers, read by no engine or by few; nothing is wrong with a checkpoint that has them.
_KNOWN_EXTRA = re.compile(r"^(t2d|d2t|verifier_|mask_hidden|rotary_emb|layers\.\d+\.self_attn\.rotary_emb)|inv_freq$")
_LAYER = re.compile(r"layers\.(\d{1,4})\.")
_PLAIN = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Expected:
    """One tensor's shape by the config. `because` names the keys it follows from."""

    name: str
    shape: Shape
    because: str


@dataclass(frozen=True)
class Sizes:
    """The numbers of a draft config that shapes follow from; None where the config does not say."""

    hidden: int | None
    target_hidden: int | None
    slots: int
    slots_from: str
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    head_dim_given: bool
    intermediate: int | None
    vocab: int | None
    draft_vocab: int | None
    layers: int


def sizes(draft: Draft) -> Sizes:
    """The numbers of the config, speculators' nested layout included. Raises BadConfig."""
    config = draft.flat
    hidden, heads = whole(config.get("hidden_size")), whole(config.get("num_attention_heads"))
    head_dim = whole(config.get("head_dim"))
    slots, slots_from = _slots(draft, config)
    key = "intermediate_size_mlp" if config.get("model_type") == "llama4_text" else "intermediate_size"
    return Sizes(
        hidden=hidden,
        target_hidden=draft.target_hidden,
        slots=slots,
        slots_from=slots_from,
        heads=heads,
        kv_heads=whole(config.get("num_key_value_heads")) or heads,
        head_dim=head_dim or (hidden // heads if hidden and heads else None),
        head_dim_given=head_dim is not None,
        intermediate=whole(config.get(key)),
        vocab=whole(config.get("vocab_size")),
        draft_vocab=draft_vocab(config),
        layers=whole(config.get("num_hidden_layers")) or 1,
    )


def draft_vocab(config: Mapping[str, Any]) -> int | None:
    """The size of the reduced vocabulary: `draft_vocab_size`, or its alias; None where neither is given."""
    return whole(config.get("draft_vocab_size")) or whole(config.get("truncated_vocab_size"))


def expected(size: Sizes, uses_aux: bool, config: Mapping[str, Any]) -> list[Expected]:
    """The tensors such a draft must have. Those whose size the config does not give are left out."""
    rows: list[tuple[str, tuple[int | None, ...], str]] = []
    hidden, wide = size.hidden, 2 * size.hidden if size.hidden else None
    slots = size.slots if uses_aux else 1
    fc_in = slots * size.target_hidden if size.target_hidden else None
    width = (
        f"{slots} slots ({size.slots_from}) of {size.target_hidden}" if uses_aux else "use_aux_hidden_state is false"
    )
    if uses_aux:
        rows.append(("fc.weight", (hidden, fc_in), width))
    for layer in range(size.layers):
        rows += _layer(f"layers.{layer}.", size, wide if layer == 0 else hidden, layer == 0)
    rows.append(("norm.weight", (hidden,), "hidden_size"))
    if size.draft_vocab is not None:
        rows.append(("lm_head.weight", (size.draft_vocab, hidden), "draft_vocab_size, hidden_size"))
    if config.get("norm_before_fc") is True or _nested(config, "norm_before_fc") is True:
        rows.append(("input_norm.weight", (fc_in,), f"norm_before_fc: {width}"))
    if config.get("fc_norm") is True or config.get("use_aux_norm") is True:
        rows += [(f"fc_norm.{slot}.weight", (size.target_hidden,), "fc_norm") for slot in range(slots)]
    # Its own embedding is replaced by the target's, so it may be absent, unless the widths differ.
    if size.hidden != size.target_hidden:
        rows.append(("embed_tokens.weight", (size.vocab, hidden), "vocab_size, hidden_size; not shared, by its width"))
    return [Expected(name, _full(shape), why) for name, shape, why in rows if None not in shape]


def optional(size: Sizes) -> list[Expected]:
    """Tensors that may be absent, and have to fit when they are there."""
    if size.hidden is None:
        return []
    rows = [
        Expected(f"layers.{layer}.{norm}.weight", (size.hidden,), "hidden_size")
        for layer in range(1, size.layers)
        for norm in LATER_NORMS
    ]
    if size.vocab is not None:
        rows.append(Expected("embed_tokens.weight", (size.vocab, size.hidden), "vocab_size, hidden_size"))
    return rows


def normal_names(info: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Tensors under the one spelling used here. Raises BadTensors where a shard's header is damaged."""
    out: dict[str, TensorInfo] = {}
    for name in info:
        out.setdefault(normal_name(name), info[name])
    return out


def normal_name(name: str) -> str:
    """`model.midlayer.x` as `layers.0.x`; the three old names of the per-slot norms by slot."""
    name = name[len("model.") :] if name.startswith("model.") else name
    if name.startswith("midlayer."):
        return "layers.0." + name[len("midlayer.") :]
    old = {"aux_norm_low.": "fc_norm.0.", "aux_norm_mid.": "fc_norm.1.", "aux_norm_high.": "fc_norm.2."}
    for before, after in old.items():
        if name.startswith(before):
            return after + name[len(before) :]
    return name


def family(names: Mapping[str, TensorInfo]) -> str:
    """Whose names these are: `midlayer.*`, `layers.0.*`, both, or neither."""
    plain = {name[len("model.") :] if name.startswith("model.") else name for name in names}
    found = [prefix for prefix in ("midlayer.", "layers.0.") if any(name.startswith(prefix) for name in plain)]
    return " and ".join(prefix + "*" for prefix in found) or "unknown"


def layers_in(names: Iterable[str]) -> int:
    """The number of decoder layers these (normal) names speak of, 0 without any."""
    return len({found.group(1) for name in names if (found := _LAYER.match(name))})


def judgeable(info: TensorInfo) -> bool:
    """Whether its shape is that of the matrix: quantised weights are packed."""
    return info.dtype in _PLAIN or info.dtype.startswith("F8")


def is_extra(name: str, known: set[str]) -> bool:
    """Whether engines skip a tensor of this name: neither expected, nor optional, nor a trainer's own."""
    if name in known or _KNOWN_EXTRA.search(name):
        return False
    if name in ("embed_tokens.weight", "lm_head.weight", "input_norm.weight") or name.startswith("fc_norm."):
        return False
    return not (name.endswith(".bias") and name[: -len("bias")] + "weight" in known)


def _layer(prefix: str, size: Sizes, width: int | None, first: bool) -> list[tuple[str, tuple[int | None, ...], str]]:
    hidden, mlp = size.hidden, size.intermediate
    query = size.heads * size.head_dim if size.heads and size.head_dim else None
    keys = size.kv_heads * size.head_dim if size.kv_heads and size.head_dim else None
    reads = "2 x hidden_size" if first else "hidden_size"
    dims = "head_dim" if size.head_dim_given else "hidden_size / num_attention_heads, for want of head_dim"
    many, few = f"num_attention_heads x {dims}", f"num_key_value_heads x {dims}"
    norms = [*(LATER_NORMS if first else ()), "post_attention_layernorm"]
    return [
        *((f"{prefix}{norm}.weight", (hidden,), "hidden_size") for norm in norms),
        (f"{prefix}self_attn.q_proj.weight", (query, width), f"{many}, {reads}"),
        (f"{prefix}self_attn.k_proj.weight", (keys, width), f"{few}, {reads}"),
        (f"{prefix}self_attn.v_proj.weight", (keys, width), f"{few}, {reads}"),
        (f"{prefix}self_attn.o_proj.weight", (hidden, query), f"hidden_size, {many}"),
        (f"{prefix}mlp.gate_proj.weight", (mlp, hidden), "intermediate_size, hidden_size"),
        (f"{prefix}mlp.up_proj.weight", (mlp, hidden), "intermediate_size, hidden_size"),
        (f"{prefix}mlp.down_proj.weight", (hidden, mlp), "hidden_size, intermediate_size"),
    ]


def _slots(draft: Draft, config: Mapping[str, Any]) -> tuple[int, str]:
    """How many states the config says `fc` reads, and by what: the order is SGLang's, 0.5.12 and later."""
    given = whole(config.get("num_aux_hidden_states"))
    if given:
        return given, "num_aux_hidden_states"
    ids = draft.aux_ids.value
    if isinstance(ids, list) and ids and not any(isinstance(item, (list, dict)) for item in ids):
        return len(ids), f"{len(ids)} ids"
    return 3, "the default"


def _nested(config: Mapping[str, Any], key: str) -> object:
    held = config.get("eagle_config")
    return held.get(key) if isinstance(held, dict) else None


def _full(shape: tuple[int | None, ...]) -> Shape:
    return tuple(length for length in shape if length is not None)
