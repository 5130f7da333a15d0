"""ckpt.own_head, ckpt.embed_matches_target, ckpt.d2t_changed: what is shared with the target, or kept from a parent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checks.asking import ask, draft_with
from tests.checks.files import CHOSEN, Array, bf16, draft_tensors, write_target, write_tensors
from tests.checks.test_cfg_model import fixed

WHOLE: dict[str, Array | None] = {"lm_head.weight": None, "d2t": None, "t2d": None}


def test_what_the_engine_uses_is_told(tmp_path: Path) -> None:
    found = ask("ckpt.own_head", draft_with(tmp_path / "d"), engine="sglang==0.5.12")
    assert found["verdict"] == "INFO"
    assert "uses its own head and the target's embedding" in found["summary"]
    assert found["engine"] == "sglang==0.5.12"
    wide = {"embed_tokens.weight": bf16(np.ones((30, 16)))}
    assert (
        "its own embedding"
        in ask("ckpt.own_head", draft_with(tmp_path / "w", {"target_hidden_size": 40}, wide))["summary"]
    )


@pytest.mark.parametrize(
    ("change", "engine", "verdict"),
    [
        ({}, "sglang==0.5.12", "FAIL"),
        ({}, "vllm==0.20.0", "FAIL"),
        ({"draft_vocab_size": 30}, "sglang==0.5.12", "FAIL"),
        ({"draft_vocab_size": 30}, "vllm==0.20.0", "INFO"),
        ({"draft_vocab_size": None}, "sglang==0.5.12", "INFO"),
        ({"draft_vocab_size": None}, "sglang==0.4.9.post6", "FAIL"),
        ({"tie_word_embeddings": True, "draft_vocab_size": 30}, "sglang==0.5.12", "INFO"),
    ],
    ids=str,
)
def test_a_missing_head_depends_on_the_engine(
    tmp_path: Path, change: dict[str, Any], engine: str, verdict: str
) -> None:
    assert ask("ckpt.own_head", draft_with(tmp_path / "d", change, WHOLE), engine=engine)["verdict"] == verdict


def test_a_missing_head_of_the_whole_vocabulary_is_shared_by_null(tmp_path: Path) -> None:
    draft = draft_with(tmp_path / "d", {"draft_vocab_size": 30}, WHOLE)
    found = ask("ckpt.own_head", draft, engine="sglang==0.5.12")
    assert ask("ckpt.own_head", fixed(draft, found), engine="sglang==0.5.12")["verdict"] == "INFO"


def target_with(folder: Path, embedding: Array) -> Path:
    write_target(folder)
    write_tensors(folder / "model.safetensors", {"model.embed_tokens.weight": bf16(embedding)})
    return folder


@pytest.mark.parametrize(
    ("noise", "engine", "verdict"),
    [
        (0.0, "sglang==0.5.12", "PASS"),
        (0.0, "vllm==0.20.0", "PASS"),
        (0.2, "vllm==0.20.0", "INFO"),
        (1.5, "vllm==0.20.0", "FAIL"),
        (1.5, "sglang==0.5.12", "INFO"),
        (1.5, (), "INFO"),
    ],
)
def test_an_embedding_of_its_own_against_the_targets(tmp_path: Path, noise: float, engine: Any, verdict: str) -> None:
    chance = np.random.default_rng(1)
    theirs = chance.standard_normal((30, 16))
    own = theirs + noise * chance.standard_normal((30, 16))
    draft = draft_with(tmp_path / "d", None, {"embed_tokens.weight": bf16(own)})
    found = ask("ckpt.embed_matches_target", draft, target_with(tmp_path / "t", theirs), engine)
    assert found["verdict"] == verdict
    assert found["evidence"]["rows"] == 30


def test_without_an_embedding_of_its_own_there_is_nothing_to_compare(tmp_path: Path) -> None:
    target = target_with(tmp_path / "t", np.ones((30, 16)))
    assert ask("ckpt.embed_matches_target", draft_with(tmp_path / "d"), target)["verdict"] == "PASS"
    narrow = draft_with(tmp_path / "n", None, {"embed_tokens.weight": bf16(np.ones((30, 8)))})
    assert ask("ckpt.embed_matches_target", narrow, target)["verdict"] == "UNKNOWN"


@pytest.mark.parametrize(("engine", "verdict"), [((), "INFO"), ("sglang==0.5.12", "INFO"), ("vllm==0.20.0", "UNKNOWN")])
def test_without_the_targets_weights_only_vllm_leaves_a_question(tmp_path: Path, engine: Any, verdict: str) -> None:
    draft = draft_with(tmp_path / "d", None, {"embed_tokens.weight": bf16(np.ones((30, 16)))})
    assert ask("ckpt.embed_matches_target", draft, write_target(tmp_path / "t"), engine)["verdict"] == verdict


def test_a_map_that_fine_tuning_kept_passes(tmp_path: Path) -> None:
    found = ask("ckpt.d2t_changed", draft_with(tmp_path / "d"), parent=str(draft_with(tmp_path / "p")))
    assert found["verdict"] == "PASS"
    assert found["evidence"]["changed"] == 0


def test_a_map_that_was_rebuilt_fails_with_the_row(tmp_path: Path) -> None:
    other = CHOSEN.copy()
    other[[3, 7]] = [6, 22]
    rebuilt = draft_with(tmp_path / "d", None, {"d2t": other.astype(np.int64) - np.arange(10)})
    found = ask("ckpt.d2t_changed", rebuilt, parent=str(draft_with(tmp_path / "p")))
    assert found["verdict"] == "FAIL"
    assert found["evidence"]["changed"] == 2
    assert found["evidence"]["first"] == {"row": 3, "draft": 6, "parent": 5}


def test_a_map_of_another_length_fails(tmp_path: Path) -> None:
    short = draft_with(tmp_path / "d", None, {"d2t": draft_tensors()["d2t"][:8]})
    found = ask("ckpt.d2t_changed", short, parent=str(draft_with(tmp_path / "p")))
    assert found["verdict"] == "FAIL"
    assert (found["evidence"]["rows"], found["evidence"]["parent_rows"]) == (8, 10)


def test_without_a_parent_or_its_map_it_is_only_told(tmp_path: Path) -> None:
    draft = draft_with(tmp_path / "d")
    assert ask("ckpt.d2t_changed", draft)["verdict"] == "INFO"
    bare = draft_with(tmp_path / "p", None, {"d2t": None})
    assert ask("ckpt.d2t_changed", draft, parent=str(bare))["verdict"] == "INFO"
    assert ask("ckpt.d2t_changed", bare, parent=str(draft))["verdict"] == "INFO"
