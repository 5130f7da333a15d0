"""Model folders: config.json and the tensors of every safetensors file beside it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from console.demo.engine.errors import CheckpointError

Array = NDArray[Any]

_DTYPES: dict[str, str] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "BOOL": "?",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """What a Llama-style config.json says about widths, counts and positions."""

    hidden: int
    num_hidden_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    rms_eps: float
    rope_theta: float
    tied: bool


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed config.json of `folder`.

    Raises CheckpointError when the file is missing, unreadable or not a JSON object.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror}; pass a model folder with a config.json"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); repair the file") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds a JSON {type(config).__name__}, not an object; repair the file")
    return config


def read_shape(config: dict[str, Any], name: str) -> LlamaShape:
    """Widths and counts out of a Llama config; `name` is the folder, for messages.

    Raises CheckpointError for missing keys and for features the engine does not compute (rope scaling, biases, other
    activations): serving them approximately would be worse than not serving them.
    """
    rope = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling")
    kind = rope.get("rope_type", "default") if isinstance(rope, dict) else "unreadable"
    if scaling or kind != "default":
        raise CheckpointError(f"{name}: rope scaling is not supported by the demo engine; use plain rope")
    if config.get("attention_bias") or config.get("mlp_bias") or config.get("bias"):
        raise CheckpointError(f"{name}: biases are not supported by the demo engine")
    if config.get("hidden_act", "silu") != "silu":
        raise CheckpointError(
            f"{name}: hidden_act {config['hidden_act']!r} is not supported by the demo engine; only silu"
        )
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return LlamaShape(
            hidden=hidden,
            num_hidden_layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            intermediate=int(config["intermediate_size"]),
            vocab=int(config["vocab_size"]),
            max_positions=int(config.get("max_position_embeddings", 2048)),
            rms_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    except KeyError as error:
        raise CheckpointError(
            f"{name}: config.json has no {error.args[0]!r}; it is needed to size the model"
        ) from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(f"{name}: config.json has a size that is not a usable number ({error})") from error


def read_tensors(folder: Path) -> dict[str, Array]:
    """Every tensor of every `*.safetensors` file in `folder`; bf16 is widened to float32 exactly (bits << 16).

    Raises CheckpointError when there is no such file or one cannot be parsed.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"no *.safetensors file in {folder}; the demo engine reads safetensors only")
    tensors: dict[str, Array] = {}
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise CheckpointError(f"cannot read {file}: {error.strerror}") from error
        try:
            tensors.update(_parse_safetensors(content))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{file} is not a readable safetensors file ({error}); copy it again") from error
    return tensors


def _parse_safetensors(content: bytes) -> dict[str, Array]:
    """Tensors of one file: 8 bytes of header length, a JSON header of dtype, shape and offsets, then the data."""
    body = 8 + int.from_bytes(content[:8], "little")
    if len(content) < 8 or body > len(content):
        raise ValueError(f"the header ends at byte {body}, the file at {len(content)}")
    tensors: dict[str, Array] = {}
    for name, entry in json.loads(content[8:body]).items():
        if name == "__metadata__":
            continue
        code = _DTYPES.get(entry["dtype"])
        if code is None:
            raise ValueError(f"tensor {name} has dtype {entry['dtype']}, which the demo engine does not read")
        shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
        size = np.dtype(code).itemsize * math.prod(shape)
        if not 0 <= begin <= end <= len(content) - body or end - begin != size:
            raise ValueError(
                f"tensor {name} should have {size} bytes, the file has {len(content) - body - begin} there"
            )
        values = np.frombuffer(content, dtype=code, count=math.prod(shape), offset=body + begin).reshape(shape)
        if entry["dtype"] == "BF16":
            values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        tensors[name] = values
    return tensors


class TensorSource:
    """Tensors of one checkpoint handed out by name, with their shape checked against the config."""

    def __init__(self, tensors: dict[str, Array], name: str) -> None:
        self._tensors = tensors
        self._name = name

    def __contains__(self, key: object) -> bool:
        return key in self._tensors

    def take(self, key: str, shape: tuple[int, ...]) -> Array:
        """The tensor `key`; raises CheckpointError when absent, AssertionError (SGLang's text) on another shape."""
        tensor = self._tensors.get(key)
        if tensor is None:
            raise CheckpointError(
                f"{self._name} has no tensor {key}; SGLang would leave it random without a word, the demo engine stops"
            )
        if tensor.shape != shape:
            raise AssertionError(
                f"Attempted to load weight (torch.Size({list(tensor.shape)})) into parameter "
                f"(torch.Size({list(shape)})): {key}"
            )
        return tensor
