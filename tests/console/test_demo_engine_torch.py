"""The embedded engine against transformers on the same weights: same greedy tokens, same hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import console.demo
from console.demo.engine.engine import Engine
from console.demo.engine.server_args import ServerArgs
from console.demo.traffic import PROMPTS, read_prompts
from tests.console.random_pair import write_random_pair

pytestmark = pytest.mark.torch

SHIPPED = Path(console.demo.__file__).parent / "models/target"


def reference(folder: Path) -> Any:
    import torch
    from transformers import LlamaForCausalLM

    torch.set_num_threads(1)
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.fixture(params=["shipped", "random"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[list[int]]]:
    """A target folder and prompts for it."""
    if request.param == "random":
        return write_random_pair(tmp_path)[0], [list(b"def read(self):"), [256], list(range(64))]
    return SHIPPED, [list(text.encode()) for text in read_prompts(PROMPTS, "held_out")[:8]]


def test_greedy_tokens_equal_those_of_transformers(target: tuple[Path, list[list[int]]]) -> None:
    import torch

    folder, prompts = target
    model, engine = reference(folder), Engine.load(ServerArgs(model_path=str(folder)))
    for prompt in prompts:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=96, do_sample=False, eos_token_id=None)
        assert list(engine.generate(prompt, 96).tokens) == out[0, len(prompt) :].tolist()


def test_states_equal_those_of_transformers(target: tuple[Path, list[list[int]]]) -> None:
    import torch

    folder, prompts = target
    model, engine = reference(folder), Engine.load(ServerArgs(model_path=str(folder)))
    ids = torch.tensor([prompts[-1]])
    with torch.no_grad():
        hidden = [state[0].numpy() for state in model(ids, output_hidden_states=True).hidden_states]
    states = engine.states(prompts[-1])
    layers = states.shape[1] - 1
    for k in range(layers):
        scale = np.abs(hidden[k]).max()
        np.testing.assert_allclose(states[:, k], hidden[k], rtol=0, atol=1e-5 * scale, err_msg=f"R_{k}")
    # transformers norms its last entry, so R_n is compared after the same norm.
    last = torch.from_numpy(states[:, layers].astype(np.float32))
    with torch.no_grad():
        normed = model.model.norm(last).numpy()
    np.testing.assert_allclose(normed, hidden[layers], rtol=0, atol=1e-5 * np.abs(hidden[layers]).max())
