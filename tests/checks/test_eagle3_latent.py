"""Drafts of latent attention and of several layers: the numbers of transformers' own blocks, in numpy and in torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from checks.draft import open_draft
from checks.eagle3 import CannotReplay, Drafter, draft_shape, load_drafter
from checks.rotary import latent_frequencies, latent_magnitude
from tests.checks.files import write_tensors
from tests.checks.latent import HEADS, HIDDEN, ROPE, SLOTS, WIDE, YARN, ByTransformers, config_of, stored, tensors

if TYPE_CHECKING:
    from pathlib import Path

STEPS, ROWS = 4, 140

ROPES: dict[str, dict[str, Any]] = {
    "plain": {"rope_type": "default"},
    "yarn": YARN,
    "yarn with magnitudes": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn as Kimi has it": {**YARN, "beta_fast": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
}


def sizes_of(weights: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in weights.items()}


def compare(config: dict[str, Any], latent: bool = True, later_norm: str = "input_layernorm") -> None:
    """The logits of every step, in numpy and in torch, with those of transformers' blocks."""
    import torch

    weights = tensors(config, latent, later_norm)
    rng = np.random.default_rng(11)
    aux, embedded = (rng.normal(size=(ROWS + STEPS, width)).astype(np.float32) for width in (SLOTS * WIDE, HIDDEN))
    expected = ByTransformers(weights, config, latent, later_norm).logits(aux, embedded, ROWS, STEPS)
    shape = draft_shape(config, sizes_of(weights))
    for xp, make in ((np, np.asarray), (torch, torch.from_numpy)):
        drafter = Drafter(shape, {name: make(value) for name, value in weights.items()}, xp)
        parts = list(drafter.unroll(drafter.fuse(make(aux[:ROWS])), make(embedded), STEPS, 0, ROWS))
        assert [start for start, _ in parts] == [0, 128]
        for j in range(STEPS):
            got = np.concatenate([np.asarray(logits[j]) for _, logits in parts])
            np.testing.assert_allclose(got, expected[j], rtol=1e-3, atol=2e-5)


@pytest.mark.torch
@pytest.mark.parametrize("interleave", [True, False])
@pytest.mark.parametrize("rope", ROPES, ids=str)
def test_latent_attention_gives_what_transformers_gives(rope: str, interleave: bool) -> None:
    compare(config_of(ROPES[rope], rope_interleave=interleave))


@pytest.mark.torch
@pytest.mark.parametrize(
    "change",
    [{"q_lora_rank": None}, {"norm_output": True}, {"fc_norm": True}, {"norm_before_residual": True},
     {"q_lora_rank": None, "norm_output": True, "fc_norm": True, "norm_before_residual": True}],
    ids=lambda change: "+".join(change),
)  # fmt: skip
def test_so_it_does_in_every_variant(change: dict[str, Any]) -> None:
    compare(config_of(ROPES["yarn with magnitudes"], **change))


@pytest.mark.torch
@pytest.mark.parametrize("later_norm", ["input_layernorm", "hidden_norm"])
@pytest.mark.parametrize("latent", [True, False])
def test_layers_after_the_first_are_ordinary_ones(latent: bool, later_norm: str) -> None:
    sizes = {} if latent else {"head_dim": 16, "num_key_value_heads": 2}
    flags = {"norm_before_residual": True, "norm_output": True}
    compare(config_of(ROPES["yarn"], num_hidden_layers=3, **flags, **sizes), latent, later_norm)


def test_the_settings_of_interleaving_are_other_drafts() -> None:
    weights = tensors(config_of(YARN))
    said = []
    for change in ({}, {"rope_interleave": None}, {"rope_interleave": True}, {"rope_interleave": False}):
        drafter = Drafter(draft_shape(config_of(YARN, **change), sizes_of(weights)), weights)
        rng = np.random.default_rng(3)
        fused, embedded = (rng.normal(size=(rows, HIDDEN)).astype(np.float32) for rows in (60, 64))
        said.append(drafter.predict(fused, embedded, 3, 0, 60))
    assert np.array_equal(said[0], said[1])
    assert np.array_equal(said[0], said[2])
    assert not np.array_equal(said[0], said[3])


def test_several_layers_are_the_same_in_any_window() -> None:
    config = config_of(YARN, num_hidden_layers=2)
    weights = tensors(config)
    drafter = Drafter(draft_shape(config, sizes_of(weights)), weights)
    rng = np.random.default_rng(5)
    fused, embedded = (rng.normal(size=(200, HIDDEN)).astype(np.float32) for _ in range(2))
    whole = drafter.predict(fused, embedded, 3, 0, 190)
    assert np.array_equal(drafter.predict(fused, embedded, 3, 129, 150), whole[:, 129:150])
    assert np.array_equal(drafter.predict(fused[:70], embedded[:73], 3, 60, 70), whole[:, 60:70])


