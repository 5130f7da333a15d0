"""Random weights in the shapes of a real tiny pair, written as checkpoint folders the engine loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB, DRAFT_VOCAB = 128, 12, 4, 2, 32, 384, 260, 128
SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": INTERMEDIATE,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
}


def write_random_pair(folder: Path, ids: Any = (2, 6, 9), seed: int = 0) -> tuple[Path, Path]:
    """Target and draft folders under `folder`; `ids` None leaves the layer ids out of the draft's config."""
    rng = np.random.default_rng(seed)
    target, draft = folder / "target", folder / "draft"
    target.mkdir(parents=True, exist_ok=True)
    draft.mkdir(parents=True, exist_ok=True)
    save_file(_target_tensors(rng), target / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": LAYERS, **SHAPE}
    (target / "config.json").write_text(json.dumps(config))
    save_file(_draft_tensors(rng), draft / "model.safetensors")
    write_draft_config(draft, ids)
    return target, draft


def write_draft_config(draft: Path, ids: Any) -> None:
    """The draft's config.json with `ids` where SGLang reads them; None leaves them out."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCAB,
        **SHAPE,
    }
    if ids is not None:
        values = list(ids) if isinstance(ids, tuple) else ids
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": values, "use_aux_hidden_state": True}
    (draft / "config.json").write_text(json.dumps(config))


def _layer(rng: np.random.Generator, prefix: str, width: int) -> dict[str, np.ndarray]:
    query, key = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    sizes = {
        "self_attn.q_proj": (query, width),
        "self_attn.k_proj": (key, width),
        "self_attn.v_proj": (key, width),
        "self_attn.o_proj": (HIDDEN, query),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    tensors = {f"{prefix}.{name}.weight": _normal(rng, size) for name, size in sizes.items()}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{prefix}.{norm}.weight"] = (1 + 0.1 * rng.standard_normal(HIDDEN)).astype(np.float32)
    return tensors


def _normal(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return (rng.standard_normal(size) * 0.7 / size[1] ** 0.5).astype(np.float32)


def _target_tensors(rng: np.random.Generator) -> dict[str, np.ndarray]:
    tensors = {
        "model.embed_tokens.weight": (rng.standard_normal((VOCAB, HIDDEN)) * 0.3).astype(np.float32),
        "model.norm.weight": np.ones(HIDDEN, dtype=np.float32),
        "lm_head.weight": _normal(rng, (VOCAB, HIDDEN)),
    }
    for layer in range(LAYERS):
        tensors |= _layer(rng, f"model.layers.{layer}", HIDDEN)
    return tensors


def _draft_tensors(rng: np.random.Generator) -> dict[str, np.ndarray]:
    kept = np.sort(rng.choice(VOCAB, DRAFT_VOCAB, replace=False)).astype(np.int64)
    return {
        "fc.weight": _normal(rng, (HIDDEN, 3 * HIDDEN)),
        "midlayer.hidden_norm.weight": np.ones(HIDDEN, dtype=np.float32),
        "norm.weight": np.ones(HIDDEN, dtype=np.float32),
        "lm_head.weight": _normal(rng, (DRAFT_VOCAB, HIDDEN)),
        "d2t": kept - np.arange(DRAFT_VOCAB, dtype=np.int64),
        **_layer(rng, "midlayer", 2 * HIDDEN),
    }
