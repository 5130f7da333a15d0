"""Sizes and switches of a draft, and the names its tensors go by here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Latent:
    """Sizes of latent attention (MLA). `nope` and `rope` are a head's dimensions without and with a position.

    `value` is a head's width of values, `query_rank` and `key_rank` the widths of the latents; without a `query_rank`
    the query is projected at once. `interleaved`: neighbours are turned as pairs, not the two halves.
    """

    nope: int
    rope: int
    value: int
    query_rank: int | None
    key_rank: int
    interleaved: bool


@dataclass(frozen=True)
class DraftShape:
    """Sizes and switches of a draft. H = `hidden`, Ht = `target_hidden`, m = `slots`.

    `head_dim` is the width of a query; `kv_heads` is `heads` under latent attention.
    """

    hidden: int
    target_hidden: int
    slots: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    norm_before_residual: bool
    norm_output: bool
    rope: Mapping[str, Any]
    layers: int = 1
    latent: Latent | None = None


def layer_prefix(index: int) -> str:
    """What the tensors of a layer are named under: `layer.` for the one every draft has, then `layer1.` and so on."""
    return f"layer{index}." if index else "layer."
