"""Small checkpoints, caches and their files, written byte by byte so that tests can also write them wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_DTYPES = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64", "int32": "I32", "bool": "BOOL"}


def bf16(values: Array) -> Array:
    """Float values as the upper halves of their float32, rounded to nearest even: bfloat16 as uint16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def tensor_bytes(tensors: dict[str, Array]) -> bytes:
    """A safetensors file. uint16 stands for bfloat16."""
    header: dict[str, Any] = {}
    body = b""
    for name, array in tensors.items():
        dtype = "BF16" if array.dtype == np.uint16 else _DTYPES[str(array.dtype)]
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    return with_header(header, body)


def with_header(header: object, body: bytes = b"") -> bytes:
    """A safetensors file with this header, right or wrong."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + body


def write_tensors(path: Path, tensors: dict[str, Array]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tensor_bytes(tensors))
    return path


# A narrow draft: hidden 16, target 16, 4 heads of 4, 2 kv heads, mlp 24, vocabulary 10 of 30.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "vocab_size": 30,
    "draft_vocab_size": 10,
    "tie_word_embeddings": False,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True},
}
CHOSEN = np.array([0, 1, 4, 5, 9, 12, 13, 20, 21, 29])


def draft_tensors(prefix: str = "midlayer.") -> dict[str, Array]:
    """The tensors that fit CONFIG."""
    shapes = {
        "fc.weight": (16, 48),
        f"{prefix}input_layernorm.weight": (16,),
        f"{prefix}hidden_norm.weight": (16,),
        f"{prefix}post_attention_layernorm.weight": (16,),
        f"{prefix}self_attn.q_proj.weight": (16, 32),
        f"{prefix}self_attn.k_proj.weight": (8, 32),
        f"{prefix}self_attn.v_proj.weight": (8, 32),
        f"{prefix}self_attn.o_proj.weight": (16, 16),
        f"{prefix}mlp.gate_proj.weight": (24, 16),
        f"{prefix}mlp.up_proj.weight": (24, 16),
        f"{prefix}mlp.down_proj.weight": (16, 24),
        "norm.weight": (16,),
        "lm_head.weight": (10, 16),
    }
    tensors: dict[str, Array] = {name: bf16(np.ones(shape)) for name, shape in shapes.items()}
    marks = np.zeros(30, dtype=bool)
    marks[CHOSEN] = True
    tensors["d2t"] = CHOSEN.astype(np.int64) - np.arange(10)
    tensors["t2d"] = marks
    return tensors


def write_draft(folder: Path, config: object = None, tensors: dict[str, Array] | None = None) -> Path:
    """A draft folder: CONFIG and its tensors unless told otherwise. `config` may be bytes, to be wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    held = CONFIG if config is None else config
    (folder / "config.json").write_bytes(held if isinstance(held, bytes) else json.dumps(held).encode())
    if tensors is None or tensors:
        write_tensors(folder / "model.safetensors", draft_tensors() if tensors is None else tensors)
    return folder


def write_target(folder: Path, layers: int = 12, hidden: int = 16, **more: Any) -> Path:
    """A target folder with a config only."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "vocab_size": 30,
        "rms_norm_eps": 1e-5,
        **more,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def sample(rows: int = 7, blocks: int = 4, hidden: int = 16, seed: int = 0) -> dict[str, Array]:
    """One cached sample of the safetensors layout, bf16."""
    chance = np.random.default_rng(seed)
    return {
        "hidden_states": bf16(chance.standard_normal((rows, blocks, hidden))),
        "token_ids": chance.integers(0, 30, rows).astype(np.int64),
    }


def write_cache(folder: Path, files: int = 5, name: str = "hs_{}.safetensors", **more: int) -> Path:
    for index in range(files):
        write_tensors(folder / name.format(index), sample(seed=index, **more))
    return folder
