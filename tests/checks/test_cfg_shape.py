"""cfg.head_dim, cfg.tie, cfg.hidden_vs_target, cfg.vocab_alias, cfg.vocab_vs_target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checks.asking import ask, ask_all, draft_of, draft_with
from tests.checks.files import Array, bf16, write_draft, write_target
from tests.checks.test_cfg_model import fixed


def ones(*shape: int) -> Array:
    return bf16(np.ones(shape))


WIDE_HEADS = {
    "midlayer.self_attn.q_proj.weight": ones(32, 32),
    "midlayer.self_attn.k_proj.weight": ones(16, 32),
    "midlayer.self_attn.v_proj.weight": ones(16, 32),
    "midlayer.self_attn.o_proj.weight": ones(16, 32),
}


def test_a_missing_head_dim_is_the_number_the_tensors_show(tmp_path: Path) -> None:
    """Qwen3-4B's shape in small: heads times head_dim is not hidden_size."""
    draft = draft_with(tmp_path / "d", {"head_dim": "absent"}, WIDE_HEADS)
    found = ask("cfg.head_dim", draft)
    assert found["verdict"] == "FAIL"
    assert "add head_dim: 8" in found["summary"]
    assert found["evidence"]["q_proj_rows"] == 32
    assert ask("cfg.head_dim", fixed(draft, found))["verdict"] == "PASS"


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_of_a_config_that_is_no_json_a_fix_applies_or_is_not_offered(tmp_path: Path, odd: float) -> None:
    """Python's reader takes NaN, and no report can carry it: a `test` of what holds it would never hold."""
    lacking = draft_with(tmp_path / "a", {"head_dim": "absent", "initializer_range": odd}, WIDE_HEADS)
    found = ask("cfg.head_dim", lacking)
    assert (found["verdict"], found["fix"]) == ("FAIL", None)
    assert "add head_dim: 8; no fix is offered: config.json holds NaN or Infinity" in found["summary"]
    # A key beside it is tested and changed alone.
    wrong = draft_with(tmp_path / "b", {"head_dim": 4, "initializer_range": odd}, WIDE_HEADS)
    found = ask("cfg.head_dim", wrong)
    assert found["fix"] is not None
    assert ask("cfg.head_dim", fixed(wrong, found))["verdict"] == "PASS"


def test_heads_times_head_dim_need_not_be_hidden_size(tmp_path: Path) -> None:
    assert ask("cfg.head_dim", draft_with(tmp_path / "d", {"head_dim": 8}, WIDE_HEADS))["verdict"] == "PASS"
    gpt_oss = {"hidden_size": 2880, "num_attention_heads": 64, "head_dim": 64}
    assert ask("cfg.head_dim", draft_of(tmp_path / "g", gpt_oss))["verdict"] == "PASS"


def test_a_wrong_head_dim_fails(tmp_path: Path) -> None:
    found = ask("cfg.head_dim", draft_with(tmp_path / "d", {"head_dim": 4}, WIDE_HEADS))
    assert found["verdict"] == "FAIL"
    assert "set head_dim: 8" in found["summary"]


def test_a_quotient_that_is_no_number_warns_without_weights(tmp_path: Path) -> None:
    change = {"head_dim": "absent", "hidden_size": 5120, "num_attention_heads": 28}
    assert ask("cfg.head_dim", draft_of(tmp_path / "d", change))["verdict"] == "WARN"
    assert ask("cfg.head_dim", draft_of(tmp_path / "e", {"num_attention_heads": "absent"}))["verdict"] == "UNKNOWN"


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"tie_word_embeddings": True}, "FAIL"),
        ({"tie_word_embeddings": True, "draft_vocab_size": 30}, "INFO"),
        ({"tie_word_embeddings": "absent"}, "PASS"),
        ({"tie_word_embeddings": "absent", "model_type": "gemma3_text"}, "FAIL"),
        ({"tie_word_embeddings": "false"}, "FAIL"),
    ],
    ids=str,
)
def test_tying_a_reduced_vocabulary(tmp_path: Path, change: dict[str, Any], verdict: str) -> None:
    draft = draft_of(tmp_path / "d", change)
    found = ask("cfg.tie", draft)
    assert found["verdict"] == verdict
    if verdict == "FAIL":
        assert ask("cfg.tie", fixed(draft, found))["verdict"] == "PASS"


def test_vllm_passes_over_a_tie(tmp_path: Path) -> None:
    draft = draft_with(tmp_path / "d", {"tie_word_embeddings": True})
    assert [item["verdict"] for item in ask_all("cfg.tie", draft, engine=["sglang==0.5.12", "vllm==0.17.0"])] == [
        "FAIL",
        "INFO",
    ]
    found = ask_all("ckpt.own_head", draft, engine=["sglang==0.5.12", "vllm==0.17.0"])
    assert ["as its head" in item["summary"] for item in found] == [True, False]


def test_the_width_of_a_state_is_the_targets(tmp_path: Path) -> None:
    same, wide = write_target(tmp_path / "t"), write_target(tmp_path / "w", hidden=40)
    draft = draft_with(tmp_path / "d")
    found = ask("cfg.hidden_vs_target", draft, same)
    assert found["verdict"] == "PASS"
    assert "fc reads 3" in found["summary"]
    assert ask("cfg.hidden_vs_target", draft, wide)["verdict"] == "FAIL"
    assert ask("cfg.hidden_vs_target", draft)["verdict"] == "UNKNOWN"


