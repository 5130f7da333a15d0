"""ckpt.layers, ckpt.names, ckpt.flag_weights: the names in the weights against what is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checks.asking import ask, ask_all, config_of, draft_with, loud
from tests.checks.files import CONFIG, Array, bf16, draft_tensors, write_draft, write_target
from tests.checks.test_cfg_model import LATENT, fixed


def ones(*shape: int) -> Array:
    return bf16(np.ones(shape))


def test_one_layer_in_both_passes(tmp_path: Path) -> None:
    assert ask("ckpt.layers", draft_with(tmp_path / "d"))["verdict"] == "PASS"


def test_the_header_counts_the_layers(tmp_path: Path) -> None:
    draft = draft_with(tmp_path / "d", {"num_hidden_layers": 36})
    found = ask("ckpt.layers", draft)
    assert found["verdict"] == "FAIL"
    assert "1 layer, num_hidden_layers says 36" in found["summary"]
    assert ask("ckpt.shapes", draft)["verdict"] == "PASS"
    assert ask("ckpt.layers", fixed(draft, found))["verdict"] == "PASS"


def test_a_second_layer_in_the_weights_is_seen(tmp_path: Path) -> None:
    second = {"layers.1.input_layernorm.weight": ones(16)}
    assert ask("ckpt.layers", draft_with(tmp_path / "a", None, second))["verdict"] == "FAIL"
    gap = {"layers.2.input_layernorm.weight": ones(16)}
    found = ask("ckpt.layers", draft_with(tmp_path / "b", None, gap))
    assert "without gaps" in found["summary"]


@pytest.mark.parametrize(
    ("prefix", "engine", "verdict"),
    [
        ("midlayer.", "sglang==0.4.6.post1", "PASS"),
        ("midlayer.", (), "PASS"),
        ("layers.0.", (), "INFO"),
        ("layers.0.", "sglang==0.5.11", "FAIL"),
        ("layers.0.", "sglang==0.5.12", "PASS"),
        ("layers.0.", "vllm==0.20.0", "PASS"),
    ],
)
def test_names_are_loaded_by_some_releases(tmp_path: Path, prefix: str, engine: Any, verdict: str) -> None:
    draft = write_draft(tmp_path / "d", tensors=draft_tensors(prefix))
    assert ask("ckpt.names", draft, engine=engine)["verdict"] == verdict


def two_layers(folder: Path, *norms: str) -> Path:
    """A draft whose second layer stores its norm in front of attention under these names."""
    first = {name: value for name, value in draft_tensors("layers.0.").items() if name.startswith("layers.0.")}
    second = {name.replace("layers.0.", "layers.1."): value for name, value in first.items()}
    for part in ("q", "k", "v"):
        name = f"layers.1.self_attn.{part}_proj.weight"
        second[name] = ones(second[name].shape[0], second[name].shape[1] // 2)
    for norm in ("hidden_norm", "input_layernorm"):
        if norm not in norms:
            del second[f"layers.1.{norm}.weight"]
    return write_draft(folder, config_of({"num_hidden_layers": 2}), {**draft_tensors("layers.0."), **second})


@pytest.mark.parametrize(
    ("norms", "engine", "verdict"),
    [
        (("input_layernorm",), "sglang==0.5.12", "FAIL"),
        (("input_layernorm",), "sglang", "FAIL"),
        (("input_layernorm",), "vllm==0.32.0", "PASS"),
        (("input_layernorm",), (), "WARN"),
        (("hidden_norm",), "sglang==0.5.23", "PASS"),
        (("hidden_norm",), "vllm==0.32.0", "FAIL"),
        (("hidden_norm", "input_layernorm"), "sglang==0.5.23", "PASS"),
        (("hidden_norm", "input_layernorm"), "vllm==0.32.0", "PASS"),
        ((), "sglang==0.5.23", "FAIL"),
        ((), "vllm==0.32.0", "FAIL"),
    ],
)
def test_the_norm_of_a_later_layer_has_the_name_its_engine_reads(
    tmp_path: Path, norms: tuple[str, ...], engine: Any, verdict: str
) -> None:
    draft = two_layers(tmp_path / "d", *norms)
    found = ask("ckpt.names", draft, engine=engine)
    assert found["verdict"] == verdict
    assert found["evidence"]["later_norms"]["stored"] == {
        "1": [name for name in ("input_layernorm", "hidden_norm") if name in norms]
    }
    if verdict == "FAIL":
        assert f"layers.1.{found['evidence']['later_norms']['read']}.weight" in found["summary"]
    # Under whichever name, its shape is held to the config, and nothing else is amiss with the draft.
    assert ask("ckpt.shapes", draft)["verdict"] == "PASS"


def test_a_release_of_one_layer_is_not_told_of_its_norms(tmp_path: Path) -> None:
    draft = two_layers(tmp_path / "d", "input_layernorm")
    assert "layers.0.* is loaded by" in ask("ckpt.names", draft, engine="sglang==0.5.11")["summary"]
    assert ask("cfg.num_hidden_layers", draft, engine="sglang==0.5.11")["verdict"] == "FAIL"


def test_the_norm_of_a_later_layer_has_a_shape(tmp_path: Path) -> None:
    draft = two_layers(tmp_path / "d", "hidden_norm")
    wrong = {**draft_tensors("layers.0."), "layers.1.hidden_norm.weight": ones(8)}
    found = ask("ckpt.shapes", write_draft(draft, config_of({"num_hidden_layers": 2}), wrong))
    assert found["verdict"] == "FAIL"
    assert "layers.1.hidden_norm.weight is [8]" in found["summary"]


@pytest.mark.parametrize(
    ("prefix", "told"),
    [("module.", "module."), ("draft_model.", "draft_model."), ("eagle_module.model.", "eagle_module.")],
)
def test_a_trainers_prefix_hides_everything(tmp_path: Path, prefix: str, told: str) -> None:
    tensors = {prefix + name: value for name, value in draft_tensors().items()}
    found = ask("ckpt.names", write_draft(tmp_path / "d", tensors=tensors))
    assert found["verdict"] == "FAIL"
    assert found["evidence"]["prefix"] == told


def test_both_spellings_at_once_warn(tmp_path: Path) -> None:
    both = {"layers.0.mlp.up_proj.weight": ones(24, 16)}
    assert ask("ckpt.names", draft_with(tmp_path / "d", None, both))["verdict"] == "WARN"


def test_the_latent_class_takes_no_model_in_front(tmp_path: Path) -> None:
    config = {"architectures": [LATENT]}
    tensors = {"model." + name: value for name, value in draft_tensors().items()}
    found = ask("ckpt.names", write_draft(tmp_path / "d", config, tensors), engine="sglang==0.5.20")
    assert found["verdict"] == "FAIL"
    assert ask("ckpt.names", write_draft(tmp_path / "e", tensors=tensors), engine="sglang==0.5.20")["verdict"] == "PASS"


NORMS = {f"fc_norm.{slot}.weight": ones(16) for slot in range(3)}
OLD_NORMS = {f"aux_norm_{place}.weight": ones(16) for place in ("low", "mid", "high")}
BEFORE_FC = {"input_norm.weight": ones(48)}


@pytest.mark.parametrize(
    ("change", "tensors", "verdict"),
    [
        ({}, {}, "PASS"),
        ({"fc_norm": True}, NORMS, "PASS"),
        ({"use_aux_norm": True}, OLD_NORMS, "PASS"),
        ({"norm_before_fc": True}, BEFORE_FC, "PASS"),
        ({"eagle_config": {"norm_before_fc": True}}, BEFORE_FC, "PASS"),
        ({"fc_norm": False}, NORMS, "FAIL"),
        ({}, BEFORE_FC, "FAIL"),
        ({"fc_norm": True}, {}, "FAIL"),
        ({"norm_before_fc": True}, {}, "FAIL"),
        ({}, {"fc.bias": ones(16)}, "FAIL"),
        ({"bias": True}, {"fc.bias": ones(16)}, "PASS"),
    ],
    ids=str,
)
def test_keys_and_tensors_go_together(
    tmp_path: Path, change: dict[str, Any], tensors: dict[str, Array], verdict: str
) -> None:
    assert ask("ckpt.flag_weights", draft_with(tmp_path / "d", change, tensors))["verdict"] == verdict


def test_tensors_without_their_key_are_fixed_where_the_release_reads_it(tmp_path: Path) -> None:
    draft = draft_with(tmp_path / "d", None, {**BEFORE_FC, **NORMS})
    old = ask("ckpt.flag_weights", draft, engine="sglang==0.5.13")
    assert old["fix"] is None
    found = ask("ckpt.flag_weights", draft, engine="sglang==0.5.17")
    assert "input_norm.weight is there and norm_before_fc is not on" in found["summary"]
    assert ask("ckpt.flag_weights", fixed(draft, found), engine="sglang==0.5.17")["verdict"] == "PASS"
    assert ask("ckpt.shapes", draft)["verdict"] == "PASS"


BIASES = {f"midlayer.self_attn.{name}_proj.bias": bf16(np.ones(rows)) for name, rows in zip("qkv", (16, 8, 8))}


@pytest.mark.parametrize(
    ("change", "tensors", "verdict"),
    [
        ({}, BIASES, "FAIL"),
        ({"attention_bias": True}, BIASES, "PASS"),
        ({"bias": True}, {**BIASES, "fc.bias": bf16(np.ones(16))}, "PASS"),
        ({"attention_bias": True}, {}, "FAIL"),
        ({"attention_bias": False}, {}, "PASS"),
    ],
    ids=str,
)
def test_biases_of_attention_go_with_their_key(
    tmp_path: Path, change: dict[str, Any], tensors: dict[str, Array | None], verdict: str
) -> None:
    draft = draft_with(tmp_path / "d", change, tensors)
    found = ask("ckpt.flag_weights", draft)
    assert found["verdict"] == verdict
    if found["fix"]:
        assert ask("ckpt.flag_weights", fixed(draft, found))["verdict"] == "PASS"


def test_the_bias_of_fc_alone_has_no_key_that_would_not_turn_on_others(tmp_path: Path) -> None:
    found = ask("ckpt.flag_weights", draft_with(tmp_path / "d", None, {"fc.bias": bf16(np.ones(16))}))
    assert (found["verdict"], found["fix"]) == ("FAIL", None)


def eagle_one(folder: Path, change: dict[str, Any]) -> Path:
    """A draft of EAGLE-1 in small: one layer of the target's kind, fc over an embedding and a state."""
    wide = ("q_proj", "k_proj", "v_proj")
    tensors = {
        name.replace("midlayer.", "layers.0."): value[:, :16] if any(part in name for part in wide) else value
        for name, value in draft_tensors().items()
        if not any(part in name for part in ("d2t", "t2d", "hidden_norm", "lm_head", "fc.", "norm.weight"))
    }
    tensors |= {"fc.weight": bf16(np.ones((16, 32))), "layers.0.post_attention_layernorm.weight": bf16(np.ones(16))}
    own = config_of({"draft_vocab_size": "absent", "eagle_config": "absent", "head_dim": "absent", **change})
    return write_draft(folder, own, tensors)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "LlamaForCausalLMEagle", "EagleLlamaForCausalLM"])
