"""The target: three numbers from any spelling of its config, and the few weights that name states."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.draft import open_draft
from checks.errors import BadConfig, BadTensors
from checks.target import Target, open_target
from checks.weights import open_weights
from tests.checks.files import CONFIG, bf16, draft_tensors, write_draft, write_target, write_tensors

IDS = np.array([3, 0, 3, 29])
TABLE = np.random.default_rng(5).standard_normal((30, 16)).astype(np.float32)
NORM = np.linspace(0.5, 1.5, 16, dtype=np.float32)


def target(tmp_path: Path, prefix: str = "model.", head: bool = True, **config: Any) -> Target:
    folder = write_target(tmp_path / "t", **config)
    tensors = {f"{prefix}embed_tokens.weight": TABLE, f"{prefix}norm.weight": NORM}
    if head:
        tensors["lm_head.weight"] = TABLE * 2
    write_tensors(folder / "model.safetensors", tensors)
    return open_target(folder)


@pytest.mark.parametrize("prefix", ["model.", "language_model.model.", "model.language_model.", ""])
def test_embedding_norm_and_head_are_found_under_every_known_prefix(tmp_path: Path, prefix: str) -> None:
    model = target(tmp_path, prefix)
    np.testing.assert_array_equal(model.embedding(IDS), TABLE[IDS])
    np.testing.assert_array_equal(model.final_norm(), NORM)
    head = model.head()
    assert (head.info.name, head.tied) == ("lm_head.weight", False)


def test_without_a_head_it_is_the_embedding(tmp_path: Path) -> None:
    head = target(tmp_path, head=False).head()
    assert (head.info.name, head.tied) == ("model.embed_tokens.weight", True)


def test_numbers_of_a_multimodal_model_are_its_text_models(tmp_path: Path) -> None:
    text = {"num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 163840, "model_type": "kimi_k2"}
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = open_target(tmp_path)
    assert (model.n, model.hidden, model.vocab) == (61, 7168, 163840)
    assert (model.architecture, model.model_type) == ("KimiK25ForConditionalGeneration", "kimi_k2")
    assert model.weights is None
    with pytest.raises(BadTensors, match="no safetensors weights"):
        model.final_norm()


def test_layers_under_another_key(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_layers": 28, "n_embd": 8, "vocab_size": 9, "layer_norm_epsilon": 0.5}')
    model = open_target(tmp_path / "config.json")
    assert (model.n, model.hidden, model.rms_eps) == (28, 8, 0.5)


@pytest.mark.parametrize("value", [None, 0, -1, 12.0, "12", True])
def test_a_config_without_a_number_of_layers_is_named(tmp_path: Path, value: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": value, "hidden_size": 8, "vocab_size": 9}))
    with pytest.raises(BadConfig, match="no number of layers"):
        open_target(tmp_path)


def test_gemma_scales_its_embedding_and_offsets_its_norm(tmp_path: Path) -> None:
    model = target(tmp_path, model_type="gemma3_text", hidden=16)
    np.testing.assert_allclose(model.embedding(IDS), TABLE[IDS] * 4)
    np.testing.assert_allclose(model.final_norm(), 1 + NORM)
    # The factor is rounded to bfloat16, as the model rounds it.
    odd = open_target(write_target(tmp_path / "odd", hidden=1152, model_type="gemma3_text"))
    assert odd.embedding_scale == 34.0 != math.sqrt(1152)
    assert open_target(write_target(tmp_path / "granite", embedding_multiplier=12)).embedding_scale == 12.0


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1e-6", "1e999"])
@pytest.mark.parametrize("key", ["rms_norm_eps", "embedding_multiplier"])
def test_a_number_that_nothing_can_be_computed_with_is_named(tmp_path: Path, key: str, value: str) -> None:
    (tmp_path / "config.json").write_text(
        f'{{"num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 9, "{key}": {value}}}'
    )
    model = open_target(tmp_path)
    with pytest.raises(BadConfig, match=f"{key} is"):
        _ = (model.rms_eps, model.embedding_scale)


def test_token_ids_of_another_vocabulary_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadTensors, match="of another vocabulary"):
        target(tmp_path).embedding(np.array([30]))


def test_shards_are_opened_only_when_they_are_asked_for(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", {"model.norm.weight": bf16(NORM)})
    places = {"model.norm.weight": "a.safetensors", "model.layers.0.x": "b.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    weights = open_weights(tmp_path)
    assert weights is not None
    assert set(weights.info) == set(places)
    assert weights.read("model.norm.weight").shape == (16,)
    with pytest.raises(BadTensors, match=r"b\.safetensors is missing"):
        weights.read("model.layers.0.x")
    with pytest.raises(BadTensors, match="no tensor"):
        weights.read("other")


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"weight_map": [1]}', b'{"weight_map": {"a": 3}}', b"[" * 90_000])
def test_a_damaged_index_is_named(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(raw)
    with pytest.raises(BadTensors, match=r"index\.json"):
        open_weights(tmp_path)


def test_pickled_weights_are_left_out_and_said_so(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert open_weights(tmp_path) is None
    write_tensors(tmp_path / "model.safetensors", {"x": NORM})
    weights = open_weights(tmp_path)
    assert weights is not None
    assert weights.notes == ("pytorch_model.bin left out: only safetensors are read",)


def test_the_slots_a_draft_reads_are_those_of_its_fc(tmp_path: Path) -> None:
    assert open_draft(write_draft(tmp_path / "a")).slots == 3
    wide = {**draft_tensors(), "fc.weight": bf16(np.ones((16, 80)))}
    assert open_draft(write_draft(tmp_path / "b", tensors=wide)).slots == 5
    four = {**CONFIG, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}}
    assert open_draft(write_draft(tmp_path / "c", four, {})).slots == 4
    assert open_draft(write_draft(tmp_path / "d", b"{", {})).slots == 0
