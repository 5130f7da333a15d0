"""Owns the torch form of the target: a Llama whose parameter names are the ones on disk."""
# mypy: allow-subclassing-any
# torch is not installed where types are checked, so its classes are unknown there.

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .corpus import VOCAB


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama-like model; the target's are the defaults."""

    hidden: int = 128
    layers: int = 12
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 384
    vocab: int = VOCAB
    rope_theta: float = 10000.0
    eps: float = 1e-5


class Norm(nn.Module):
    """RMSNorm, computed in fp32 whatever the autocast type."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


def rope_table(positions: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """cos and sin [S, head_dim] of the half-rotated rotary embedding that Llama uses."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angle = positions.float()[:, None] * (shape.rope_theta**-half)[None]
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of `x` [B, heads, S, head_dim]."""
    cos, sin = table
    low, high = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat([-high, low], dim=-1) * sin.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query projections; `width` is what q, k and v read (the drafter reads two blocks)."""

    def __init__(self, shape: Shape, width: int) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(width, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def split(self, x: Tensor, table: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [B, heads, S, head_dim], q and k rotated."""
        batch, length, _ = x.shape
        q, k, v = (
            p(x).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        return rotate(q, table), rotate(k, table), v

    def merge(self, heads: Tensor) -> Tensor:
        """Output projection of [B, heads, S, head_dim]."""
        out: Tensor = self.o_proj(heads.transpose(1, 2).flatten(2))
        return out

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = self.split(x, table)
        return self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))


class Mlp(nn.Module):
    """Gated SiLU feed-forward."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape, shape.hidden)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), table)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Body(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.eps)


class Target(nn.Module):
    """The target model. `state_dict()` has exactly the names of a Hugging Face Llama checkpoint."""

    def __init__(self, shape: Shape = Shape()) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def initialise(self, seed: int) -> None:
        """Deterministic start: residual branches begin at zero, so every layer starts as the identity."""
        draw = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.ndim != 2:
                continue
            if name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight")):
                nn.init.zeros_(weight)
            else:
                std = 0.02 if "embed" in name else weight.shape[1] ** -0.5
                nn.init.normal_(weight, std=std, generator=draw)

    def states(self, ids: Tensor) -> list[Tensor]:
        """[R_0 … R_n], each [B, S, H]: the residual stream after k layers, before any norm."""
        table = rope_table(torch.arange(ids.shape[1]), self.shape)
        out = [self.model.embed_tokens(ids)]
        for layer in self.model.layers:
            out.append(layer(out[-1], table))
        return out

    def head(self, last: Tensor) -> Tensor:
        """Logits [..., V] of R_n."""
        logits: Tensor = self.lm_head(self.model.norm(last))
        return logits

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.states(ids)[-1])
