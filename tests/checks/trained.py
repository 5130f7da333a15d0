"""Further trained targets for the matrix: how each was made, `python -m tests.checks.trained NAME`, and is read.

They share nothing with the shipped target but the tokens, which are bytes: another seed and order, other text, other
widths, depths and heads, tied embeddings. Each is a Llama trained from nothing on one thread, a few minutes of it; in
weights/NAME.npz its matrices stand in 8 bits a row, and the target is what those say. Never part of the wheel.
"""

from __future__ import annotations

import json
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

WEIGHTS = Path(__file__).with_name("weights")
TEXTS, LENGTH = 12, 192
"""Texts kept beside the weights, which the target has not learned from, and their tokens."""

BOS, VOCAB = 256, 260


def _prose() -> bytes:
    """The language reference as the standard library carries it for help(): English in paragraphs and lists."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics)).encode()


def _tests() -> bytes:
    """The standard library's own tests, of which neither the demo's target nor its drafter has seen a line."""
    folder = Path(sysconfig.get_paths()["stdlib"]) / "test"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("test_*.py"))[:120])


def _library() -> bytes:
    """The standard library's modules."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


@dataclass(frozen=True)
class Recipe:
    """What a target is and what it learned from. `steps` of 2048 tokens each."""

    text: Callable[[], bytes]
    seed: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    tied: bool = False
    rope_theta: float = 10000.0
    steps: int = 800


RECIPES = {
    "tests128": Recipe(_tests, 11, hidden=128, layers=6, heads=4, kv_heads=2, intermediate=160),
    "prose96": Recipe(
        _prose, 23, hidden=96, layers=14, heads=3, kv_heads=1, intermediate=128, tied=True, rope_theta=1e5, steps=900
    ),
    "library96": Recipe(_library, 31, hidden=96, layers=5, heads=6, kv_heads=2, intermediate=128, tied=True, steps=300),
}


@dataclass(frozen=True)
class Trained:
    """A target's config and weights by the names of a Hugging Face checkpoint, its texts [TEXTS, LENGTH], and how well
    it learned: nats a byte on text it has not seen."""

    config: dict[str, object]
    weights: dict[str, np.ndarray]
    texts: np.ndarray
    loss: float


@lru_cache(maxsize=len(RECIPES))
def trained(name: str) -> Trained:
    """The target of this name, as it stands in weights/."""
    with np.load(WEIGHTS / f"{name}.npz", allow_pickle=False) as held:
        parts = {key: held[key] for key in held.files}
    texts, config = parts.pop("texts").astype(np.int64), json.loads(bytes(parts.pop("config")).decode())
    loss = float(parts.pop("loss"))
    weights = {
        key: value.astype(np.float32) * parts[f"{key}/scale"].astype(np.float32) if f"{key}/scale" in parts else value
        for key, value in parts.items()
        if not key.endswith("/scale")
    }
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    return Trained(config, weights, texts, loss)


# -- making them -------------------------------------------------------------------------------------------------------


def train(name: str) -> None:
    """Train and write it. Needs torch."""
    import torch
    import torch.nn.functional as F

    from console.demo.training.corpus import rows
    from console.demo.training.muon import Muon, schedule
    from console.demo.training.net import Shape, Target

    recipe = RECIPES[name]
    torch.set_num_threads(1)
    shape = Shape(
        hidden=recipe.hidden,
        layers=recipe.layers,
        heads=recipe.heads,
        kv_heads=recipe.kv_heads,
        head_dim=recipe.hidden // recipe.heads,
        intermediate=recipe.intermediate,
        rope_theta=recipe.rope_theta,
    )
    net = Target(shape)
    net.initialise(recipe.seed)
    if recipe.tied:
        net.lm_head.weight = net.model.embed_tokens.weight
    named = dict(net.named_parameters())
    optimiser = Muon(
        [w for key, w in named.items() if "proj" in key], [w for key, w in named.items() if "proj" not in key]
    )
    stream = np.frombuffer(recipe.text(), dtype=np.uint8).astype(np.int64)
    learned, unseen = stream[: len(stream) * 15 // 16], stream[len(stream) * 15 // 16 :]
    chance, began = np.random.default_rng(recipe.seed), time.monotonic()
    for step in range(recipe.steps):
        batch = torch.from_numpy(rows(learned, 8, 257, chance))
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(batch[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimiser.step(schedule(step, recipe.steps))
        if step % 20 == 0:
            print(
                f"{name} step {step} of {recipe.steps}: {loss.item():.3f}, {time.monotonic() - began:.0f} s", flush=True
            )
    with torch.no_grad():
        batch = torch.from_numpy(rows(unseen, 32, 257, chance))
        reached = F.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).item()
    print(f"{name}: {reached:.3f} nats a byte on unseen text")
    config = {
        **{key: value for key, value in asdict(shape).items() if key in ("rope_theta",)},
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.eps,
        "tie_word_embeddings": recipe.tied,
    }
    texts = rows(unseen, TEXTS, LENGTH, np.random.default_rng(recipe.seed + 1))
    _write(WEIGHTS / f"{name}.npz", config, {key: w.detach().numpy() for key, w in named.items()}, texts, reached)


def _write(
    path: Path, config: dict[str, object], weights: dict[str, np.ndarray], texts: np.ndarray, loss: float
) -> None:
    parts: dict[str, np.ndarray] = {
        "config": np.frombuffer(json.dumps(config).encode(), dtype=np.uint8),
        "texts": texts.astype(np.uint8),
        "loss": np.array(loss),
    }
    for key, value in weights.items():
        if value.ndim == 1:
            parts[key] = value
            continue
        scale = (np.abs(value).max(1, keepdims=True) / 127 + 1e-12).astype(np.float16)
        parts[f"{key}/scale"] = scale
        parts[key] = np.round(value / scale.astype(np.float32)).clip(-127, 127).astype(np.int8)
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **parts)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or RECIPES:
        train(wanted)