def test_target_hidden_size_makes_another_width_legal(tmp_path: Path) -> None:
    wide = write_target(tmp_path / "w", hidden=40)
    fc = {"fc.weight": ones(16, 120)}
    good = draft_with(tmp_path / "a", {"target_hidden_size": 40}, fc)
    assert ask("cfg.hidden_vs_target", good, wide)["verdict"] == "PASS"
    assert ask("cfg.hidden_vs_target", draft_of(tmp_path / "b", {"target_hidden_size": 40}), wide)["verdict"] == "PASS"
    # The key is right and fc is not.
    odd = draft_with(tmp_path / "c", {"target_hidden_size": 40}, {"fc.weight": ones(16, 100)})
    assert ask("cfg.hidden_vs_target", odd, wide)["verdict"] == "FAIL"
    # fc fits and the key is missing: the fix.
    bare = draft_with(tmp_path / "e", None, {"fc.weight": ones(16, 120), "embed_tokens.weight": ones(30, 16)})
    found = ask("cfg.hidden_vs_target", bare, wide)
    assert found["verdict"] == "FAIL"
    assert ask("cfg.hidden_vs_target", fixed(bare, found), wide)["verdict"] == "PASS"


def test_a_null_target_hidden_size_warns_and_is_taken_out(tmp_path: Path) -> None:
    draft, target = draft_of(tmp_path / "d", {"target_hidden_size": None}), write_target(tmp_path / "t")
    found = ask("cfg.hidden_vs_target", draft, target)
    assert found["verdict"] == "WARN"
    assert ask("cfg.hidden_vs_target", fixed(draft, found), target)["verdict"] == "PASS"


@pytest.mark.parametrize(("engine", "verdict"), [("vllm==0.17.0", "PASS"), ("sglang==0.5.12", "INFO")])
def test_null_is_how_speculators_writes_a_draft_of_the_targets_width(tmp_path: Path, engine: str, verdict: str) -> None:
    nested = {"hidden_size": 16, "num_attention_heads": 4, "head_dim": 4, "vocab_size": 30}
    config = {"speculators_model_type": "eagle3", "target_hidden_size": None, "transformer_layer_config": nested}
    draft, target = write_draft(tmp_path / "d", config, {}), write_target(tmp_path / "t")
    assert ask("cfg.hidden_vs_target", draft, target, engine)["verdict"] == verdict


def test_a_flat_config_with_null_stops_vllm_too(tmp_path: Path) -> None:
    draft, target = draft_of(tmp_path / "d", {"target_hidden_size": None}), write_target(tmp_path / "t")
    assert "vllm==0.17.0" in ask("cfg.hidden_vs_target", draft, target, "vllm==0.17.0")["summary"]


@pytest.mark.parametrize(
    ("engine", "verdict"),
    [("vllm==0.9.0.1", "FAIL"), ("vllm==0.9.1", "PASS"), ("sglang==0.4.9.post6", "PASS"), ((), "PASS")],
)
def test_an_early_vllm_serves_no_draft_of_another_width(tmp_path: Path, engine: Any, verdict: str) -> None:
    wide = write_target(tmp_path / "w", hidden=40)
    draft = draft_with(tmp_path / "d", {"target_hidden_size": 40}, {"fc.weight": ones(16, 120)})
    found = ask("cfg.hidden_vs_target", draft, wide, engine)
    assert found["verdict"] == verdict
    assert ("vLLM 0.9.1" in found["summary"]) is (verdict == "FAIL")


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"truncated_vocab_size": 10}, "PASS"),
        ({"truncated_vocab_size": 12}, "FAIL"),
        ({"truncated_vocab_size": 10, "draft_vocab_size": "absent"}, "WARN"),
        ({"draft_vocab_size": "absent"}, "WARN"),
        ({"draft_vocab_size": None}, "PASS"),
        ({"draft_vocab_size": "10"}, "FAIL"),
        ({"draft_vocab_size": 31}, "FAIL"),
    ],
    ids=str,
)
def test_the_alias_of_the_draft_vocabulary(tmp_path: Path, change: dict[str, Any], verdict: str) -> None:
    assert ask("cfg.vocab_alias", draft_of(tmp_path / "d", change))["verdict"] == verdict


def test_the_alias_alone_is_fixed(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d", {"truncated_vocab_size": 10, "draft_vocab_size": "absent"})
    found = ask("cfg.vocab_alias", draft)
    assert "SGLang reads draft_vocab_size" in found["summary"]
    assert ask("cfg.vocab_alias", fixed(draft, found))["verdict"] == "PASS"


def test_an_absent_size_is_the_heads_rows(tmp_path: Path) -> None:
    draft = draft_with(tmp_path / "d", {"draft_vocab_size": "absent"})
    found = ask("cfg.vocab_alias", draft)
    assert found["verdict"] == "WARN"
    assert ask("cfg.vocab_alias", fixed(draft, found))["summary"] == "draft_vocab_size is 10"


@pytest.mark.parametrize(("vocab", "verdict"), [(30, "PASS"), (152064, "WARN")])
def test_another_vocabulary_warns(tmp_path: Path, vocab: int, verdict: str) -> None:
    target = write_target(tmp_path / "t", vocab_size=vocab)
    assert ask("cfg.vocab_vs_target", draft_of(tmp_path / "d"), target)["verdict"] == verdict


def test_padding_of_the_vocabulary_is_only_noted(tmp_path: Path) -> None:
    draft, target = draft_of(tmp_path / "d", {"vocab_size": 151936}), write_target(tmp_path / "t", vocab_size=152064)
    assert ask("cfg.vocab_vs_target", draft, target)["verdict"] == "INFO"