# What SGLang, vLLM and TorchSpec make of yarn under latent attention, by hand: 0.1 m ln(64) + 1 is 1.415888 for m = 1.
@pytest.mark.parametrize(
    ("given", "on_cosine", "on_scores"),
    [
        ({}, 1.415888, 1.0),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0, 2.004740),
        ({"mscale_all_dim": 1.0}, 1.0, 2.004740),
        ({"mscale": 0.5}, 1.207944, 1.0),
        ({"mscale": 1.0, "mscale_all_dim": 0.0}, 1.415888, 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 0.707, "factor": 0.5}, 1.0, 1.0),
    ],
)
def test_magnitudes_of_yarn_are_those_of_deepseek(given: dict[str, Any], on_cosine: float, on_scores: float) -> None:
    config = {"rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, **given}}
    assert latent_frequencies(64, config)[1] == pytest.approx(on_cosine, rel=1e-5)
    assert latent_magnitude(config) ** 2 == pytest.approx(on_scores, rel=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"qk_rope_head_dim": None}, "no qk_rope_head_dim"),
        ({"kv_lora_rank": "512"}, "kv_lora_rank is '512'"),
        ({"q_lora_rank": None}, "no q_lora_rank"),
        ({"v_head_dim": 11}, r"kv_b_proj\.weight is \[88, 14\], its config asks \[92, 14\]"),
        ({"qk_nope_head_dim": 11, "qk_rope_head_dim": 9}, "9 dimensions"),
        ({"num_hidden_layers": 2}, "2 layers, its weights hold 1"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 4.0}}, "'linear' under latent attention"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "'llama3' under latent attention"),
        ({"rope_parameters": {**YARN, "attention_factor": 1.0}}, "attention_factor"),
        ({"rope_parameters": {**YARN, "apply_yarn_scaling": False}}, "apply_yarn_scaling"),
        ({"rope_parameters": {**YARN, "mscale_all_dim": "all"}}, "rope settings"),
        ({"rope_parameters": {"full_attention": YARN}}, "each kind of layer"),
    ],
)
def test_settings_that_are_not_computed_are_named(change: dict[str, Any], words: str) -> None:
    weights = tensors(config_of(YARN))
    if "qk_nope_head_dim" in change:
        weights["layer.self_attn.kv_a_proj_with_mqa.weight"] = np.zeros((14 + 9, 2 * HIDDEN), dtype=np.float32)
        weights["layer.self_attn.kv_b_proj.weight"] = np.zeros((HEADS * (11 + 10), 14), dtype=np.float32)
    with pytest.raises(CannotReplay, match=words):
        draft_shape({**config_of(YARN), **change}, sizes_of(weights))


@pytest.mark.parametrize(
    ("tensor", "size", "words"),
    [
        ("layer.self_attn.kv_a_proj_with_mqa.bias", (14 + ROPE,), "no part of latent attention"),
        ("layer.self_attn.fused_qkv_a_proj_with_mqa.weight", (42, 64), "no part of latent attention"),
        ("layer.self_attn.k_proj.weight", (80, 64), r"midlayer\.self_attn\.k_proj\.weight is no part"),
        ("layer.mlp.gate_proj.bias", (3,), "gate_proj.bias"),
        ("fc.bias", (3,), r"fc\.bias"),
        ("fc_norm.0.weight", (WIDE,), r"no fc_norm\.1"),
        ("layer1.mlp.up_proj.weight", (40, 32), "1 layers, its weights hold 2"),
    ],
)
def test_tensors_out_of_place_are_named(tensor: str, size: tuple[int, ...], words: str) -> None:
    with pytest.raises(CannotReplay, match=words):
        draft_shape(config_of(YARN), {**sizes_of(tensors(config_of(YARN))), tensor: size})


def test_a_later_layer_has_one_norm_before_attention() -> None:
    config = config_of(YARN, num_hidden_layers=2)
    sizes = sizes_of(tensors(config))
    with pytest.raises(CannotReplay, match=r"layer 1 should have .* has both"):
        draft_shape(config, {**sizes, "layer1.hidden_norm.weight": (HIDDEN,)})
    del sizes["layer1.input_layernorm.weight"]
    with pytest.raises(CannotReplay, match="has neither"):
        draft_shape(config, sizes)


def write(folder: Path, config: dict[str, Any], held: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    write_tensors(folder / "model.safetensors", held)
    return folder


@pytest.mark.parametrize("first", ["midlayer.", "layers.0.", "model.layers.0."])
def test_a_latent_checkpoint_loads_under_the_names_of_its_trainers(tmp_path: Path, first: str) -> None:
    config = config_of(YARN, num_hidden_layers=2)
    weights = tensors(config)
    drafter = load_drafter(open_draft(write(tmp_path / "draft", config, stored(weights, first))))
    assert (drafter.shape.layers, drafter.shape.heads, drafter.shape.kv_heads, drafter.shape.head_dim) == (2, 4, 4, 20)
    assert drafter.shape.latent is not None
    fused, embedded = np.ones((9, HIDDEN), dtype=np.float32), np.ones((12, HIDDEN), dtype=np.float32)
    same = Drafter(draft_shape(config, sizes_of(weights)), weights).predict(fused, embedded, 2, 0, 9)
    assert np.array_equal(drafter.predict(fused, embedded, 2, 0, 9), same)


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    held = stored(tensors(config_of(YARN)))
    held["layers.0.mlp.up_proj.weight"] = held["midlayer.mlp.up_proj.weight"]
    with pytest.raises(CannotReplay, match="one tensor to the engines"):
        load_drafter(open_draft(write(tmp_path / "draft", config_of(YARN), held)))