def test_a_draft_of_eagle_one_is_not_judged_as_eagle_three(tmp_path: Path, architecture: str) -> None:
    draft, target = eagle_one(tmp_path / "d", {"architectures": [architecture]}), write_target(tmp_path / "t")
    found = ask_all(["cfg", "ckpt"], draft, target, "sglang==0.5.20")
    assert loud(found) == {}
    assert all(item["fix"] is None for item in found)
    assert "EAGLE-1" in next(item["summary"] for item in found if item["check"] == "cfg.format")
    args = "--speculative-algorithm EAGLE3 --speculative-draft-model-path /d"
    assert ask("flags.algo_vs_arch", draft, target, "sglang==0.5.20", args)["verdict"] == "FAIL"
    assert ask("flags.algo_vs_arch", draft, target, "sglang==0.5.20", args.replace("E3", "E"))["verdict"] == "PASS"


def test_the_older_class_on_an_eagle_three_draft_is_a_slip(tmp_path: Path) -> None:
    draft = draft_with(tmp_path / "d", {"architectures": ["LlamaForCausalLMEagle"]})
    found = ask("cfg.architectures", draft, write_target(tmp_path / "t"), "sglang==0.5.20")
    assert found["verdict"] == "FAIL"
    assert ask("cfg.architectures", fixed(draft, found), engine="sglang==0.5.20")["verdict"] == "PASS"


