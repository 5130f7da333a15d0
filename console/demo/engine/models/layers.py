"""The blocks both models share: RMS norm, rotary positions, the key/value cache, attention and the gated MLP.

Rows are tokens. Weights are stored transposed, [in, out], so that a layer is one `x @ w`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from console.demo.engine.checkpoint import Array, LlamaShape, TensorSource

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Root-mean-square norm of the rows of `x` [T, H], scaled by `weight` [H]."""
    square = np.einsum("th,th->t", x, x)
    scale = 1.0 / np.sqrt(square / x.shape[1] + eps)
    normed: Floats = x * scale[:, None].astype(x.dtype) * weight
    return normed


def matrix(weight: Array, dtype: DTypeLike) -> Floats:
    """A checkpoint matrix [out, in] as a contiguous [in, out] array of `dtype`."""
    return np.ascontiguousarray(weight.T, dtype=dtype)


class Rotary:
    """Rotary position table for positions 0 … length-1 (rotate-half layout, as Hugging Face Llama)."""

    def __init__(self, shape: LlamaShape, length: int, dtype: DTypeLike) -> None:
        inverse = shape.rope_theta ** (-np.arange(0, shape.head_dim, 2, dtype=np.float64) / shape.head_dim)
        angle = np.outer(np.arange(length, dtype=np.float64), inverse)
        self.cos: Floats = np.concatenate([np.cos(angle)] * 2, axis=1).astype(dtype)
        self.sin: Floats = np.concatenate([-np.sin(angle), np.sin(angle)], axis=1).astype(dtype)

    def rotate(self, x: Floats, start: int) -> Floats:
        """`x` [T, heads, head_dim] rotated to positions start … start+T-1."""
        rows, half = x.shape[0], x.shape[2] // 2
        cos, sin = self.cos[start : start + rows, None], self.sin[start : start + rows, None]
        swapped = np.concatenate((x[:, :, half:], x[:, :, :half]), axis=2)
        rotated: Floats = x * cos + swapped * sin
        return rotated


class KVCache:
    """Keys and values of every layer, [layers, kv_heads, capacity, head_dim]; rows past `length` are free."""

    def __init__(self, shape: LlamaShape, layers: int, capacity: int, dtype: DTypeLike) -> None:
        size = (layers, shape.kv_heads, capacity, shape.head_dim)
        self.keys: Floats = np.zeros(size, dtype=dtype)
        self.values: Floats = np.zeros(size, dtype=dtype)
        self.capacity = capacity
        self.length = 0

    @property
    def nbytes(self) -> int:
        """Bytes of keys, which equal the bytes of values."""
        return int(self.keys.nbytes)


def causal_bias(start: int, rows: int, dtype: DTypeLike) -> Floats | None:
    """Additive mask [rows, start+rows] that hides later positions; None for a single row, which sees all."""
    if rows == 1:
        return None
    bias: Floats = np.triu(np.full((rows, start + rows), -np.inf, dtype=dtype), k=start + 1)
    return bias


class DecoderLayer:
    """Attention and MLP weights of one Llama layer; the caller owns norms' inputs and the residual."""

    def __init__(self, source: TensorSource, prefix: str, shape: LlamaShape, width: int, dtype: DTypeLike) -> None:
        """`width` is what q, k and v read: hidden size in the target, twice that in an EAGLE-3 draft."""
        hidden, query, key = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self.shape = shape
        self.input_norm: Floats = source.take(f"{prefix}.input_layernorm.weight", (hidden,)).astype(dtype)
        self.post_norm: Floats = source.take(f"{prefix}.post_attention_layernorm.weight", (hidden,)).astype(dtype)
        rows = {"q": query, "k": key, "v": key}
        qkv = [source.take(f"{attention}.{part}_proj.weight", (n, width)) for part, n in rows.items()]
        self.qkv = matrix(np.concatenate(qkv), dtype)
        self.output = matrix(source.take(f"{attention}.o_proj.weight", (hidden, query)), dtype)
        both = [source.take(f"{mlp}.{part}_proj.weight", (shape.intermediate, hidden)) for part in ("gate", "up")]
        self.gate_up = matrix(np.concatenate(both), dtype)
        self.down = matrix(source.take(f"{mlp}.down_proj.weight", (hidden, shape.intermediate)), dtype)

    def attend(self, x: Floats, cache: KVCache, layer: int, start: int, rotary: Rotary, bias: Floats | None) -> Floats:
        """Attention output [T, H] of rows `x` [T, width] at positions start …; keys and values enter the cache."""
        shape, rows, end = self.shape, x.shape[0], start + x.shape[0]
        heads, kv, dim = shape.heads, shape.kv_heads, shape.head_dim
        group = heads // kv
        mixed = (x @ self.qkv).reshape(rows, heads + 2 * kv, dim)
        turned = rotary.rotate(mixed[:, : heads + kv], start)
        cache.keys[layer, :, start:end] = turned[:, heads:].transpose(1, 0, 2)
        cache.values[layer, :, start:end] = mixed[:, heads + kv :].transpose(1, 0, 2)
        query = (turned[:, :heads] * dim**-0.5).reshape(rows, kv, group, dim).transpose(1, 2, 0, 3)
        scores = query.reshape(kv, group * rows, dim) @ cache.keys[layer, :, :end].transpose(0, 2, 1)
        if bias is not None:
            scores.reshape(kv, group, rows, end)[...] += bias
        scores -= scores.max(axis=2, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=2, keepdims=True)
        mixed_values = (scores @ cache.values[layer, :, :end]).reshape(kv, group, rows, dim)
        out: Floats = mixed_values.transpose(2, 0, 1, 3).reshape(rows, heads * dim) @ self.output
        return out

    def mlp(self, x: Floats) -> Floats:
        """The gated MLP on rows [T, H]: down(silu(gate) * up)."""
        both = x @ self.gate_up
        gate, up = both[:, : self.shape.intermediate], both[:, self.shape.intermediate :]
        # silu through tanh: exp would overflow on large negative gates
        out: Floats = (0.5 * gate * (1.0 + np.tanh(0.5 * gate)) * up) @ self.down
        return out
