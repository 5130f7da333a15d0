"""A latent draft that was trained to turn its keys otherwise than its config says is found out, and its key is set."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from checks.draft import open_draft
from checks.eagle3 import Drafter, draft_shape, load_drafter
from checks.finding import ConfigFix, Finding, Verdict
from checks.patch import apply_patch
from checks.turning import turnings
from tests.checks import pair
from tests.checks.files import bf16, write_draft
from tests.checks.latent import HIDDEN, SLOTS, VOCAB, WIDE, YARN, config_of, stored, tensors

if TYPE_CHECKING:
    from pathlib import Path

CHECK = "replay.accuracy"
TRAINED = {
    **YARN,
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 4096,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
TEXTS, TOKENS = 4, 120


def rounded(values: np.ndarray) -> np.ndarray:
    return (bf16(values).astype(np.uint32) << 16).view(np.float32)


@lru_cache(maxsize=2)
def trained(interleave: bool) -> tuple[dict[str, np.ndarray], list[tuple[np.ndarray, np.ndarray]]]:
    """Weights with an embedding, and texts (ids [S], states [S, m+1, Ht]) that go on as the draft turning so says."""
    config = config_of(TRAINED, rope_interleave=interleave)
    weights = {name: rounded(value) for name, value in tensors(config).items()}
    drafter = Drafter(draft_shape(config, {name: value.shape for name, value in weights.items()}), weights)
    rng = np.random.default_rng(2)
    table = rounded(rng.normal(size=(VOCAB, HIDDEN)).astype(np.float32))
    texts = []
    for _ in range(TEXTS):
        states = rounded(rng.normal(size=(TOKENS, SLOTS + 1, WIDE)).astype(np.float32))
        fused = drafter.fuse(states[:, :SLOTS].reshape(TOKENS, -1))
        ids = rng.integers(0, VOCAB, 2).tolist()
        for t in range(TOKENS - 2):
            ids.append(int(drafter.predict(fused[: t + 1], table[ids], 1, t, t + 1)[0, 0]))
        texts.append((np.array(ids, dtype=np.int64), states))
    return {**weights, "embed_tokens.weight": table}, texts


def replayed(folder: Path, config: dict[str, Any], interleave: bool = True) -> Finding:
    """The finding for the trained draft under a config, over the texts it would write."""
    weights, texts = trained(interleave)
    write_draft(folder / "draft", config, {name: bf16(value) for name, value in stored(weights).items()})
    for index, (ids, states) in enumerate(texts):
        pair.write_sample(folder / "cache" / f"hs_{index}.safetensors", ids, states)
    return pair.Case(draft=folder / "draft", cache=folder / "cache", target=None).only(CHECK)


def test_a_draft_that_turns_as_it_was_trained_is_right_everywhere(tmp_path: Path) -> None:
    finding = replayed(tmp_path, config_of(TRAINED))
    assert finding.verdict is Verdict.INFO
    assert finding.evidence["marginal"][0] == 1.0
    assert [one["what"][:21] for one in finding.evidence["turnings"]] == ["rope_interleave false"]
    assert finding.evidence["turnings"][0]["gain"]["high"] < 0


@pytest.mark.parametrize("layout", ["rope_parameters", "rope_scaling", "speculators"])
def test_a_base_that_the_trainer_lost_is_named(tmp_path: Path, layout: str) -> None:
    config = config_of({**TRAINED, "rope_theta": 1000000.0})
    if layout == "rope_scaling":
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope
    if layout == "speculators":
        config = {"transformer_layer_config": config, "target_hidden_size": WIDE, "norm_before_residual": False}
    finding = replayed(tmp_path, config)
    assert finding.verdict is Verdict.FAIL
    assert "trained with rope_theta 10000, worth +" in finding.summary
    assert isinstance(finding.fix, ConfigFix)
    fixed = apply_patch(config, finding.fix.patch)
    assert replayed(tmp_path / "fixed", fixed).evidence["marginal"][0] == 1.0


@pytest.mark.parametrize("interleave", [True, False])
def test_halves_taken_for_neighbours_are_named(tmp_path: Path, interleave: bool) -> None:
    config = config_of(TRAINED, rope_interleave=not interleave)
    finding = replayed(tmp_path, config, interleave)
    assert finding.verdict is Verdict.FAIL
    assert f"trained with rope_interleave {str(interleave).lower()} (SGLang" in finding.summary
    assert isinstance(finding.fix, ConfigFix)
    assert apply_patch(config, finding.fix.patch)["rope_interleave"] is interleave


def test_a_grouped_draft_has_no_other_turning() -> None:
    draft = open_draft(pair.DRAFT)
    assert list(turnings(draft, load_drafter(draft).shape)) == []


def test_the_base_is_not_in_doubt_without_yarn(tmp_path: Path) -> None:
    config = config_of({"rope_type": "default", "rope_theta": 1000000.0})
    write_draft(tmp_path, config, {name: bf16(value) for name, value in stored(tensors(config)).items()})
    draft = open_draft(tmp_path)
    (only,) = turnings(draft, load_drafter(draft).shape)
    assert only.pointer == "/rope_interleave"
    assert json.loads(json.dumps(only.value)) is False
