"""The draft: a one-layer EAGLE-3 head for a Llama target, with SGLang's tensor names and its forward.

Per row: h = fc(captured states), or the draft's own output fed back; z = [norm(embedding of the next token), norm(h)];
r = h + attention(z); o = r + mlp(norm(r)); logits = lm_head(norm(o)); o is what is fed back, before any norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from console.demo.engine.checkpoint import LlamaShape, TensorSource
from console.demo.engine.errors import CheckpointError
from console.demo.engine.models.layers import (
    DecoderLayer,
    Floats,
    Ints,
    KVCache,
    Rotary,
    causal_bias,
    matrix,
    rms_norm,
)

DTYPE = np.float32


@dataclass(frozen=True, slots=True)
class DraftOutput:
    """`hidden` [T, H] is the draft's residual output before its norm; `logits` [DV] belong to the last row."""

    hidden: Floats
    logits: Floats


def aux_layer_ids(config: dict[str, Any]) -> Any:
    """What the draft's config names as states to capture: the value under `eagle_config`, unchecked, or None.

    As in SGLang, a missing or misplaced key is not an error: the target then falls back to its default layers.
    """
    eagle = config.get("eagle_config")
    if not isinstance(eagle, dict):
        return None
    return eagle.get("eagle_aux_hidden_state_layer_ids")


def aux_count(config: dict[str, Any]) -> int:
    """How many states fc is built for: `num_aux_hidden_states`, else the number of configured ids, else 3."""
    declared = config.get("num_aux_hidden_states")
    if declared is not None:
        return int(declared)
    ids = aux_layer_ids(config)
    return len(ids) if ids else 3


class LlamaForCausalLMEagle3:
    """The EAGLE-3 draft; its embedding is always the target's, as SGLang shares it."""

    def __init__(
        self, source: TensorSource, config: dict[str, Any], shape: LlamaShape, embedding: Floats, positions: int
    ) -> None:
        """`embedding` [V, H] is the target's.

        Raises CheckpointError for what this engine does not compute, AssertionError on a shape the config contradicts.
        """
        eagle = config.get("eagle_config")
        nested = eagle if isinstance(eagle, dict) else {}
        for key in ("fc_norm", "use_aux_norm", "norm_output", "norm_before_fc"):
            if config.get(key) or nested.get(key):
                raise CheckpointError(f"draft config: {key} is not supported by the demo engine")
        if nested.get("use_aux_hidden_state", True) is not True:
            raise CheckpointError("draft config: use_aux_hidden_state false is not supported by the demo engine")
        if shape.num_hidden_layers != 1:
            raise CheckpointError(
                f"EAGLE3 currently only supports 1 layer; the draft config says {shape.num_hidden_layers}"
            )
        if "draft_vocab_size" not in config:
            raise AttributeError("'LlamaConfig' object has no attribute 'draft_vocab_size'")
        hidden = shape.hidden
        target_hidden = int(config.get("target_hidden_size", hidden))
        if target_hidden != hidden or embedding.shape != (shape.vocab, hidden):
            raise CheckpointError(
                f"the draft is {hidden} wide over {shape.vocab} tokens, the target {embedding.shape[1]} over "
                f"{embedding.shape[0]}; the demo engine shares the embedding and needs them equal"
            )
        prefix = "midlayer" if "midlayer.input_layernorm.weight" in source else "layers.0"
        self.shape = shape
        self.embed_tokens: Floats = embedding.astype(DTYPE)
        self.fc = matrix(source.take("fc.weight", (hidden, aux_count(config) * target_hidden)), DTYPE)
        self.layer = DecoderLayer(source, prefix, shape, 2 * hidden, DTYPE)
        self.hidden_norm: Floats = source.take(f"{prefix}.hidden_norm.weight", (hidden,)).astype(DTYPE)
        self.norm: Floats = source.take("norm.weight", (hidden,)).astype(DTYPE)
        draft_vocab = int(config["draft_vocab_size"] or shape.vocab)
        self.lm_head = matrix(source.take("lm_head.weight", (draft_vocab, hidden)), DTYPE)
        offsets = source.take("d2t", (draft_vocab,)) if "d2t" in source else np.zeros(draft_vocab, dtype=np.int64)
        self.hot_token_id: Ints = np.arange(draft_vocab, dtype=np.int64) + offsets.astype(np.int64)
        if self.hot_token_id.min() < 0 or self.hot_token_id.max() >= shape.vocab:
            raise CheckpointError(f"d2t leads outside the vocabulary of {shape.vocab}; it must hold offsets, not ids")
        self.rotary = Rotary(shape, positions, DTYPE)

    def new_cache(self, capacity: int) -> KVCache:
        """An empty key/value cache for `capacity` positions."""
        return KVCache(self.shape, 1, capacity, DTYPE)

    def project(self, aux: Floats) -> Floats:
        """fc of the captured states [T, m*H] -> [T, H]; raises RuntimeError with torch's text on another width."""
        if aux.shape[1] != self.fc.shape[0]:
            raise RuntimeError(
                f"mat1 and mat2 shapes cannot be multiplied ({aux.shape[0]}x{aux.shape[1]} and "
                f"{self.fc.shape[0]}x{self.fc.shape[1]})"
            )
        projected: Floats = aux.astype(DTYPE) @ self.fc
        return projected

    def forward(self, ids: Ints, hidden: Floats, cache: KVCache) -> DraftOutput:
        """Run rows (token `ids` [T], `hidden` [T, H]) at the next T positions of the cache."""
        start, rows, eps = cache.length, len(ids), self.shape.rms_eps
        embedded = rms_norm(self.embed_tokens[ids], self.layer.input_norm, eps)
        both = np.concatenate((embedded, rms_norm(hidden, self.hidden_norm, eps)), axis=1)
        residual = hidden + self.layer.attend(both, cache, 0, start, self.rotary, causal_bias(start, rows, DTYPE))
        out = residual + self.layer.mlp(rms_norm(residual, self.layer.post_norm, eps))
        cache.length = start + rows
        logits = rms_norm(out[-1:], self.norm, eps) @ self.lm_head
        return DraftOutput(hidden=out, logits=logits[0])