def test_a_release_without_the_class_is_one_finding(tmp_path: Path) -> None:
    latent = {"layers.0.self_attn.q_a_proj.weight": bf16(np.ones((8, 32)))}
    draft = write_draft(
        tmp_path / "d", config_of({"architectures": [LATENT]}), {**draft_tensors("layers.0."), **latent}
    )
    assert ask("cfg.architectures", draft, engine="sglang==0.5.11")["verdict"] == "FAIL"
    assert ask("ckpt.names", draft, engine="sglang==0.5.11")["verdict"] == "INFO"
    assert ask("ckpt.names", draft, engine="sglang==0.5.12")["verdict"] == "PASS"


@pytest.mark.parametrize("prefix", ["draft_model.", "base_model.model."])
def test_names_behind_a_prefix_are_one_finding(tmp_path: Path, prefix: str) -> None:
    draft = write_draft(tmp_path / "d", None, {prefix + name: value for name, value in draft_tensors().items()})
    found = ask_all(["cfg", "ckpt"], draft, write_target(tmp_path / "t"), "sglang==0.5.20")
    assert set(loud([item for item in found if item["check"] != "ckpt.numbers"])) == {"ckpt.names"}


def test_a_layer_behind_a_prefix_would_be_random(tmp_path: Path) -> None:
    moved = {name.replace("midlayer.", "module.midlayer."): value for name, value in draft_tensors().items()}
    found = ask("ckpt.names", write_draft(tmp_path / "d", None, moved))
    assert found["verdict"] == "FAIL"
    assert "the layer would be random" in found["summary"]


