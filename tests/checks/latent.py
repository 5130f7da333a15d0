"""Random drafts of latent attention, and the same drafts put together from transformers' own blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

HIDDEN, WIDE, SLOTS, HEADS, INNER, VOCAB = 32, 24, 3, 4, 40, 50
NOPE, ROPE, VALUE, QUERY_RANK, KEY_RANK = 12, 8, 10, 20, 14

YARN: dict[str, Any] = {
    "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 32, "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip


def config_of(rope: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The config of a latent draft of these sizes."""
    return {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "hidden_size": HIDDEN,
        "target_hidden_size": WIDE, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "num_hidden_layers": 1,
        "intermediate_size": INNER, "q_lora_rank": QUERY_RANK, "kv_lora_rank": KEY_RANK, "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE, "v_head_dim": VALUE, "rms_norm_eps": 1e-5, "hidden_act": "silu", "vocab_size": VOCAB,
        "max_position_embeddings": 512, "rope_parameters": {"rope_theta": 5000.0, **rope}, **more,
    }  # fmt: skip


def attention_sizes(prefix: str, reads: int, query_rank: int | None) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one layer's latent attention."""
    width = HEADS * (NOPE + ROPE)
    query = (
        {"q_proj": (width, reads)}
        if query_rank is None
        else {"q_a_proj": (query_rank, reads), "q_a_layernorm": (query_rank,), "q_b_proj": (width, query_rank)}
    )
    sizes = {
        **query, "kv_a_proj_with_mqa": (KEY_RANK + ROPE, reads), "kv_a_layernorm": (KEY_RANK,),
        "kv_b_proj": (HEADS * (NOPE + VALUE), KEY_RANK), "o_proj": (HIDDEN, HEADS * VALUE),
    }  # fmt: skip
    return {f"{prefix}self_attn.{name}.weight": size for name, size in sizes.items()}


def grouped_sizes(prefix: str, reads: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one layer's grouped attention: 4 heads of 16 over 2."""
    sizes = {"q_proj": (64, reads), "k_proj": (32, reads), "v_proj": (32, reads), "o_proj": (HIDDEN, 64)}
    return {f"{prefix}self_attn.{name}.weight": size for name, size in sizes.items()}


def tensors(config: dict[str, Any], latent: bool = True, later_norm: str = "input_layernorm") -> dict[str, np.ndarray]:
    """Random weights by common name."""
    sizes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, SLOTS * WIDE), "norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN),
    }  # fmt: skip
    if config.get("fc_norm"):
        sizes.update({f"fc_norm.{slot}.weight": (WIDE,) for slot in range(SLOTS)})
    for index in range(config["num_hidden_layers"]):
        prefix, reads = (f"layer{index}.", HIDDEN) if index else ("layer.", 2 * HIDDEN)
        norms = (later_norm,) if index else ("input_layernorm", "hidden_norm")
        sizes.update({f"{prefix}{norm}.weight": (HIDDEN,) for norm in (*norms, "post_attention_layernorm")})
        mlp = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
        sizes.update({f"{prefix}mlp.{name}.weight": size for name, size in mlp.items()})
        sizes.update(attention_sizes(prefix, reads, config["q_lora_rank"]) if latent else grouped_sizes(prefix, reads))
    rng = np.random.default_rng(7)
    return {
        name: (rng.normal(size=size) / (size[-1] ** 0.5 if len(size) == 2 else 4) + (len(size) == 1)).astype(np.float32)
        for name, size in sizes.items()
    }


def stored(weights: dict[str, np.ndarray], first: str = "midlayer.") -> dict[str, np.ndarray]:
    """The weights under the names of a checkpoint."""
    out = {}
    for name, value in weights.items():
        head, _, part = name.partition(".")
        if head == "layer":
            out[first + part] = value
        else:
            out[f"layers.{head[5:]}.{part}" if head.startswith("layer") else name] = value
    return out


