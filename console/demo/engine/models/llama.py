"""The target: a Llama in numpy that captures the residual stream where the draft's config asks for it.

All arithmetic is float64. A token's logits then agree to about 1e-13 whether it was computed alone or in a chunk, so
greedy output with speculation equals greedy output without; in float32 two near-equal logits could swap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from console.demo.engine.checkpoint import LlamaShape, TensorSource
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

DTYPE = np.float64
BLOCK = 256
"""Rows per pass over a long prompt: bounds the score matrix, which grows with rows times positions."""


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What one forward pass of T tokens gives.

    `aux` is [T, m*H]: the captured states side by side in ascending layer order, or [T, 0] when nothing is captured.
    `final` is N, the final norm of R_n, [T, H]: what lm_head reads.
    """

    aux: Floats
    final: Floats


class LlamaModel:
    """Embedding, decoder layers and final norm."""

    def __init__(self, source: TensorSource, shape: LlamaShape, positions: int) -> None:
        self.shape = shape
        self.embed_tokens: Floats = source.take("model.embed_tokens.weight", (shape.vocab, shape.hidden)).astype(DTYPE)
        self.layers = [
            DecoderLayer(source, f"model.layers.{i}", shape, shape.hidden, DTYPE)
            for i in range(shape.num_hidden_layers)
        ]
        self.norm: Floats = source.take("model.norm.weight", (shape.hidden,)).astype(DTYPE)
        self.rotary = Rotary(shape, positions, DTYPE)
        self.layers_to_capture: list[int] = []

    def forward(self, ids: Ints, cache: KVCache, states: list[Floats] | None = None) -> TargetOutput:
        """Run `ids` [T] after the `cache.length` tokens already cached; the cache grows by T.

        `states`, when given, receives R_0 … R_n of these rows, [T, H] each, none of them normed.
        """
        start, rows, eps = cache.length, len(ids), self.shape.rms_eps
        bias = causal_bias(start, rows, DTYPE)
        hidden = self.embed_tokens[ids]
        aux: list[Floats] = []
        for i, layer in enumerate(self.layers):
            if i in self.layers_to_capture:
                aux.append(hidden)
            if states is not None:
                states.append(hidden)
            normed = rms_norm(hidden, layer.input_norm, eps)
            hidden = hidden + layer.attend(normed, cache, i, start, self.rotary, bias)
            hidden = hidden + layer.mlp(rms_norm(hidden, layer.post_norm, eps))
        if states is not None:
            states.append(hidden)
        cache.length = start + rows
        captured = np.concatenate(aux, axis=1) if aux else np.zeros((rows, 0), dtype=DTYPE)
        return TargetOutput(aux=captured, final=rms_norm(hidden, self.norm, eps))


class LlamaForCausalLM:
    """The target with its lm_head, and the rule that turns a draft's layer ids into loop indices."""

    def __init__(self, source: TensorSource, shape: LlamaShape, positions: int) -> None:
        self.config = shape
        self.model = LlamaModel(source, shape, positions)
        head = "model.embed_tokens.weight" if shape.tied else "lm_head.weight"
        self.lm_head = matrix(source.take(head, (shape.vocab, shape.hidden)), DTYPE)
        self.capture_aux_hidden_states = False

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
        """Choose the states the draft is fed; SGLang's rule for Llama.

        The forward loop captures at the entry of layer i, which is R_i. An id names the layer whose *output* is meant,
        hence the plus one. Ids reach this method unchecked, as in SGLang: the id of the last layer gives an index that
        the loop never meets, and -1 gives the embedding output.
        """
        self.capture_aux_hidden_states = True
        if layer_ids is None:
            num_layers = self.config.num_hidden_layers
            self.model.layers_to_capture = [2, num_layers // 2, num_layers - 3]
        else:
            self.model.layers_to_capture = [val + 1 for val in layer_ids]

    def new_cache(self, capacity: int) -> KVCache:
        """An empty key/value cache for `capacity` tokens."""
        return KVCache(self.config, self.config.num_hidden_layers, capacity, DTYPE)

    def forward(self, ids: Ints, cache: KVCache) -> TargetOutput:
        """Run `ids` [T] in blocks after what is cached; same values as one pass, bounded memory."""
        parts = [self.model.forward(ids[i : i + BLOCK], cache) for i in range(0, len(ids), BLOCK)]
        if len(parts) == 1:
            return parts[0]
        return TargetOutput(
            aux=np.concatenate([part.aux for part in parts]), final=np.concatenate([part.final for part in parts])
        )

    def greedy(self, final: Floats) -> Ints:
        """The most likely next token of each row of `final` [T, H]; the lowest id wins an exact tie."""
        tokens: Ints = np.argmax(final @ self.lm_head, axis=1)
        return tokens

    def all_states(self, ids: Ints) -> Floats:
        """R_0 … R_n of `ids` run on their own, [S, n+1, H]; R_n is taken before the final norm."""
        cache = self.new_cache(len(ids))
        blocks: list[Floats] = []
        for i in range(0, len(ids), BLOCK):
            states: list[Floats] = []
            self.model.forward(ids[i : i + BLOCK], cache, states)
            blocks.append(np.stack(states, axis=1))
        return np.concatenate(blocks)
