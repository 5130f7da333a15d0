"""The demo's pair as the engines are given it, and what the embedded engine and transformers make of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from console.demo.engine import tokenizer
from console.demo.engine.engine import Engine
from console.demo.engine.server_args import ServerArgs
from console.demo.setup import STEPS, WIRINGS, shipped, wire
from console.demo.traffic import read_prompts
from tests.engines.serving import SGLANG_VARIABLES, python_of

NEW_TOKENS = 128
TEXTS = 20
"""Held-out prompts asked of every engine."""


@dataclass(frozen=True)
class Pair:
    """A copy of the target and of the draft in a folder of its own."""

    target: Path
    draft: Path

    @property
    def config(self) -> Path:
        return self.draft / "config.json"

    def edit(self, change: dict[str, Any]) -> None:
        """Set top-level keys of the draft's config."""
        self.config.write_text(json.dumps({**json.loads(self.config.read_text()), **change}))


def copied_pair(folder: Path, wiring: str) -> Pair:
    """The shipped pair, its draft wired as one of WIRINGS."""
    for name in ("target", "draft"):
        with shipped(f"models/{name}") as source:
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    wire(folder / "draft" / "config.json", WIRINGS[wiring])
    return Pair(folder / "target", folder / "draft")


def prompts(count: int = TEXTS) -> list[list[int]]:
    """Held-out prompts as token ids."""
    with shipped("prompts.json") as path:
        return [tokenizer.encode(text) for text in read_prompts(path, "held_out")[:count]]


@dataclass(frozen=True)
class Answer:
    """A greedy continuation, and by how many drafts each verify step was right (entry i: steps with i right)."""

    tokens: tuple[int, ...]
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class Expected(Answer):
    """What the embedded engine answers. `lead` is the smallest lead of a chosen token's score over the next best."""

    lead: float

    def explains(self, other: Answer) -> bool:
        """Whether `other` is the same, or may differ because two scores are the same to rounding; that is printed."""
        same = (other.tokens, other.histogram) == (self.tokens, self.histogram)
        if not same:
            print(f"{other} is not {self}")
        return same or self.lead < TIE


TIE = 1e-5
"""Scores that lie closer come in another order where sums are made in another one, in fp32."""


class _Leads:
    """A draft model that notes by how much each best score leads."""

    def __init__(self, model: Any, found: list[float]) -> None:
        self._model, self._found = model, found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, *args: Any) -> Any:
        output = self._model.forward(*args)
        self._found.append(_lead(output.logits))
        return output


def _lead(scores: Any) -> float:
    """The smallest lead of the best score over the second among rows of scores."""
    best = np.sort(np.atleast_2d(scores), axis=1)[:, -2:]
    return float((best[:, 1] - best[:, 0]).min())


def embedded_engine(pair: Pair) -> Engine:
    """The embedded engine on the pair, drafting as the served engines do."""
    return Engine.load(
        ServerArgs(
            model_path=str(pair.target),
            speculative_algorithm="EAGLE3",
            speculative_draft_model_path=str(pair.draft),
            speculative_num_steps=STEPS,
            speculative_eagle_topk=1,
            speculative_num_draft_tokens=STEPS + 1,
        )
    )


def embedded_answers(pair: Pair) -> list[Expected]:
    """What the embedded engine makes of every prompt."""
    engine = embedded_engine(pair)
    drafter: Any = engine.drafter
    answers = []
    for ids in prompts():
        leads: list[float] = []
        model = drafter._model
        drafter._model = _Leads(model, leads)
        made = engine.generate(ids, NEW_TOKENS)
        drafter._model = model
        text = np.array([*ids, *made.tokens[:-1]], dtype=np.int64)
        out = engine.target.forward(text, engine.target.new_cache(len(text)))
        leads.append(_lead(out.final[len(ids) - 1 :] @ engine.target.lm_head))
        answers.append(Expected(made.tokens, made.drafts_histogram, min(leads)))
    return answers


@cache
def transformers_answers() -> list[tuple[int, ...]]:
    """What transformers makes of every prompt, in fp32, without a draft; in the environment of SGLang, which has it."""
    with shipped("models/target") as target:
        asked = {"target": str(target), "prompts": prompts(), "new_tokens": NEW_TOKENS}
        done = subprocess.run(
            [python_of("sglang"), "-c", _GREEDY],
            input=json.dumps(asked).encode(),
            capture_output=True,
            check=False,
            env={**os.environ, **SGLANG_VARIABLES},
        )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return [tuple(item) for item in json.loads(done.stdout.splitlines()[-1])]


_GREEDY = """
import json, sys, torch
from transformers import LlamaForCausalLM

asked = json.load(sys.stdin)
torch.set_num_threads(1)
model = LlamaForCausalLM.from_pretrained(asked["target"], dtype=torch.float32).eval()
model.generation_config.eos_token_id = None
answers = []
for ids in asked["prompts"]:
    with torch.inference_mode():
        out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=asked["new_tokens"])
    answers.append(out[0, len(ids):].tolist())
print(json.dumps(answers))
"""
