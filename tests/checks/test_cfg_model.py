"""cfg.architectures and cfg.num_hidden_layers: the class that is built, and how many layers it may have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.patch import apply_patch
from tests.checks.asking import ask, config_of, draft_of, draft_with
from tests.checks.files import bf16, draft_tensors, write_draft, write_target

RIGHT = "LlamaForCausalLMEagle3"
LATENT = "Eagle3DeepseekV2ForCausalLM"


def fixed(draft: Path, found: dict[str, Any]) -> Path:
    path = draft / "config.json"
    path.write_text(json.dumps(apply_patch(json.loads(path.read_text()), found["fix"]["patch"])))
    return draft


@pytest.mark.parametrize(
    "named",
    [["LlamaForCausalLM"], ["Qwen3ForCausalLM"], ["Eagle3LlamaForCausalLM"], ["LlamaForCausalLMEagle"]],
    ids=str,
)
@pytest.mark.parametrize("engine", [(), "sglang==0.5.3", "sglang==0.5.23"])
def test_a_class_that_is_not_sglangs_fails_and_is_fixed(tmp_path: Path, named: list[str], engine: Any) -> None:
    draft = draft_with(tmp_path / "d", {"architectures": named})
    found = ask("cfg.architectures", draft, engine=engine)
    assert found["verdict"] == "FAIL"
    assert RIGHT in found["summary"]
    assert "d2t" in found["evidence"]["eagle3_by"]
    assert ask("cfg.architectures", fixed(draft, found), engine=engine)["verdict"] == "PASS"


def test_the_config_alone_is_evidence_enough(tmp_path: Path) -> None:
    found = ask("cfg.architectures", draft_of(tmp_path / "d", {"architectures": ["LlamaForCausalLM"]}))
    assert found["verdict"] == "FAIL"
    assert "draft_vocab_size" in found["summary"]


def test_the_tensors_alone_are_evidence_enough(tmp_path: Path) -> None:
    config = {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 16}
    found = ask("cfg.architectures", write_draft(tmp_path / "d", config, draft_tensors()))
    assert found["verdict"] == "FAIL"
    assert "fc.weight" in found["evidence"]["eagle3_by"]


def test_an_ordinary_small_model_is_not_condemned(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 16, "num_hidden_layers": 4}
    assert ask("cfg.architectures", write_draft(tmp_path / "d", config, {}))["verdict"] == "UNKNOWN"


@pytest.mark.parametrize("named", ["absent", None, [], "LlamaForCausalLMEagle3", [3], {}], ids=str)
def test_architectures_that_are_no_list_of_names_fail(tmp_path: Path, named: object) -> None:
    assert ask("cfg.architectures", draft_of(tmp_path / "d", {"architectures": named}))["verdict"] == "FAIL"


def test_vllm_takes_the_base_name(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d", {"architectures": ["LlamaForCausalLM"]})
    assert ask("cfg.architectures", draft, engine="vllm==0.30.0")["verdict"] == "PASS"


def test_the_model_type_of_another_family_is_legal(tmp_path: Path) -> None:
    for kind in ("phi3", "qwen2"):
        assert ask("cfg.architectures", draft_with(tmp_path / kind, {"model_type": kind}))["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("engine", "verdict"), [((), "INFO"), ("sglang==0.5.11", "FAIL"), ("sglang==0.5.12", "PASS")], ids=str
)
def test_the_latent_class_came_with_a_release(tmp_path: Path, engine: Any, verdict: str) -> None:
    found = ask("cfg.architectures", draft_of(tmp_path / "d", {"architectures": [LATENT]}), engine=engine)
    assert found["verdict"] == verdict
    assert "0.5.12" in found["summary"] or verdict == "PASS"


def test_class_and_kind_of_attention_go_together(tmp_path: Path) -> None:
    plain = draft_with(tmp_path / "a", {"architectures": [LATENT]})
    found = ask("cfg.architectures", plain, engine="sglang==0.5.20")
    assert found["verdict"] == "FAIL"
    assert found["fix"]["patch"][-1]["value"] == [RIGHT]
    gone = {f"midlayer.self_attn.{part}_proj.weight": None for part in "qkv"}
    latent = {"midlayer.self_attn.kv_a_proj_with_mqa.weight": bf16(np.ones((8, 32)))}
    draft = draft_with(tmp_path / "b", None, {**gone, **latent})
    found = ask("cfg.architectures", draft, engine="sglang==0.5.20")
    assert found["verdict"] == "FAIL"
    assert found["fix"]["patch"][-1]["value"] == [LATENT]
    # Where the release lacks the class, naming it would only trade one failure for another.
    assert ask("cfg.architectures", draft, engine="sglang==0.5.9")["fix"] is None


@pytest.mark.parametrize(
    ("engine", "verdict"),
    [((), "UNKNOWN"), ("sglang==0.4.6.post1", "FAIL"), ("sglang==0.5.11", "FAIL"), ("sglang==0.5.12", "INFO")],
    ids=str,
)
def test_several_layers_depend_on_the_release(tmp_path: Path, engine: Any, verdict: str) -> None:
    found = ask("cfg.num_hidden_layers", draft_of(tmp_path / "d", {"num_hidden_layers": 2}), engine=engine)
    assert found["verdict"] == verdict
    assert "0.5.12" in found["summary"]


def test_the_targets_number_is_named_and_the_weights_give_the_fix(tmp_path: Path) -> None:
    draft, target = draft_with(tmp_path / "d", {"num_hidden_layers": 36}), write_target(tmp_path / "t", 36)
    found = ask("cfg.num_hidden_layers", draft, target, "sglang==0.5.10")
    assert found["verdict"] == "FAIL"
    assert "the target's number" in found["summary"]
    assert ask("cfg.num_hidden_layers", fixed(draft, found), target, "sglang==0.5.10")["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("value", "verdict"), [("absent", "WARN"), ("1", "FAIL"), (0, "FAIL"), (True, "FAIL")], ids=str
)
def test_a_number_that_is_none_is_fixed(tmp_path: Path, value: object, verdict: str) -> None:
    draft = draft_of(tmp_path / "d", {"num_hidden_layers": value})
    found = ask("cfg.num_hidden_layers", draft)
    assert found["verdict"] == verdict
    assert ask("cfg.num_hidden_layers", fixed(draft, found))["verdict"] == "PASS"


def test_two_engines_give_two_answers(tmp_path: Path) -> None:
    from tests.checks.asking import ask_all

    draft = write_draft(tmp_path / "d", config_of({"num_hidden_layers": 2}), {})
    found = ask_all("cfg.num_hidden_layers", draft, engine=["sglang==0.5.11", "sglang==0.5.12"])
    assert [(item["engine"], item["verdict"]) for item in found] == [
        ("sglang==0.5.11", "FAIL"),
        ("sglang==0.5.12", "INFO"),
    ]


@pytest.mark.parametrize(
    ("name", "engine", "verdict"),
    [
        ("LlamaForCausalLM", "vllm==0.8.5", "PASS"),
        ("LlamaForCausalLMEagle3", "vllm==0.10.1.1", "FAIL"),
        ("LlamaForCausalLMEagle3", "vllm==0.10.2", "PASS"),
        ("Qwen3ForCausalLM", "vllm==0.22.0", "FAIL"),
        ("Qwen3ForCausalLM", "vllm==0.24.0", "PASS"),
        ("Eagle3DeepseekV2ForCausalLM", "vllm==0.11.2", "FAIL"),
        ("Eagle3DeepseekV2ForCausalLM", "vllm==0.15.0", "PASS"),  # not looked into
        ("LlamaEagle3DraftModel", "vllm==0.33.0", "FAIL"),
        ("LlamaEagle3DraftModel", "vllm==0.34.0", "PASS"),
    ],
)
def test_the_class_that_vllm_makes_of_the_name(tmp_path: Path, name: str, engine: str, verdict: str) -> None:
    draft = draft_of(tmp_path / "d", {"architectures": [name]})
    assert ask("cfg.architectures", draft, engine=engine)["verdict"] == verdict
