"""Owns what is written to disk: checkpoint folders in the layouts that the real engines load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .corpus import BOS, EOS, PAD, UNK
from .draft_net import AUX_STATES, Draft
from .net import Shape, Target

DEMO = Path(__file__).resolve().parent.parent
TARGET, DRAFT, CACHE, PROMPTS = DEMO / "models/target", DEMO / "models/draft", DEMO / "cache", DEMO / "prompts.json"
MAX_POSITIONS = 2048


def _llama_config(shape: Shape) -> dict[str, object]:
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": MAX_POSITIONS,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocab,
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=True) + "\n")


def _write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Floating-point tensors as bf16, the rest as they are."""
    kept = {k: (v.bfloat16() if v.is_floating_point() else v).contiguous() for k, v in weights.items()}
    save_file(kept, path, metadata={"format": "pt"})


def write_target(net: Target, folder: Path = TARGET) -> None:
    """The target as a Hugging Face Llama checkpoint with its byte-level tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", {"architectures": ["LlamaForCausalLM"], **_llama_config(net.shape)})
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "do_sample": False},
    )
    _write_weights(folder / "model.safetensors", net.state_dict())
    _write_tokenizer(folder)


def read_target(folder: Path = TARGET) -> Target:
    """The target as shipped: the bf16-rounded weights, in fp32, frozen."""
    net = Target()
    net.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
    net.requires_grad_(False)
    return net


def write_draft(draft: Draft, folder: Path = DRAFT) -> None:
    """The drafter in SpecForge's layout; its embedding is absent because it shares the target's.

    The ids in `eagle_config` name layers by SGLang's rule for Llama: id = k - 1 for the state R_k.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_llama_config(draft.shape),
        "draft_vocab_size": draft.lm_head.weight.shape[0],
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [k - 1 for k in AUX_STATES],
            "use_aux_hidden_state": True,
        },
        "target_hidden_size": draft.shape.hidden,
    }
    _write_json(folder / "config.json", config)
    _write_weights(folder / "model.safetensors", draft.state_dict())


def read_draft(folder: Path = DRAFT) -> Draft:
    """The drafter as shipped: the bf16-rounded weights, in fp32, frozen."""
    weights = load_file(folder / "model.safetensors")
    draft = Draft(weights["d2t"])
    draft.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in weights.items()})
    draft.requires_grad_(False)
    return draft


def _byte_letters() -> list[str]:
    """The printable letter that stands for each byte in byte-level tokenizers (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in plain}
    spare = 256
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(spare)
            spare += 1
    return [letters[byte] for byte in range(256)]


def _write_tokenizer(folder: Path) -> None:
    special = {"<bos>": BOS, "<eos>": EOS, "<pad>": PAD, "<unk>": UNK}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = [
        {"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for name, i in special.items()
    ]  # fmt: skip
    vocab = {letter: byte for byte, letter in enumerate(_byte_letters())} | special
    model: dict[str, object] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": vocab, "merges": []}  # fmt: skip
    _write_json(
        folder / "tokenizer.json",
        {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
         "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model},
    )  # fmt: skip
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": MAX_POSITIONS,
        },
    )


def load_fp32(path: Path) -> Target:
    """The target from the trainer's own fp32 checkpoint."""
    net = Target()
    net.load_state_dict(torch.load(path, weights_only=True))
    return net