@pytest.mark.parametrize("engine", ["sglang==0.5.23", "vllm==0.32.0"])
def test_the_map_is_looked_for_under_one_name(tmp_path: Path, engine: str) -> None:
    held = draft_tensors()
    renamed = {"draft_id_to_target_id" if name == "d2t" else name: value for name, value in held.items()}
    draft = write_draft(tmp_path / "d", CONFIG, renamed)
    found = ask("ckpt.names", draft, engine=engine)
    assert found["verdict"] == "FAIL"
    assert "engines look for d2t" in found["summary"]


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def test_a_quantisation_copied_from_the_target_has_no_scales(tmp_path: Path) -> None:
    draft = draft_with(tmp_path / "d", {"quantization_config": FP8})
    found = ask("ckpt.flag_weights", draft)
    assert found["verdict"] == "FAIL"
    assert "no tensor is quantised" in found["summary"]
    assert found["fix"]["patch"][-1] == {"op": "remove", "path": "/quantization_config"}
    # A draft may be left out of it on purpose, or bring its scales; what an unknown method needs is not known.
    scale = {"layers.0.self_attn.q_proj.weight_scale": np.ones(1, np.float32)}
    for name, more, tensors in (
        ("a", {**FP8, "modules_to_not_convert": ["layers.0"]}, {}),
        ("b", FP8, scale),
        ("c", {"quant_method": "torchao"}, {}),
    ):
        other = draft_with(tmp_path / name, {"quantization_config": more}, tensors)
        assert ask("ckpt.flag_weights", other)["verdict"] == "PASS"


def test_scales_without_a_quantisation_in_the_config(tmp_path: Path) -> None:
    scale = {"layers.0.self_attn.q_proj.weight_scale": np.ones(1, np.float32)}
    draft = draft_with(tmp_path / "d", None, scale)
    assert ask("ckpt.flag_weights", draft)["verdict"] == "FAIL"
    (draft / "hf_quant_config.json").write_text("{}")  # where ModelOpt writes it
    assert ask("ckpt.flag_weights", draft)["verdict"] == "PASS"
