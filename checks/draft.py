"""The draft checkpoint: its config.json, where its layer ids stand, and its weights."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from checks.errors import BadConfig, CheckError, NotRunnable
from checks.jsonfile import doubled_keys, parse_config, read_bytes, whole
from checks.weights import Weights, open_weights, pickled

KEY = "eagle_aux_hidden_state_layer_ids"
IN_EAGLE_CONFIG = f"/eagle_config/{KEY}"
TOP_LEVEL = f"/{KEY}"


@dataclass(frozen=True)
class AuxIds:
    """The layer ids of a draft config, from both places they are written to; null counts as absent.

    `eagle_config.*` is what SGLang and the trainers of its family read, the top level what speculators writes and vLLM
    reads. `value` and `pointer` are the one that is there, eagle_config's when both are, and the pointer of
    eagle_config's when neither is.
    """

    value: object | None
    pointer: str
    top_level: object | None
    in_eagle_config: object | None


class Draft:
    """A draft checkpoint: a folder with config.json and weights, or only one of the two as a file."""

    def __init__(self, path: Path, config_path: Path | None, weights_path: Path | None) -> None:
        self.path = path
        self.config_path = config_path
        """The config.json, or None when there is none."""
        self._weights_path = weights_path
        self._raw = b""
        self._config: dict[str, Any] | None = None
        self.config_error: str | None = None
        """Why the config cannot be used; None when it can."""
        if config_path is None:
            self.config_error = f"{path}: no config.json beside it"
            return
        try:
            self._raw = read_bytes(config_path)
            self._config = parse_config(self._raw, config_path)
        except BadConfig as error:
            self.config_error = str(error)

    @property
    def config(self) -> dict[str, Any]:
        """The config as it stands in the file. Raises BadConfig when it cannot be parsed or is not there."""
        if self._config is None:
            raise BadConfig(self.config_error or f"{self.path}: no config.json")
        return self._config

    @property
    def config_sha256(self) -> str:
        """The SHA-256 of the file's bytes, in hex; empty without a file."""
        return hashlib.sha256(self._raw).hexdigest() if self.config_path is not None else ""

    @property
    def doubled_keys(self) -> tuple[str, ...]:
        """Keys that stand twice in one object of the file. Raises BadConfig."""
        return doubled_keys(self._raw) if self.config else ()

    @cached_property
    def weights(self) -> Weights | None:
        """The tensors, or None when there are none. Raises BadTensors on a damaged file."""
        return open_weights(self._weights_path) if self._weights_path is not None else None

    @property
    def flat(self) -> dict[str, Any]:
        """The config with the model's keys laid flat under those of the top level, where a layout nests them.

        speculators nests them in `transformer_layer_config`, vLLM's wrapper of EAGLE drafts in `model`. Raises
        BadConfig.
        """
        wrapped = self.config.get("model_type") == "eagle"
        nested = self.config.get("model" if wrapped else "transformer_layer_config")
        if not isinstance(nested, dict):
            return self.config
        # The wrapper's model_type is its own; the model's stands inside.
        outer = {key: value for key, value in self.config.items() if not (wrapped and key in nested)}
        return {**nested, **outer}

    @property
    def is_speculators(self) -> bool:
        """Whether the config is of the speculators library's own layout. Raises BadConfig."""
        return "speculators_model_type" in self.config or isinstance(self.config.get("transformer_layer_config"), dict)

    @property
    def aux_ids(self) -> AuxIds:
        """The layer ids and where they stand. Raises BadConfig."""
        nested = self.config.get("eagle_config")
        inner = nested.get(KEY) if isinstance(nested, dict) else None
        outer = self.config.get(KEY)
        if inner is None and outer is not None:
            return AuxIds(outer, TOP_LEVEL, outer, None)
        return AuxIds(inner, IN_EAGLE_CONFIG, outer, inner)

    @property
    def uses_aux(self) -> bool:
        """False when the config says the draft reads only the last hidden state. Raises BadConfig."""
        nested = self.config.get("eagle_config")
        value = nested.get("use_aux_hidden_state") if isinstance(nested, dict) else None
        return value is not False

    @property
    def target_hidden(self) -> int | None:
        """The width of one slot as the config has it: target_hidden_size, else hidden_size. Raises BadConfig."""
        return whole(self.flat.get("target_hidden_size")) or whole(self.flat.get("hidden_size"))

    @cached_property
    def slots(self) -> int:
        """How many states its `fc` reads, by its weights, else by its config; 0 when neither can say."""
        try:
            width = self.target_hidden
            info = self.weights.info.get("fc.weight") if self.weights is not None else None
            if info is not None and width and len(info.shape) == 2 and info.shape[1] % width == 0:
                return info.shape[1] // width
        except CheckError:
            pass  # damaged weights are reported by the checks that judge them
        if self._config is None:
            return 0
        ids = self.aux_ids.value
        return whole(self.flat.get("num_aux_hidden_states")) or (len(ids) if isinstance(ids, list) else 0)


# Where checkpoints stand in a folder that is none: a trainer's runs or steps, a download's revisions.
_BELOW = ("*", "snapshots/*")
_LISTED = 1000
"""Entries that are looked at: a folder named by mistake may hold a whole disk."""


def _instead(path: Path) -> str:
    """What to do about a folder without a checkpoint, by what stands in it."""
    found = []
    for pattern in _BELOW:
        with suppress(OSError):
            found += [item for item in islice(path.glob(pattern), _LISTED) if (item / "config.json").is_file()]
    if found:
        # The latest of numbered ones: 10 is after 9.
        found.sort(key=lambda item: [(len(part), part) for part in re.findall(r"\d+|\D+", item.name)])
        others = f", one of {len(found)} in it" if len(found) > 1 else ""
        return f"the checkpoint is below it: name {found[-1]}{others}"
    if name := pickled(path):
        return f"{name[:80]} alone is no checkpoint: put the config.json of its training beside it"
    return "name the checkpoint's folder"


def open_draft(path: Path) -> Draft:
    """The draft at a folder, a config file or a safetensors file.

    Of a lone file the other half is taken from beside it when it has the standard name. Raises NotRunnable when the
    path holds no draft or may not be read.
    """
    if path.is_dir():
        try:
            names = {item.name for item in path.iterdir()}
        except PermissionError:
            raise NotRunnable(f"--draft {path}: not permitted to list it; run as its owner or open its mode") from None
        if "config.json" not in names and not any(name.endswith(".safetensors") for name in names):
            raise NotRunnable(f"--draft {path}: neither config.json nor safetensors in it; {_instead(path)}")
        return Draft(path, path / "config.json" if "config.json" in names else None, path)
    if path.suffix == ".safetensors":
        beside = path.parent / "config.json"
        return Draft(path, beside if beside.is_file() else None, path)
    return Draft(path, path, path.parent if path.name == "config.json" else None)
