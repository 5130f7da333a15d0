"""States of the target itself through transformers, layer by layer: the only module of checks that imports it."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from checks.capture_folder import Ids, Taken
from checks.eagle3.loading import free_memory
from checks.errors import CaptureFailed, NeedsLibrary
from checks.jsonfile import read_config, whole
from checks.weights import INDEX, open_weights

Progress = Callable[[int, int], None]

SMALL = 2 << 30
"""Bytes of weights that may be loaded beside a server without being asked for: a moment's work, with room to spare."""
THREADS = 4
SHARE = 0.8
"""Of the memory that is free, how much the weights may take."""

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# What stands beside the language model in a multimodal checkpoint, and a text alone does not pass through.
_BESIDE = re.compile(
    r"^(?:model\.)?(?:vision_tower|vision_model|visual|mm_projector|multi_modal_projector|audio_tower)\."
)
_WRAPPED = re.compile(r"^(?:language_model\.|model\.language_model\.)")
# Model types whose config comes with code of its own, and which are one that transformers has.
_SAME_AS = {"kimi_k2": "deepseek_v3"}


def weight_bytes(target: Path) -> int:
    """Bytes of the target's safetensors files, 0 without any."""
    try:
        return sum(item.stat().st_size for item in target.glob("*.safetensors"))
    except OSError:
        return 0


def reference_states(
    target: Path, texts: Sequence[Ids], layers: int = 0, progress: Progress = lambda done, total: None
) -> list[Taken]:
    """R_0 … R_K of each text [S, K+1, H], before the final norm; K is `layers`, or all of them for 0.

    On the CPU in fp32. With `layers` only the shards that hold these layers are opened. Code that comes with a
    checkpoint is never run. Raises NeedsLibrary, CaptureFailed, BadConfig, BadTensors.
    """
    torch, transformers = _libraries()
    torch.set_num_threads(min(THREADS, os.cpu_count() or 1))
    with tempfile.TemporaryDirectory(prefix="eagle-console-target-") as folder:
        mapping = cut_folder(target, Path(folder), layers)
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
                folder, key_mapping=mapping, output_loading_info=True, **options
            )
            model = loaded.base_model.float().eval()
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, AttributeError) as error:
            said = str(error).strip().splitlines()[:1] or [type(error).__name__]
            raise CaptureFailed(f"transformers cannot load {target}: {said[0][:300]}") from None
        # transformers only warns, and goes on with random numbers.
        lacking = sorted(name for name in info["missing_keys"] if not name.startswith("lm_head."))
        if lacking or info["mismatched_keys"]:
            named = lacking[0] if lacking else str(next(iter(info["mismatched_keys"])))
            raise CaptureFailed(f"{target}: transformers finds no weights for {named}; is the download whole?")
        blocks = getattr(model, "layers", None)
        if blocks is None or not len(blocks) or (layers and len(blocks) > layers):
            raise CaptureFailed(f"{type(model).__name__} does not keep its layers where they can be read")
        return _run(torch, model, blocks, texts, progress)


def _run(
    torch: Any, model: Any, blocks: Any, texts: Sequence[Ids], progress: Callable[[int, int], None]
) -> list[Taken]:
    seen: list[Any] = []
    blocks[0].register_forward_pre_hook(lambda _, args, kwargs: seen.append(_states(args, kwargs)), with_kwargs=True)
    for block in blocks:
        block.register_forward_hook(lambda _, args, output: seen.append(_states((output,), {})))
    taken = []
    for index, ids in enumerate(texts):
        progress(index, len(texts))
        seen.clear()
        with torch.inference_mode():
            model(input_ids=torch.from_numpy(np.asarray(ids, dtype=np.int64))[None], use_cache=False)
        states = np.stack([item[0].float().numpy() for item in seen], axis=1)
        if not np.isfinite(states).all():
            raise CaptureFailed("the target's own states are not finite: its weights are damaged, or overflow in fp32")
        taken.append(Taken(ids, np.arange(len(ids), dtype=np.int64), states))
    return taken


def _states(args: Sequence[Any], kwargs: Any) -> Any:
    """The hidden states a layer was given or returned: the first value, alone or leading a tuple."""
    value = args[0] if args else kwargs["hidden_states"]
    return value[0] if isinstance(value, tuple) else value


# -- the part of the target that is run ------------------------------------------------------------------------------


def cut_folder(target: Path, folder: Path, layers: int) -> dict[str, str]:
    """Make `folder` a view of the first layers of `target`: its config cut, and links to the files that hold them.

    Returns the renaming of tensors (pattern -> text) that a multimodal checkpoint needs. Raises CaptureFailed,
    BadConfig, BadTensors.
    """
    config = _text_config(read_config(target / "config.json")[1])
    n = whole(config.get("num_hidden_layers"))
    if n is None:
        raise CaptureFailed(f"{target}: its config.json has no num_hidden_layers to cut")
    kept = min(layers, n) if layers else n
    config["num_hidden_layers"] = kept
    for key, value in config.items():
        # Lists with an entry a layer, such as layer_types.
        if isinstance(value, list) and len(value) == n and n > 3:
            config[key] = value[:kept]
    weights = open_weights(target)
    if weights is None:
        raise CaptureFailed(f"{target}: no safetensors weights, so there is nothing to run")
    names = [name for name in weights.info if not _BESIDE.match(name) and _layer_of(name) < kept]
    needed = {name: weights.info[name] for name in names}
    _fits(sum(4 * math.prod(info.shape) for info in needed.values()), layers)
    for file in {info.file for info in needed.values()}:
        (folder / file.name).symlink_to(file.resolve())
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    index = {"metadata": {}, "weight_map": {name: info.file.name for name, info in needed.items()}}
    (folder / INDEX).write_text(json.dumps(index), "utf-8")
    return {_WRAPPED.pattern: ""} if any(_WRAPPED.match(name) for name in names) else {}


def _layer_of(name: str) -> int:
    found = _LAYER.search(name)
    return int(found.group(1)) if found else -1


def _text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's config, without pointers to code of the checkpoint's own."""
    nested = config.get("text_config")
    text = dict(nested) if isinstance(nested, dict) else dict(config)
    if isinstance(nested, dict):
        text.setdefault("quantization_config", config.get("quantization_config"))
    text.pop("auto_map", None)
    # Computed in fp32 whatever it is stored in: kernels round differently, and that must not look like another state.
    text["dtype"] = text["torch_dtype"] = "float32"
    text["model_type"] = _SAME_AS.get(str(text.get("model_type")), text.get("model_type"))
    return {key: value for key, value in text.items() if value is not None or key == "rope_scaling"}


def _fits(size: int, layers: int) -> None:
    """Raises CaptureFailed when the weights in fp32, `size` bytes, would not fit in the memory that is free."""
    free = free_memory()
    if free is not None and size > SHARE * free:
        way = "fewer layers" if layers else "only its first layers, --layers K"
        raise CaptureFailed(
            f"the target's weights take {size / 2**30:.1f} GiB in fp32 and {free / 2**30:.1f} GiB are free; "
            f"run {way}, or on a machine with more memory"
        )


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise NeedsLibrary(
            "transformers",
            f"the target itself is run with torch and transformers, which this python lacks ({error}); name one that "
            "has them: python under [host] in the deployment, or `pip install 'eagle-console[torch]'` here",
        ) from None
    # What it says while loading is for people who train; what matters is looked at below.
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers


def transformers_version() -> str:
    """The version of transformers, for the manifest; "" when it is not there."""
    try:
        return str(_libraries()[1].__version__)
    except NeedsLibrary:
        return ""
