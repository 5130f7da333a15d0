"""Running a draft: h_0 from the states, then its layers step by step, teacher forced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from checks.eagle3.attention import Array, GroupedAttention, LatentAttention, Parts, attend
from checks.eagle3.shape import DraftShape, layer_prefix

CHUNK = 128
"""Anchors at a time: attention scores are [heads, CHUNK, rows] float32."""


class Drafter:
    """A draft ready to run. `weights` are float32 arrays of the module `xp` (numpy, or torch in its place).

    Names are those of the checkpoint without `model.`, and with the layers' tensors under `layer.`, `layer1.` and so
    on. Everything is computed in float32; a row is a token; matrices are [out, in] as in the checkpoint.
    """

    def __init__(self, shape: DraftShape, weights: Mapping[str, Array], xp: Any = np) -> None:
        self.shape = shape
        self._parts = Parts(weights, xp, shape.eps)
        self._w, self._xp = self._parts.weights, xp
        self._layers = [_Layer(self._parts, index, shape) for index in range(shape.layers)]
        offsets = weights.get("d2t")
        rows = int(self._w["lm_head.weight"].shape[0])
        ids = np.arange(rows, dtype=np.int64)
        self._token_of = ids if offsets is None else ids + np.asarray(offsets).astype(np.int64)

    def with_shape(self, shape: DraftShape) -> Drafter:
        """The same weights under another shape."""
        return Drafter(shape, self._w, self._xp)

    @property
    def cost(self) -> int:
        """Floating-point operations of one step of one anchor, attention left out."""
        return 2 * sum(int(w.shape[0]) * int(w.shape[1]) for w in self._w.values() if len(w.shape) == 2)

    def fuse(self, aux: Array) -> Array:
        """h_0 [T, H] from the states side by side [T, m*Ht]: the optional norms, then `fc`."""
        xp, m, wide = self._xp, self.shape.slots, self.shape.target_hidden
        with np.errstate(all="ignore"):
            if "fc_norm.0.weight" in self._w:
                blocks = [aux[:, i * wide : (i + 1) * wide] for i in range(m)]
                normed = [self._parts.norm(block, f"fc_norm.{i}") for i, block in enumerate(blocks)]
                aux = xp.concatenate(normed, axis=1)
            if "input_norm.weight" in self._w:
                aux = self._parts.norm(aux, "input_norm")
            return self._parts.linear(aux, "fc")

    def predict(self, fused: Array, embedded: Array, steps: int, first: int, last: int) -> np.ndarray:
        """Tokens the draft proposes, teacher forced: [steps, last - first] int64, ids of the target's vocabulary.

        `fused` [T, H] is h_0 of rows 0 … T-1, `embedded` [E, H] the embeddings of the same text. The anchors are rows
        first … last-1: step j at anchor t reads the embedding of token t+1+j and proposes token t+2+j, so E must be
        at least last + steps. Rows before `first` are context for attention only.
        """
        out = np.zeros((steps, last - first), dtype=np.int64)
        # Weights that are no numbers are the business of ckpt.numbers; here they only make wrong proposals.
        with np.errstate(all="ignore"):
            for start, logits in self._chunks(fused, embedded, steps, first, last):
                for j, row in enumerate(logits):
                    best = np.asarray(self._xp.argmax(row, axis=-1))
                    out[j, start - first : start - first + len(best)] = self._token_of[best]
        return out

    def unroll(
        self, fused: Array, embedded: Array, steps: int, first: int, last: int
    ) -> Iterator[tuple[int, list[Array]]]:
        """Yield (row of the first anchor, [logits [A, DV] per step]) for chunks of anchors, low to high.

        Keys of step 0 are visible causally; keys of a later step only to their own anchor, for they stand for the
        tokens this anchor drafted. Positions of step j are t + j.
        """
        for start, logits in self._chunks(fused, embedded, steps, first, last):
            yield start, list(logits)

    def _chunks(
        self, fused: Array, embedded: Array, steps: int, first: int, last: int
    ) -> Iterator[tuple[int, Iterator[Array]]]:
        if len(embedded) < last + steps:
            raise ValueError(f"{len(embedded)} embedded rows do not reach step {steps} of anchor {last - 1}")
        contexts = self._contexts(fused[:last], embedded)
        for start in range(first, last, CHUNK):
            stop = min(start + CHUNK, last)
            seen = [(keys[:, :, :stop], values[:, :stop]) for keys, values in contexts]
            yield start, self._draft(fused, embedded, steps, (start, stop), seen)

    def _contexts(self, fused: Array, embedded: Array) -> list[tuple[Array, Array]]:
        """Per layer the step-0 keys [kv, D, T] and values [kv, T, Dv] of every row."""
        xp, hidden, out = self._xp, fused, []
        for layer in self._layers:
            keys, values, read = [], [], []
            for start in range(0, len(hidden), CHUNK):
                stop = min(start + CHUNK, len(hidden))
                z, residual = layer.read(hidden[start:stop], embedded[start + 1 : stop + 1])
                key, value = layer.attention.key_value(z, np.arange(start, stop))
                keys.append(key)
                values.append(value)
                read.append((start, z, residual))
            context = (
                xp.moveaxis(xp.concatenate(keys, axis=0), 0, 2),
                xp.moveaxis(xp.concatenate(values, axis=0), 0, 1),
            )
            out.append(context)
            if layer is not self._layers[-1]:
                hidden = xp.concatenate([layer.run(*piece, context) for piece in read], axis=0)
        return out

    def _draft(
        self,
        fused: Array,
        embedded: Array,
        steps: int,
        rows: tuple[int, int],
        contexts: Sequence[tuple[Array, Array]],
    ) -> Iterator[Array]:
        """Logits [A, DV] of one step after the other."""
        start, stop = rows
        hidden = fused[start:stop]
        own: list[list[tuple[Array, Array]]] = [[] for _ in self._layers]
        for j in range(steps):
            positions = np.arange(start, stop) + j
            for layer, context, mine in zip(self._layers, contexts, own):
                z, residual = layer.read(hidden, embedded[start + 1 + j : stop + 1 + j])
                if j > 0:
                    key, value = layer.attention.key_value(z, positions)
                    mine.append((self._xp.moveaxis(key, 0, 1), self._xp.moveaxis(value, 0, 1)))
                hidden = layer.run(start, z, residual, context, j, mine)
            normed = self._parts.norm(hidden, "norm")
            yield self._parts.linear(normed, "lm_head")
            hidden = normed if self.shape.norm_output else hidden


class _Layer:
    """A decoder layer. The first reads embedding and hidden state side by side, those after it only the hidden one."""

    def __init__(self, parts: Parts, index: int, shape: DraftShape) -> None:
        self._parts, self._prefix, self._first = parts, layer_prefix(index), index == 0
        self._norm_before_residual = shape.norm_before_residual
        # One norm under two names: trainers keep transformers' (speculators, ModelOpt), SGLang reads the other.
        named = [f"{self._prefix}{name}" for name in ("hidden_norm", "input_layernorm")]
        self._norm = next((name for name in named if f"{name}.weight" in parts.weights), named[0])
        self.attention: GroupedAttention | LatentAttention = (
            GroupedAttention(parts, self._prefix, shape)
            if shape.latent is None
            else LatentAttention(parts, self._prefix, shape, shape.latent)
        )

    def read(self, hidden: Array, embedded: Array) -> tuple[Array, Array]:
        """What attention reads, [A, 2H] in the first layer and [A, H] after it, and the residual [A, H].

        In the first layer the token's embedding comes first, then the hidden state, each normed.
        """
        normed = self._parts.norm(hidden, self._norm)
        if not self._first:
            return normed, hidden
        token = self._parts.norm(embedded, f"{self._prefix}input_layernorm")
        z = self._parts.xp.concatenate([token, normed], axis=1)
        return z, normed if self._norm_before_residual else hidden

    def run(
        self,
        start: int,
        z: Array,
        residual: Array,
        context: tuple[Array, Array],
        step: int = 0,
        own: Sequence[tuple[Array, Array]] = (),
    ) -> Array:
        """What the layer gives [A, H] for rows from `start` on, at positions `step` further."""
        parts, query = self._parts, self.attention.query(z, np.arange(start, start + len(z)) + step)
        attended = attend(parts.xp, query, context, list(own), start)
        residual = residual + parts.linear(attended, f"{self._prefix}self_attn.o_proj")
        return residual + self._mlp(parts.norm(residual, f"{self._prefix}post_attention_layernorm"))

    def _mlp(self, x: Array) -> Array:
        gate = self._parts.linear(x, f"{self._prefix}mlp.gate_proj")
        gate = gate / (1.0 + self._parts.xp.exp(-gate))
        return self._parts.linear(
            gate * self._parts.linear(x, f"{self._prefix}mlp.up_proj"), f"{self._prefix}mlp.down_proj"
        )
