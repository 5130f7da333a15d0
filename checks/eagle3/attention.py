"""Attention of a draft: queries, keys and values from grouped or latent projections, and one softmax over all steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from checks.eagle3.shape import DraftShape, Latent
from checks.rotary import latent_magnitude, latent_table, rotary_table

Array = Any
"""A numpy array or a torch tensor: the code below uses only what the two share."""


class Parts:
    """The weights by name, and the two things done with most of them."""

    def __init__(self, weights: Mapping[str, Array], xp: Any, eps: float) -> None:
        self.weights = dict(weights)
        self.xp = xp
        self._eps = eps

    def norm(self, x: Array, name: str) -> Array:
        """RMS norm of rows [A, H] by the weight of this name."""
        square = (x * x).sum(-1)[..., None] / x.shape[-1]
        return x / self.xp.sqrt(square + self._eps) * self.weights[f"{name}.weight"]

    def linear(self, x: Array, name: str) -> Array:
        """Rows [A, in] through the matrix [out, in] of this name, and its bias where there is one."""
        out = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return out if bias is None else out + bias


class GroupedAttention:
    """Projections of the Llama flavour: kv heads, each shared by a group of query heads."""

    def __init__(self, parts: Parts, prefix: str, shape: DraftShape) -> None:
        self._parts, self._prefix, self._shape = parts, f"{prefix}self_attn.", shape

    def query(self, z: Array, positions: np.ndarray) -> Array:
        """[kv, group, A, D], scaled."""
        shape, xp = self._shape, self._parts.xp
        query = self._parts.linear(z, f"{self._prefix}q_proj").reshape(len(z), shape.heads, shape.head_dim)
        query = self._turned(query, positions) * shape.head_dim**-0.5
        grouped = query.reshape(len(z), shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim)
        return xp.moveaxis(grouped, 0, 2)

    def key_value(self, z: Array, positions: np.ndarray) -> tuple[Array, Array]:
        """Each [A, kv, D]."""
        size = (len(z), self._shape.kv_heads, self._shape.head_dim)
        key = self._turned(self._parts.linear(z, f"{self._prefix}k_proj").reshape(size), positions)
        return key, self._parts.linear(z, f"{self._prefix}v_proj").reshape(size)

    def _turned(self, x: Array, positions: np.ndarray) -> Array:
        table = rotary_table(positions, self._shape.head_dim, self._shape.rope)
        return turned(self._parts.xp, x, table, interleaved=False)


class LatentAttention:
    """Projections of DeepSeek's multi-head latent attention, written out head by head.

    Keys and values are projected up from one latent a token, and every head has the same turned part of the key
    (DeepSeek-V2, arXiv 2405.04434, section 2.1; transformers' `modeling_deepseek_v3`). Engines multiply the upward
    matrices into their neighbours; what comes out is the same.
    """

    def __init__(self, parts: Parts, prefix: str, shape: DraftShape, latent: Latent) -> None:
        self._parts, self._prefix, self._shape, self._latent = parts, f"{prefix}self_attn.", shape, latent
        # yarn's magnitude of all dimensions goes into the softmax, once for the query and once for the key.
        self._scale = shape.head_dim**-0.5 * latent_magnitude(shape.rope) ** 2

    def query(self, z: Array, positions: np.ndarray) -> Array:
        """[heads, 1, A, nope + rope], scaled."""
        parts, xp, nope = self._parts, self._parts.xp, self._latent.nope
        if self._latent.query_rank is None:
            query = parts.linear(z, f"{self._prefix}q_proj")
        else:
            latent = parts.norm(parts.linear(z, f"{self._prefix}q_a_proj"), f"{self._prefix}q_a_layernorm")
            query = parts.linear(latent, f"{self._prefix}q_b_proj")
        query = query.reshape(len(z), self._shape.heads, self._shape.head_dim)
        query = xp.concatenate([query[..., :nope], self._turned(query[..., nope:], positions)], axis=-1)
        return xp.moveaxis(query * self._scale, 0, 1)[:, None]

    def key_value(self, z: Array, positions: np.ndarray) -> tuple[Array, Array]:
        """Keys [A, heads, nope + rope] and values [A, heads, value]."""
        parts, sizes, heads = self._parts, self._latent, self._shape.heads
        down = parts.linear(z, f"{self._prefix}kv_a_proj_with_mqa")
        latent = parts.norm(down[:, : sizes.key_rank], f"{self._prefix}kv_a_layernorm")
        up = parts.linear(latent, f"{self._prefix}kv_b_proj").reshape(len(z), heads, sizes.nope + sizes.value)
        shared = self._turned(down[:, None, sizes.key_rank :], positions)
        shared = parts.xp.broadcast_to(shared, (len(z), heads, sizes.rope))
        return parts.xp.concatenate([up[..., : sizes.nope], shared], axis=-1), up[..., sizes.nope :]

    def _turned(self, x: Array, positions: np.ndarray) -> Array:
        table = latent_table(positions, self._latent.rope, self._shape.rope)
        return turned(self._parts.xp, x, table, self._latent.interleaved)


def turned(xp: Any, x: Array, table: tuple[np.ndarray, np.ndarray], interleaved: bool) -> Array:
    """x [A, heads, D] turned by (cos, sin), each [A, D]; its halves are pairs, or its neighbours are.

    Neighbours come out as halves. Queries and keys do so alike, and a product of the two does not see it.
    """
    cos, sin = (xp.asarray(one)[:, None] for one in table)
    if interleaved:
        x = xp.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
    half = x.shape[-1] // 2
    return x * cos + xp.concatenate([-x[..., half:], x[..., :half]], axis=-1) * sin


def attend(xp: Any, query: Array, context: tuple[Array, Array], own: list[tuple[Array, Array]], start: int) -> Array:
    """[A, heads*D]: one softmax over the causal step-0 keys and this anchor's own later keys.

    `query` [kv, group, A, D] of rows start … start+A-1; `context` keys [kv, D, T] and values [kv, T, Dv]; `own` one
    (key [kv, A, D], value [kv, A, Dv]) for each later step.
    """
    keys, values = context
    kv, group, rows, dim = query.shape
    seen, wide = keys.shape[2], values.shape[2]
    scores = (query.reshape(kv, group * rows, dim) @ keys).reshape(kv, group, rows, seen)
    hidden = xp.asarray(np.arange(seen)[None, :] > np.arange(start, start + rows)[:, None])
    scores = xp.where(hidden, xp.asarray(np.float32(-np.inf)), scores)
    mine = [(query * key[:, None]).sum(-1)[..., None] for key, _ in own]
    scores = xp.concatenate([scores, *mine], axis=-1)
    scores = xp.exp(scores - xp.amax(scores, axis=-1, keepdims=True))
    share = scores / scores.sum(-1)[..., None]
    mixed = share[..., :seen].reshape(kv, group * rows, seen) @ values
    mixed = mixed.reshape(kv, group, rows, wide)
    for i, (_, value) in enumerate(own):
        mixed = mixed + share[..., seen + i, None] * value[:, None]
    return xp.moveaxis(mixed, 2, 0).reshape(rows, kv * group * wide)
