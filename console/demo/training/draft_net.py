"""Owns the torch form of the EAGLE-3 drafter: one layer, unrolled the way it runs when it drafts several tokens."""
# mypy: allow-subclassing-any
# torch is not installed where types are checked, so its classes are unknown there.

from __future__ import annotations

import torch
from torch import Tensor, nn

from .net import Attention, Mlp, Norm, Shape, rope_table

AUX_STATES = (3, 7, 10)
"""The states R_k the drafter is trained on, low to high."""

DRAFT_VOCAB = 128
TTT_STEPS = 5
DRAFT_SHAPE = Shape(layers=1)


class Mid(nn.Module):
    """The drafter's layer. It reads the token's embedding and the hidden state side by side."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.hidden_norm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape, 2 * shape.hidden)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = Mlp(shape)


class Draft(nn.Module):
    """EAGLE-3 head; `state_dict()` has SpecForge's names. The embedding is the target's and is passed in.

    `d2t` [DV] int64 holds offsets: the target's id is the draft id plus `d2t` of it.
    """

    d2t: Tensor
    t2d: Tensor

    def __init__(self, d2t: Tensor, shape: Shape = DRAFT_SHAPE) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(AUX_STATES) * shape.hidden, shape.hidden, bias=False)
        self.midlayer = Mid(shape)
        self.norm = Norm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, len(d2t), bias=False)
        self.register_buffer("d2t", d2t)
        kept = torch.zeros(shape.vocab, dtype=torch.bool)
        kept[self.token_ids()] = True
        self.register_buffer("t2d", kept)

    def token_ids(self) -> Tensor:
        """The target's id of every draft id, [DV]."""
        return torch.arange(len(self.d2t)) + self.d2t

    def initialise(self, target_head: Tensor, seed: int) -> None:
        """Deterministic start; the head starts as the target's rows [DV, H] of the drafted tokens."""
        draw = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.ndim != 2:
                continue
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(weight)
            else:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=draw)
        with torch.no_grad():
            self.lm_head.weight.copy_(target_head)

    def unroll(self, aux: Tensor, embedded: Tensor, steps: int = TTT_STEPS) -> list[Tensor]:
        """Draft logits of each step, teacher forced: a list of [B, A, DV].

        `aux` [B, S, 3H] holds the target's states, `embedded` [B, S, H] the embeddings of the same tokens. Anchor t
        stands for the position whose states are read; step j reads token t+1+j and predicts token t+2+j, so the
        anchors are t = 0 … A-1 with A = S - steps. What a step hands to the next is the layer's output before the norm.
        """
        anchors = aux.shape[1] - steps
        group = self.shape.heads // self.shape.kv_heads
        causal = torch.ones(anchors, anchors, dtype=torch.bool).tril()
        hidden = self.fc(aux[:, :anchors])
        out, keys, values = [], [], []
        mid = self.midlayer
        for j in range(steps):
            token = embedded[:, 1 + j : 1 + j + anchors]
            read = torch.cat([mid.input_layernorm(token), mid.hidden_norm(hidden)], dim=-1)
            q, k, v = mid.self_attn.split(read, rope_table(torch.arange(anchors) + j, self.shape))
            keys.append(k.repeat_interleave(group, dim=1))
            values.append(v.repeat_interleave(group, dim=1))
            first = (q @ keys[0].mT).masked_fill(~causal, float("-inf"))
            own = [(q * past).sum(-1, keepdim=True) for past in keys[1:]]
            share = (torch.cat([first, *own], dim=-1).float() * self.shape.head_dim**-0.5).softmax(-1)
            mixed = share[..., :anchors].to(v.dtype) @ values[0]
            for i, past in enumerate(values[1:]):
                mixed = mixed + share[..., anchors + i, None].to(v.dtype) * past
            hidden = hidden + mid.self_attn.merge(mixed)
            hidden = hidden + mid.mlp(mid.post_attention_layernorm(hidden))
            out.append(self.lm_head(self.norm(hidden)))
        return out


def read_states(states: list[Tensor], ks: tuple[int, ...] = AUX_STATES) -> Tensor:
    """What the drafter's `fc` reads, [B, S, 3H], from [R_0 … R_n]."""
    return torch.cat([states[k] for k in ks], dim=-1)
