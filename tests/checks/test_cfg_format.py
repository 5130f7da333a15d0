"""cfg.format: a foreign layout is told before keys are missed, and is the one finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checks.asking import ask, ask_all, draft_of, loud
from tests.checks.files import CONFIG, bf16, draft_tensors, write_draft, write_target

MODEL_KEYS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "intermediate_size")
SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
    "draft_vocab_size": 10,
    "norm_before_residual": False,
    "speculators_config": {"algorithm": "eagle3", "verifier": {"architectures": ["LlamaForCausalLM"]}},
    "speculators_model_type": "eagle3",
    "speculators_version": "0.1.0.dev21",
    "torch_dtype": "float32",
    "transformer_layer_config": {key: CONFIG[key] for key in MODEL_KEYS},
}


def test_the_flat_layout_passes(tmp_path: Path) -> None:
    assert ask("cfg.format", draft_of(tmp_path / "d"))["verdict"] == "PASS"


@pytest.mark.parametrize("engine", [(), "sglang==0.5.12", "sglang==0.5.23"])
def test_a_speculators_config_is_one_failure_for_sglang(tmp_path: Path, engine: Any) -> None:
    draft = write_draft(tmp_path / "d", SPECULATORS, {})
    found = ask_all("cfg", draft, write_target(tmp_path / "t", torch_dtype="bfloat16"), engine)
    assert loud(found) == {"cfg.format": "FAIL"}
    (format_,) = (item for item in found if item["check"] == "cfg.format")
    assert format_["evidence"]["mapping"]["/transformer_layer_config/hidden_size"] == "/hidden_size"
    assert "float32" in format_["summary"]
    quiet = [item for item in found if item["check"] != "cfg.format"]
    assert quiet
    assert all(item["verdict"] == "INFO" and "see cfg.format" in item["summary"] for item in quiet)


def test_vllm_reads_speculators_and_the_other_questions_are_asked(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d", {**SPECULATORS, "eagle_aux_hidden_state_layer_ids": [2, 6, 9]}, {})
    found = ask_all("cfg", draft, write_target(tmp_path / "t"), "vllm==0.33.0")
    assert loud(found) == {}
    by_check = {item["check"]: item for item in found}
    assert by_check["cfg.format"]["verdict"] == "PASS"
    assert "4 heads of 4" in by_check["cfg.head_dim"]["summary"]


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        ({"model_type": "eagle", "model": {"hidden_size": 16}}, "vLLM's EAGLE wrapper"),
        ({"pretrained_config": {"hidden_size": 16}, "build_config": {}}, "TensorRT-LLM"),
        ({"architecture": "EagleForCausalLM", "mapping": {"tp_size": 1}}, "TensorRT-LLM"),
        ({"architectures": ["X"], "decoder": {"hidden_size": 16, "num_attention_heads": 4}}, "another tool's"),
        ({"transformer_layer_config": {}}, "speculators"),
    ],
    ids=str,
)
def test_other_nested_layouts_are_told_too(tmp_path: Path, config: dict[str, Any], layout: str) -> None:
    draft = write_draft(tmp_path / "d", config, {})
    found = ask_all("cfg", draft, engine="sglang==0.5.20")
    assert loud(found) == {"cfg.format": "FAIL"}
    (format_,) = (item for item in found if item["check"] == "cfg.format")
    assert format_["evidence"]["layout"] == layout
    assert format_["engine"] == "sglang==0.5.20"


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["DFlashDraftModel"], "dflash_config": {"target_layer_ids": [1, 9]}, "hidden_size": 16},
        {"medusa_num_heads": 4, "hidden_size": 16},
        {"speculators_model_type": "dflash", "transformer_layer_config": {"hidden_size": 16}},
        {"model_type": "mlp_speculator"},
    ],
    ids=str,
)
def test_another_family_of_drafts_is_not_judged(tmp_path: Path, config: dict[str, Any]) -> None:
    found = ask_all("cfg", write_draft(tmp_path / "d", config, {}))
    assert loud(found) == {}
    assert {item["verdict"] for item in found if item["check"] == "cfg.format"} == {"UNKNOWN"}


def test_a_multimodal_text_config_is_not_foreign(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d", {"architectures": ["X"], "text_config": {"hidden_size": 16}}, {})
    assert ask("cfg.format", draft)["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("engine", "kind", "verdict"),
    [("vllm==0.23.0", "mistral", "PASS"), ("vllm==0.24.0", "mistral", "FAIL"), ("vllm==0.33.0", "qwen3", "PASS")],
)
def test_vllm_translates_some_model_types_of_speculators(tmp_path: Path, engine: str, kind: str, verdict: str) -> None:
    nested = {"transformer_layer_config": {**CONFIG, "model_type": kind}, "speculators_model_type": "eagle3"}
    draft = write_draft(tmp_path / "d", {**nested, "architectures": ["Eagle3DraftModel"]}, {})
    assert ask("cfg.architectures", draft, engine=engine)["verdict"] == verdict


@pytest.mark.parametrize(
    ("key", "engine", "verdict"),
    [
        ("norm_before_fc", "vllm==0.11.2", "FAIL"),
        ("norm_before_fc", "vllm==0.22.0", "PASS"),
        ("fc_norm", "vllm==0.24.0", "FAIL"),
        ("fc_norm", "vllm==0.25.1", "PASS"),
        ("norm_output", "vllm==0.24.0", "FAIL"),
        ("norm_output", "vllm==0.25.1", "INFO"),
    ],
)
def test_vllm_copies_the_keys_of_speculators_one_by_one(tmp_path: Path, key: str, engine: str, verdict: str) -> None:
    nested = {"transformer_layer_config": CONFIG, "speculators_model_type": "eagle3", key: True}
    assert ask("cfg.forward", write_draft(tmp_path / "d", nested, {}), engine=engine)["verdict"] == verdict


def test_vllm_builds_fc_of_a_speculators_draft_for_three_states(tmp_path: Path) -> None:
    nested = {"transformer_layer_config": CONFIG, "speculators_model_type": "eagle3"}
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 24, 45, 48]}
    found = ask("cfg.forward", write_draft(tmp_path / "d", {**nested, **ids}, {}), engine="vllm==0.32.0")
    assert found["verdict"] == "FAIL"
    assert "4 states are fed, and fc is built for 3" in found["summary"]
    assert found["summary"].endswith("vllm==0.32.0 stops")


def test_the_keys_inside_vllms_wrapper_are_found(tmp_path: Path) -> None:
    wrapped = {"model_type": "eagle", "model": {**CONFIG, "num_hidden_layers": 1}}
    draft = write_draft(tmp_path / "d", wrapped, {})
    assert ask("cfg.num_hidden_layers", draft, engine="vllm==0.9.2")["verdict"] == "PASS"
    assert ask("cfg.hidden_vs_target", draft, write_target(tmp_path / "t"), "vllm==0.9.2")["verdict"] == "PASS"
    several = write_draft(tmp_path / "e", {**wrapped, "model": {**CONFIG, "num_hidden_layers": None}}, {})
    found = ask("cfg.num_hidden_layers", several, engine="vllm==0.9.2")
    assert found["fix"]["patch"][-1]["path"] == "/model/num_hidden_layers"


def test_speculators_drafts_of_another_family_are_not_held_to_eagle3(tmp_path: Path) -> None:
    config = {"speculators_model_type": "dflash", "transformer_layer_config": CONFIG}
    draft = write_draft(tmp_path / "d", config, {**draft_tensors(), "fc.weight": bf16(np.ones((16, 80)))})
    for engine in ("vllm==0.32.0", "sglang==0.5.23"):
        found = ask_all(["cfg", "ckpt.shapes", "ckpt.names"], draft, engine=engine)
        assert {item["verdict"] for item in found} <= {"INFO", "UNKNOWN"}
