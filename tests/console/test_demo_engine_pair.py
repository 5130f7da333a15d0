"""The shipped pair in the embedded engine: controls that a faked acceptance could not pass."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import console.demo
from console.demo.engine.checkpoint import read_tensors
from console.demo.engine.decoding import Generation
from console.demo.engine.engine import Engine
from console.demo.engine.server_args import ServerArgs
from console.demo.traffic import PROMPTS, read_prompts

DEMO = Path(console.demo.__file__).parent
TARGET, DRAFT = DEMO / "models/target", DEMO / "models/draft"
RIGHT, LATE, EMBEDDING = [2, 6, 9], [3, 7, 10], [-1, 2, 6]
TOKENS = 64

Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return [list(text.encode()) for text in read_prompts(PROMPTS, "held_out")[:6]]


@pytest.fixture(scope="module")
def plain(prompts: list[list[int]]) -> list[tuple[int, ...]]:
    engine = Engine.load(ServerArgs(model_path=str(TARGET)))
    return [engine.generate(prompt, TOKENS).tokens for prompt in prompts]


def load(draft: Path) -> Engine:
    return Engine.load(
        ServerArgs(
            model_path=str(TARGET),
            speculative_algorithm="EAGLE3",
            speculative_draft_model_path=str(draft),
            speculative_num_steps=5,
            speculative_eagle_topk=1,
            speculative_num_draft_tokens=6,
        )
    )


def variant(folder: Path, ids: list[int] = RIGHT, change: Callable[[Tensors], None] = lambda tensors: None) -> Path:
    """A copy of the shipped draft with other layer ids or changed tensors."""
    draft = folder / "draft"
    shutil.copytree(DRAFT, draft)
    config = json.loads((draft / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids
    (draft / "config.json").write_text(json.dumps(config))
    tensors = {name: np.array(tensor) for name, tensor in read_tensors(draft).items()}
    change(tensors)
    save_file(tensors, draft / "model.safetensors")
    return draft


def accept_length(runs: list[Generation]) -> float:
    """Tokens per verify round over all prompts, the bonus token included."""
    rounds = sum(run.verify_rounds for run in runs)
    return (sum(run.correct_drafts for run in runs) + rounds) / rounds


@pytest.fixture(scope="module")
def measured(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]]
) -> dict[str, tuple[float, list[tuple[int, ...]]]]:
    """Accept length and output of the shipped draft under each wiring, and of two broken drafts."""

    def shuffle(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = np.random.default_rng(0).permutation(tensors["lm_head.weight"])

    def zero(tensors: Tensors) -> None:
        tensors["fc.weight"] = np.zeros_like(tensors["fc.weight"])

    variants: dict[str, dict[str, Any]] = {
        "right": {},
        "late": {"ids": LATE},
        "embedding": {"ids": EMBEDDING},
        "shuffled": {"change": shuffle},
        "zeroed": {"change": zero},
    }
    results: dict[str, tuple[float, list[tuple[int, ...]]]] = {}
    for name, changes in variants.items():
        engine = load(variant(tmp_path_factory.mktemp(name), **changes))
        runs = [engine.generate(prompt, TOKENS) for prompt in prompts]
        results[name] = accept_length(runs), [run.tokens for run in runs]
    return results


Measured = dict[str, tuple[float, list[tuple[int, ...]]]]


@pytest.mark.parametrize("name", ["right", "late", "embedding", "shuffled", "zeroed"])
def test_the_output_is_the_targets_own_under_every_wiring(
    measured: Measured, plain: list[tuple[int, ...]], name: str
) -> None:
    assert measured[name][1] == plain


def test_acceptance_falls_with_the_distance_of_the_wiring(measured: Measured) -> None:
    right, late, embedding = (measured[name][0] for name in ("right", "late", "embedding"))
    assert right > late > embedding
    assert right >= 1.3 * embedding


def test_a_shuffled_head_is_hardly_ever_right(measured: Measured) -> None:
    assert measured["shuffled"][0] <= 1.1


def test_a_draft_without_target_states_is_below_every_wiring(measured: Measured) -> None:
    assert measured["zeroed"][0] < min(measured[name][0] for name in ("right", "late", "embedding"))


def test_the_shipped_draft_is_wired_right() -> None:
    assert load(DRAFT).target.model.layers_to_capture == [3, 7, 10]
