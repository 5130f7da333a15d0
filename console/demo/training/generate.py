"""Owns text written by the target: batched continuation with a key-value cache."""
# mypy: allow-untyped-decorators
# torch is not installed where types are checked, so its decorators are unknown there.

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .net import Target, rope_table


@torch.no_grad()
def continuation(
    net: Target, prompts: Tensor, count: int, temperature: float = 0.0, draw: torch.Generator | None = None
) -> Tensor:
    """Prompts [B, P] followed by `count` new ids, [B, P + count]; temperature 0 takes the likeliest token."""
    shape, (batch, length) = net.shape, prompts.shape
    table = rope_table(torch.arange(length + count), shape)
    room = (shape.layers, batch, shape.kv_heads, length + count, shape.head_dim)
    keys, values = torch.zeros(room), torch.zeros(room)
    ids = torch.cat([prompts, prompts.new_zeros(batch, count)], dim=1)
    done = 0
    for end in range(length, length + count):
        x = net.model.embed_tokens(ids[:, done:end])
        here = (table[0][done:end], table[1][done:end])
        for i, layer in enumerate(net.model.layers):
            q, k, v = layer.self_attn.split(layer.input_layernorm(x), here)
            keys[i, :, :, done:end], values[i, :, :, done:end] = k, v
            # Only the first pass holds several new positions, and then the cache was empty: plain causal.
            mixed = F.scaled_dot_product_attention(
                q, keys[i, :, :, :end], values[i, :, :, :end], is_causal=done == 0, enable_gqa=True
            )
            x = x + layer.self_attn.merge(mixed)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits = net.head(x[:, -1])
        if temperature:
            chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=draw)[:, 0]
        else:
            chosen = logits.argmax(-1)
        ids[:, end] = chosen
        done = end
    return ids
