"""cfg.forward, cfg.use_aux, cfg.keys: keys that change the draft, and the releases that read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checks.asking import ask, draft_of, draft_with
from tests.checks.files import bf16

KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("change", "engine", "verdict"),
    [
        ({}, "sglang==0.4.9.post6", "PASS"),
        ({"fc_norm": True}, "sglang==0.5.11", "FAIL"),
        ({"fc_norm": True}, "sglang==0.5.12", "PASS"),
        ({"fc_norm": True, "norm_output": True}, (), "INFO"),
        ({"norm_output": True}, "sglang==0.5.12", "INFO"),
        ({"norm_before_fc": True}, "sglang==0.5.16", "FAIL"),
        ({"norm_before_fc": True}, "sglang==0.5.17", "PASS"),
        ({"eagle_config": {"norm_before_fc": True}}, "sglang==0.5.16", "FAIL"),
        ({"norm_before_residual": True}, "sglang==0.5.23", "FAIL"),
        ({"norm_before_residual": True}, "vllm==0.20.0", "PASS"),
        ({"norm_before_residual": True}, "vllm==0.10.0", "FAIL"),
        ({"fc_norm": True}, "vllm==0.11.2", "FAIL"),
        ({"fc_norm": True}, "vllm==0.16.0", "INFO"),  # neither known to read it nor known not to
        ({"fc_norm": True}, "vllm==0.22.0", "PASS"),
        ({"fc_norm": True, "architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "vllm==0.22.0", "FAIL"),
        ({"fc_norm": True, "architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "vllm==0.23.0", "PASS"),
        ({"norm_before_fc": True, "architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "vllm==0.33.0", "FAIL"),
        ({"use_aux_norm": True}, "vllm==0.33.0", "FAIL"),
        ({"parallel_drafting": True}, "sglang==0.5.23", "FAIL"),
        ({"ptd_token_id": 128255}, "sglang==0.5.23", "FAIL"),
        ({"ptd_token_id": 128255}, "vllm==0.22.0", "INFO"),
        # vLLM counts the ids in eagle_config alone, and feeds those at the top level.
        ({KEY: [1, 2, 5, 8], "eagle_config": {}}, "vllm==0.32.0", "FAIL"),
        ({KEY: [1, 2, 5, 8], "eagle_config": {}, "num_aux_hidden_states": 4}, "vllm==0.32.0", "PASS"),
        ({KEY: [1, 2, 5, 8], "eagle_config": {KEY: [1, 2, 5, 8]}}, "vllm==0.32.0", "PASS"),
        ({KEY: [1, 2, 5, 8], "eagle_config": {KEY: [1, 2, 5, 8]}}, "vllm==0.11.2", "FAIL"),
        ({"norm_before_residual": False}, "sglang==0.5.23", "PASS"),
        ({"num_aux_hidden_states": 5}, "sglang==0.5.11", "FAIL"),
        ({"num_aux_hidden_states": 5}, "sglang==0.5.12", "PASS"),
        ({"eagle_config": {KEY: [1, 2, 5, 8]}}, "sglang==0.5.10", "FAIL"),
    ],
    ids=str,
)
def test_keys_are_read_by_some_releases(tmp_path: Path, change: dict[str, Any], engine: Any, verdict: str) -> None:
    found = ask("cfg.forward", draft_of(tmp_path / "d", change), engine=engine)
    assert found["verdict"] == verdict
    if verdict == "FAIL":
        assert "SGLang" in found["summary"] or "vLLM" in found["summary"] or "vllm" in found["summary"]


def false(**more: Any) -> dict[str, Any]:
    return {"eagle_config": {"use_aux_hidden_state": False, **more}}


def test_the_last_state_alone_takes_an_fc_of_one_state_or_none(tmp_path: Path) -> None:
    one = draft_with(tmp_path / "a", false(), {"fc.weight": bf16(np.ones((16, 16)))})
    none = draft_with(tmp_path / "b", false(), {"fc.weight": None})
    assert ask("cfg.use_aux", one, engine="sglang==0.5.20")["verdict"] == "PASS"
    assert ask("cfg.use_aux", none, engine="sglang==0.5.20")["verdict"] == "PASS"
    found = ask("cfg.use_aux", draft_with(tmp_path / "c", false()))
    assert found["verdict"] == "FAIL"
    assert "48 columns, 3 states of 16" in found["summary"]
    # No layer ids are asked of it.
    assert ask("cfg.aux_ids", one)["verdict"] == "INFO"


@pytest.mark.parametrize(
    ("engine", "verdict"),
    [
        ((), "INFO"),
        ("sglang==0.5.7", "FAIL"),
        ("sglang==0.5.8", "PASS"),
        ("vllm==0.11.0", "FAIL"),
        ("vllm==0.12.0", "PASS"),
        ("vllm==0.32.0", "WARN"),
    ],
)
def test_an_older_release_does_not_read_the_key(tmp_path: Path, engine: Any, verdict: str) -> None:
    assert ask("cfg.use_aux", draft_of(tmp_path / "d", false()), engine=engine)["verdict"] == verdict


@pytest.mark.parametrize("value", ["false", 0, []], ids=str)
def test_a_value_that_is_neither_true_nor_false_fails(tmp_path: Path, value: object) -> None:
    draft = draft_of(tmp_path / "d", {"eagle_config": {"use_aux_hidden_state": value}})
    assert ask("cfg.use_aux", draft)["verdict"] == "FAIL"


def test_a_slip_in_a_key_engines_read_warns(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d", {"num_key_value_heads": "absent", "num_key_value_head": 2})
    found = ask("cfg.keys", draft)
    assert found["verdict"] == "WARN"
    assert found["evidence"]["slips"] == {"num_key_value_head": "num_key_value_heads"}


def test_a_key_that_stands_twice_warns(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d")
    path = draft / "config.json"
    twice = '{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 7, 10]}, "rope_scaling": {"a": 1, "a": 2}, '
    path.write_text(path.read_text().replace("{", twice, 1))
    found = ask("cfg.keys", draft)
    assert (found["verdict"], found["evidence"]["twice"]) == ("WARN", ["a", "eagle_config"])
    assert "'eagle_config' stands twice in one object: engines read the last" in found["summary"]


def test_a_slip_in_the_ids_key_is_said_once(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d", {"eagle_config": "absent", f"{KEY}s": [2, 6, 9]})
    assert ask("cfg.keys", draft)["verdict"] == "INFO"
    assert f"'{KEY}s'" in ask("cfg.aux_ids", draft)["summary"]


@pytest.mark.parametrize("key", ["feature_shift", "num_key_value_head", "\x1b[31m" * 9, ""])
def test_other_unknown_keys_are_only_told(tmp_path: Path, key: str) -> None:
    found = ask("cfg.keys", draft_of(tmp_path / "d", {key: 1}))
    assert found["verdict"] == "INFO"
    assert "\x1b" not in found["summary"]


@pytest.mark.parametrize("engine", ["sglang==0.5.12", "vllm==0.32.0"])
def test_the_mlp_of_a_draft_knows_one_activation(tmp_path: Path, engine: str) -> None:
    found = ask("cfg.forward", draft_of(tmp_path / "a", {"hidden_act": "gelu_pytorch_tanh"}), engine=engine)
    assert found["verdict"] == "FAIL"
    assert ask("cfg.forward", draft_of(tmp_path / "b", {"hidden_act": "silu"}), engine=engine)["verdict"] == "PASS"
