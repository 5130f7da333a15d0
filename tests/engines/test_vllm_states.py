"""A cache that vLLM's own connector wrote: recognised, and its states named from numbers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from checks.caches import open_cache
from console.demo.setup import RIGHT, TRAINED_STATES
from tests.engines.checked import all_states, checked
from tests.engines.pair import Pair, copied_pair, prompts
from tests.engines.serving import VLLM_VARIABLES, python_of

pytestmark = pytest.mark.engines

PROGRAM = Path(__file__).with_name("vllm_states.py")
TEXTS = [ids[:256] for ids in prompts(12)]


def written(pair: Pair, states: tuple[int, ...], folder: Path) -> Path:
    """A folder with the states of TEXTS, as vLLM writes them."""
    folder.mkdir()
    done = subprocess.run(
        [python_of("vllm"), str(PROGRAM), str(pair.target), str(folder), json.dumps(states)],
        input="\n".join(json.dumps(ids) for ids in TEXTS),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **VLLM_VARIABLES},
    )
    files = list(folder.glob("*.safetensors"))
    assert len(files) >= len(TEXTS), done.stderr[-3000:]
    return folder


@pytest.mark.parametrize(
    "asked, trained, verdict",
    [
        (TRAINED_STATES, TRAINED_STATES, "PASS"),
        ((2, 6, 9), (2, 6, 9), "FAIL"),
        ((*TRAINED_STATES, 12), TRAINED_STATES, "PASS"),
    ],
    ids=["as the draft reads", "one lower", "with the last state"],
)
def test_what_its_connector_writes_is_recognised_and_named(
    asked: tuple[int, ...], trained: tuple[int, ...], verdict: str, tmp_path: Path
) -> None:
    pair = copied_pair(tmp_path, RIGHT)
    pair.edit({"eagle_aux_hidden_state_layer_ids": list(TRAINED_STATES)})  # the place and the numbers that vLLM reads
    folder = written(pair, asked, tmp_path / "cache")
    cache = open_cache(folder)
    assert cache.layout == "vllm"
    read = {tuple(np.asarray(sample.token_ids).tolist()) for sample in cache.samples(len(TEXTS) + 1, 0)}
    assert read == {tuple(ids) for ids in TEXTS}
    finding = checked("vllm", pair, folder, all_states(pair, TEXTS[:4], tmp_path / "capture"))
    assert finding["evidence"]["trained_states"] == list(trained)
    assert finding["verdict"] == verdict
