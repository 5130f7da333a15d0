"""Whose layout a draft's config.json has: told before any key is missed, so that a foreign one is one finding."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from checks.draft import KEY
from checks.jsonfile import whole
from checks.rules import VLLM
from checks.tensors import TensorInfo

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Layout:
    """One foreign layout: how it is told, where it keeps the model's keys, and which engines read it.

    `holder`: the object that holds hidden_size and its like; "" when they stand at the top level. `eagle3`: whether it
    can be an EAGLE-3 draft at all.
    """

    name: str
    told_by: Callable[[Config], bool]
    holder: str = ""
    read_by: tuple[str, ...] = ()
    eagle3: bool = True
    hint: str = ""


def _is_object(config: Config, key: str) -> bool:
    return isinstance(config.get(key), dict)


def names_of(config: Config) -> list[str]:
    """The texts in `architectures`; empty when it is absent or something else."""
    held = config.get("architectures")
    return [name for name in held if isinstance(name, str)] if isinstance(held, list) else []


def has_own_keys(config: Config) -> bool:
    """Whether a config has a key that only EAGLE-3 drafts have."""
    return any(config.get(key) is not None for key in EAGLE3_KEYS)


def _named(config: Config, *parts: str) -> bool:
    words = [*names_of(config), str(config.get("model_type", ""))]
    return any(part in word.lower() for part in parts for word in words)


EAGLE3_KEYS = ("draft_vocab_size", "truncated_vocab_size", "eagle_config", "target_hidden_size", KEY)
"""Keys that only the config of an EAGLE-3 draft has."""

_OLDER = re.compile(r"^Eagle(?!3)|(?<!3)Eagle$")

EAGLE_ONE = Layout(
    "EAGLE-1 or -2",
    lambda config: bool(_OLDER.search(next(iter(names_of(config)), ""))) and not has_own_keys(config),
    eagle3=False,
)

_OF_EAGLE3 = ("eagle3", "peagle")


def _speculates_otherwise(config: Config) -> bool:
    kind = config.get("speculators_model_type")
    return isinstance(kind, str) and not any(name in kind.lower() for name in _OF_EAGLE3)


LAYOUTS: tuple[Layout, ...] = (
    EAGLE_ONE,
    Layout("speculators, of another family", _speculates_otherwise, "transformer_layer_config", eagle3=False),
    Layout(
        "speculators",
        lambda config: "speculators_model_type" in config or _is_object(config, "transformer_layer_config"),
        "transformer_layer_config",
        (VLLM,),
        hint="ids count hidden states (k=id); a draft with norm_before_residual cannot be served by SGLang at all",
    ),
    Layout("vLLM's EAGLE wrapper", lambda config: config.get("model_type") == "eagle", "model", (VLLM,)),
    Layout(
        "TensorRT-LLM",
        lambda config: (
            _is_object(config, "pretrained_config")
            or (isinstance(config.get("architecture"), str) and ("mapping" in config or "producer" in config))
        ),
        "pretrained_config",
    ),
    Layout(
        "DFlash or DSpark",
        lambda config: _is_object(config, "dflash_config") or _named(config, "dflash", "dspark"),
        eagle3=False,
    ),
    Layout("Medusa", lambda config: "medusa_num_heads" in config or _named(config, "medusa"), eagle3=False),
    Layout(
        "an n-gram or MLP speculator", lambda config: _named(config, "mlp_speculator", "mlpspeculator"), eagle3=False
    ),
)


def _reads_one_state(config: Config, tensors: Mapping[str, TensorInfo]) -> bool:
    fc, hidden = tensors.get("fc.weight"), whole(config.get("hidden_size"))
    own = any(name == "d2t" or name.endswith("hidden_norm.weight") for name in tensors)
    return fc is not None and hidden is not None and fc.shape[1:] == (2 * hidden,) and not own


def layout_of(config: Config, tensors: Mapping[str, TensorInfo] | None = None) -> Layout | None:
    """The foreign layout of a config, None for the flat one that SGLang reads.

    A draft of EAGLE-1 or -2 under its target's class is told by its tensors (under one spelling): its fc reads one
    embedding and one state, and no norm stands on the state.
    A layout that no row knows is told by what makes it foreign: no hidden_size at the top level, and one in a nested
    object. transformers reads a `text_config` by itself, so that is not foreign.
    """
    for layout in LAYOUTS:
        if layout.told_by(config):
            return layout
    if tensors and not has_own_keys(config) and _reads_one_state(config, tensors):
        return EAGLE_ONE
    if "hidden_size" in config:
        return None
    for key, held in config.items():
        if key != "text_config" and isinstance(held, dict) and whole(held.get("hidden_size")):
            return Layout("another tool's", lambda _: True, key)
    return None