class ByTransformers:
    """The draft from transformers' blocks: attention runs over the rows of all steps end to end, under one mask."""

    def __init__(self, weights: dict[str, np.ndarray], config: dict[str, Any], latent: bool, later_norm: str) -> None:
        import torch
        from transformers import DeepseekV3Config, LlamaConfig
        from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
        from transformers.models.llama import modeling_llama as llama

        self._torch, self._config, self._later = torch, config, later_norm
        self._w = {name: torch.from_numpy(value) for name, value in weights.items()}
        self._norm_class = llama.LlamaRMSNorm
        common = {k: v for k, v in config.items() if k not in ("target_hidden_size", "architectures", "model_type")}
        self._attention, self._mlp = [], []
        kept = ("hidden_size", "q_lora_rank") if latent else ("hidden_size", "num_key_value_heads", "head_dim")
        for index in range(config["num_hidden_layers"]):
            # The block's input is as wide as its config's hidden size; only the way out has to be narrowed again.
            wide = {**common, **{key: config[key] for key in kept}, "hidden_size": HIDDEN * (1 if index else 2)}
            made = DeepseekV3Config(**wide) if latent else LlamaConfig(**wide)
            made._attn_implementation = "eager"
            block = (deepseek.DeepseekV3Attention if latent else llama.LlamaAttention)(made, index)
            block.o_proj = torch.nn.Linear(block.o_proj.in_features, HIDDEN, bias=False)
            for norm in (getattr(block, name, None) for name in ("q_a_layernorm", "kv_a_layernorm")):
                if norm is not None:
                    norm.variance_epsilon = config["rms_norm_eps"]  # the engines'; transformers has its default here
            prefix = f"layer{index}." if index else "layer."
            block.load_state_dict(self._under(f"{prefix}self_attn."))
            narrow = LlamaConfig(**{**common, "hidden_size": HIDDEN})
            mlp = llama.LlamaMLP(narrow)
            mlp.load_state_dict(self._under(f"{prefix}mlp."))
            self._attention.append(block.eval())
            self._mlp.append(mlp.eval())
            self._rotary = (deepseek.DeepseekV3RotaryEmbedding if latent else llama.LlamaRotaryEmbedding)(made)

    def _under(self, prefix: str) -> dict[str, Any]:
        return {name[len(prefix) :]: value for name, value in self._w.items() if name.startswith(prefix)}

    def _norm(self, x: Any, name: str) -> Any:
        block = self._norm_class(x.shape[-1], eps=self._config["rms_norm_eps"])
        block.weight.data = self._w[f"{name}.weight"]
        return block(x)

    def logits(self, aux: np.ndarray, embedded: np.ndarray, anchors: int, steps: int) -> list[np.ndarray]:
        """Per step [anchors, V]. Step j is run by giving every layer all rows of steps 0 … j anew."""
        torch, config = self._torch, self._config
        with torch.no_grad():
            x = torch.from_numpy(aux[:anchors])
            if config.get("fc_norm"):
                x = torch.cat([self._norm(part, f"fc_norm.{i}") for i, part in enumerate(x.split(WIDE, -1))], dim=-1)
            reads, out = [x @ self._w["fc.weight"].T], []
            for j in range(steps):
                tokens = torch.cat([torch.from_numpy(embedded[1 + i : 1 + i + anchors]) for i in range(j + 1)])
                hidden = self._layers(torch.cat(reads), tokens, anchors, j + 1)[-anchors:]
                normed = self._norm(hidden, "norm")
                out.append((normed @ self._w["lm_head.weight"].T).numpy())
                reads.append(normed if config.get("norm_output") else hidden)
        return out

    def _layers(self, hidden: Any, tokens: Any, anchors: int, steps: int) -> Any:
        torch = self._torch
        causal, same = torch.ones(anchors, anchors).tril().bool(), torch.eye(anchors).bool()
        never = torch.zeros(anchors, anchors).bool()
        rows = [torch.cat([causal, *[same] * j, *[never] * (steps - 1 - j)], dim=1) for j in range(steps)]
        mask = torch.zeros(anchors * steps, anchors * steps).masked_fill(~torch.cat(rows), float("-inf"))[None, None]
        positions = torch.cat([torch.arange(anchors) + j for j in range(steps)])[None]
        for index, (attention, mlp) in enumerate(zip(self._attention, self._mlp)):
            prefix = f"layer{index}." if index else "layer."
            normed = self._norm(hidden, prefix + (self._later if index else "hidden_norm"))
            residual = normed if not index and self._config.get("norm_before_residual") else hidden
            if not index:
                normed = torch.cat([self._norm(tokens, "layer.input_layernorm"), normed], dim=-1)
            turns = self._rotary(normed[None], positions)
            attended = attention(normed[None], position_embeddings=turns, attention_mask=mask)[0][0]
            hidden = residual + attended
            hidden = hidden + mlp(self._norm(hidden, f"{prefix}post_attention_layernorm"))
        return hidden
