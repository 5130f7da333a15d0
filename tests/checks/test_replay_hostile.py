"""Whatever a draft, a target or a cache holds, the replay gives a finding with a sentence and never stops."""

from __future__ import annotations

import copy
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checks.asking import ask_all
from tests.checks.files import CONFIG, bf16, draft_tensors, write_draft, write_tensors
from tests.checks.latent import config_of, stored, tensors

CHECK = "replay.accuracy"
KEYS = (
    *("hidden_size", "target_hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers"),
    *("head_dim", "intermediate_size", "hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters"),
    *("partial_rotary_factor", "max_position_embeddings", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim"),
    *("qk_rope_head_dim", "v_head_dim", "rope_interleave", "norm_output", "norm_before_residual", "eagle_config"),
    *("transformer_layer_config", "draft_vocab_size", "vocab_size", "architectures"),
)
ROPE_KEYS = (
    *("rope_type", "type", "factor", "rope_theta", "original_max_position_embeddings", "beta_fast", "beta_slow"),
    *("mscale", "mscale_all_dim", "low_freq_factor", "high_freq_factor", "attention_factor", "truncate"),
)
NUMBERS = st.one_of(
    st.integers(-3, 70), st.sampled_from([0, -1, 2**63, 10**19, 1e308, 1e-320, float("nan"), float("inf"), 0.5, -0.0])
)
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, st.sampled_from(["", "yarn", "linear", "16", "\x1b[31m", "gelu"]))
ROPE = st.dictionaries(
    st.sampled_from(ROPE_KEYS),
    st.one_of(NUMBERS, st.sampled_from(["yarn", "linear", "llama3", "default", "longrope", None])),
)
VALUES = st.one_of(PLAIN, ROPE, st.lists(PLAIN, max_size=3))
CHANGES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 16, 24, 30, 32, 48]), max_size=3).map(tuple)
FILLS = st.sampled_from([0.0, 1.0, float("nan"), float("inf"), -3e38, 1e-40])
KINDS = st.sampled_from(["bfloat16", "float32", "float64", "int64", "bool"])


def an_array(shape: tuple[int, ...], fill: float, kind: str) -> Any:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a number that is none has no integer; any will do
        whole = np.full(shape, fill)
        return bf16(whole) if kind == "bfloat16" else whole.astype(kind)


def write_everything(
    folder: Path, config: dict[str, Any], held: dict[str, Any], target: dict[str, Any], width: int
) -> dict[str, Any]:
    """A draft, a target with weights, and a cache of two texts; the request over them."""
    rng = np.random.default_rng(0)
    write_draft(folder / "draft", config, held)
    write_draft(
        folder / "target",
        {"num_hidden_layers": 12, "hidden_size": width, "vocab_size": 50, "rms_norm_eps": 1e-5, **target},
        {
            "model.embed_tokens.weight": rng.normal(size=(50, width)).astype(np.float32),
            "model.norm.weight": np.ones(width, dtype=np.float32),
        },
    )
    for index in range(2):
        states = rng.normal(size=(60, 4, width)).astype(np.float32)
        ids = rng.integers(0, 30, 60).astype(np.int64)
        write_tensors(folder / "cache" / f"hs_{index}.safetensors", {"hidden_states": states, "token_ids": ids})
    return {"target": folder / "target", "caches": [{"path": str(folder / "cache")}]}


def grouped_draft() -> tuple[dict[str, Any], dict[str, Any], int]:
    return copy.deepcopy(CONFIG), {**draft_tensors(), "embed_tokens.weight": bf16(np.ones((30, 16)))}, 16


def latent_draft() -> tuple[dict[str, Any], dict[str, Any], int]:
    config = config_of({}, num_hidden_layers=2)
    held: dict[str, Any] = {**stored(tensors(config)), "embed_tokens.weight": bf16(np.ones((50, 32)))}
    return config, held, 24


def judged(config: dict[str, Any], held: dict[str, Any], width: int, target: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        more = write_everything(Path(name), config, held, target, width)
        (found,) = ask_all(CHECK, Path(name) / "draft", more.pop("target"), **more)
    return found


def test_the_drafts_that_are_changed_below_are_replayed() -> None:
    for config, held, width in (grouped_draft(), latent_draft()):
        found = judged(config, held, width, {})
        assert found["check"] == CHECK
        assert found["verdict"] != "UNKNOWN", found["summary"]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([grouped_draft, latent_draft]),
    CHANGES,
    st.dictionaries(st.integers(0, 40), st.tuples(SHAPES, FILLS, KINDS), max_size=3),
    st.dictionaries(st.integers(0, 40), st.tuples(FILLS, KINDS), max_size=3),
    st.dictionaries(st.sampled_from(("rms_norm_eps", "embedding_multiplier", "hidden_size", "vocab_size")), PLAIN),
)
def test_no_draft_stops_the_replay(make: Any, changes: Any, shapes: Any, fills: Any, target: Any) -> None:
    config, held, width = make()
    config.update(changes)
    names = sorted(held)
    for index, (shape, fill, kind) in shapes.items():
        held[names[index % len(names)]] = an_array(shape, fill, kind)
    for index, (fill, kind) in fills.items():
        name = names[index % len(names)]
        held[name] = an_array(np.shape(held[name]), fill, kind)
    found = judged(config, held, width, target)
    assert found["check"] == CHECK, found["evidence"]
    assert found["summary"]
