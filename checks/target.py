"""The target model: its shape from config.json, and the few weights that name states without running it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from checks.errors import BadConfig, BadTensors, NotRunnable
from checks.jsonfile import read_config, whole
from checks.tensors import Floats, TensorInfo, take_rows
from checks.weights import Weights, open_weights

# Prefixes under which text models keep their weights, multimodal wrappers included.
_PREFIXES = ("model.", "language_model.model.", "model.language_model.", "transformer.", "backbone.", "")
_EMBEDDING = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embeddings.weight")
_NORM = ("norm.weight", "ln_f.weight", "final_layernorm.weight", "norm_f.weight")
_HEAD = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight", "output.weight")

# Keys by which architectures spell the same three numbers, in the order they are believed.
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_EPS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")

# Model types whose RMSNorm multiplies by 1 + weight, and whose embedding is scaled by sqrt(hidden), rounded to
# bfloat16 (transformers, modeling_gemma*.py). gemma3n and gemma4 scale the embedding, with a plain norm.
_UNIT_OFFSET = ("gemma", "gemma2", "gemma3", "gemma3_text", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
_SCALED = ("gemma",)


@dataclass(frozen=True)
class Head:
    """The matrix `[V, H]` of the target's output; `tied` when it is the embedding."""

    info: TensorInfo
    tied: bool


class Target:
    """A target model's config, and what its weights can say. n layers, width hidden, vocab tokens."""

    def __init__(self, path: Path, config: dict[str, Any], weights_path: Path | None) -> None:
        self.path = path
        self.config = config
        nested = config.get("text_config")
        self.text: dict[str, Any] = {**config, **nested} if isinstance(nested, dict) else config
        """The language model's config: a multimodal wrapper's `text_config` over the top level."""
        self._weights_path = weights_path
        self.n = self._number(_LAYERS, "number of layers")
        self.hidden = self._number(_HIDDEN, "hidden size")
        self.vocab = self._number(("vocab_size",), "vocabulary size")

    @property
    def architecture(self) -> str:
        """The first of `architectures`, the outer one of a multimodal model; empty when the config names none."""
        names = self.config.get("architectures") or self.text.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    @property
    def model_type(self) -> str:
        """The `model_type` of the language model; empty when the config names none."""
        return str(self.text.get("model_type") or "")

    @property
    def rms_eps(self) -> float:
        """The epsilon of its norms; transformers' default 1e-6 when the config has none. Raises BadConfig."""
        return self._factor(_EPS, 1e-6)

    @property
    def embedding_scale(self) -> float:
        """What the model multiplies its embedding rows by before the first layer. Raises BadConfig."""
        own = _bfloat16(math.sqrt(self.hidden)) if self.model_type.startswith(_SCALED) else 1.0
        return self._factor(("embedding_multiplier", "scale_emb"), own)

    @cached_property
    def weights(self) -> Weights | None:
        """Its tensors, or None when only the config is there. Raises BadTensors on a damaged index or file."""
        return open_weights(self._weights_path) if self._weights_path is not None else None

    def embedding(self, ids: npt.NDArray[np.int64]) -> Floats:
        """R_0 of token ids `[S]`: rows of the embedding, scaled as the model does, float32 `[S, H]`.

        Raises BadTensors when the weights have no embedding, or not these rows.
        """
        rows = take_rows(self._named(_EMBEDDING, "embedding"), ids)
        scale = self.embedding_scale
        return np.asarray(rows if scale == 1.0 else rows * np.float32(scale), dtype=np.float32)

    def final_norm(self) -> Floats:
        """What the final norm multiplies by, `[H]` float32 (1 + weight where the model does so). Raises BadTensors."""
        info = self._named(_NORM, "final norm")
        weight = np.asarray(self._weights().read(info.name), dtype=np.float32)
        return weight + np.float32(1) if self.model_type in _UNIT_OFFSET else weight

    def head(self) -> Head:
        """The output matrix `[V, H]`, the embedding where they are tied. Raises BadTensors."""
        info = self._weights().info
        for name in _HEAD:
            if name in info:
                return Head(info[name], tied=False)
        return Head(self._named(_EMBEDDING, "embedding"), tied=True)

    def _weights(self) -> Weights:
        if self.weights is None:
            raise BadTensors(f"{self.path}: no safetensors weights beside config.json")
        return self.weights

    def _named(self, names: tuple[str, ...], what: str) -> TensorInfo:
        info = self._weights().info
        for prefix in _PREFIXES:
            for name in names:
                if prefix + name in info:
                    return info[prefix + name]
        raise BadTensors(f"{self.path}: its weights have no {what} under a known name")

    def _factor(self, keys: tuple[str, ...], default: float) -> float:
        """The first of these that is a number. Raises BadConfig for one that nothing can be computed with."""
        for key in keys:
            value = self.text.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                if not 0 <= value < math.inf:
                    raise BadConfig(f"{self.path}: {key} is {value} in its config.json, which no model can run with")
                return float(value)
        return default

    def _number(self, keys: tuple[str, ...], what: str) -> int:
        for key in keys:
            value = whole(self.text.get(key))
            if value is not None:
                return value
        raise BadConfig(f"{self.path}: its config.json gives no {what} ({keys[0]})")


def open_target(path: Path) -> Target:
    """The target at a folder with config.json, or at a config file.

    Raises NotRunnable when there is no config.json or it may not be read, BadConfig when it is no usable config.
    """
    if path.is_dir():
        config_path = path / "config.json"
        try:
            config_path.stat()
        except FileNotFoundError:
            raise NotRunnable(f"--target {path}: no config.json in it; name the folder of the target model") from None
        except OSError as error:
            raise NotRunnable(f"--target {path}: {error.strerror or error}") from None
        return Target(path, read_config(config_path)[1], path)
    return Target(path, read_config(path)[1], path.parent if path.name == "config.json" else None)


def _bfloat16(value: float) -> float:
    """Rounded to the nearest bfloat16, ties to even."""
    bits = int(np.float32(value).view(np.uint32))
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(np.uint32(rounded).view(np.float32))
