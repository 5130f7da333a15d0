"""Owns the shipped samples: prompts from held-out files, and the training cache written for a few of them."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from . import corpus, export
from .draft_net import AUX_STATES
from .generate import continuation
from .net import Target

SEED = 3
LENGTHS = (48, 64, 80, 96)
CANDIDATES_PER_LENGTH = 160
CONTINUED = 128
HELD_OUT, TRAFFIC, CACHED, CACHED_LENGTH = 24, 16, 12, 192
MOST_PER_FILE = 4

NGRAM, DISTINCT = 12, 90
"""A continuation is kept when at least DISTINCT of its 117 windows of NGRAM ids differ: tiny models fall into loops,
and a loop is no test of a drafter."""


def _candidates(rng: np.random.Generator) -> list[tuple[str, Tensor]]:
    """(file, prompt [P]) pairs: ASCII text of held-out files, each beginning at the start of a line."""
    bodies = [(str(path), path.read_bytes()) for path in corpus.files(held_out=True)]
    weights = np.array([len(body) for _, body in bodies], dtype=np.float64)
    found: list[tuple[str, Tensor]] = []
    for length in LENGTHS:
        wanted = len(found) + CANDIDATES_PER_LENGTH
        while len(found) < wanted:
            name, body = bodies[rng.choice(len(bodies), p=weights / weights.sum())]
            start = body.find(b"\n", int(rng.integers(len(body)))) + 1
            piece = body[start : start + length]
            if len(piece) == length and piece.isascii() and len(piece.split()) > 3:
                found.append((name, torch.tensor(list(piece))))
    return found


def _varied(ids: Tensor) -> bool:
    """Whether a continuation [C] goes somewhere: no end of text, and enough distinct windows."""
    row = ids.tolist()
    windows = {tuple(row[i : i + NGRAM]) for i in range(len(row) - NGRAM + 1)}
    return max(row) < corpus.BOS and len(windows) >= DISTINCT


def select(net: Target) -> list[Tensor]:
    """Prompts in a fixed random order, each with a varied greedy continuation; the drafter has no say."""
    rng = np.random.default_rng(SEED)
    found = _candidates(rng)
    kept: list[tuple[str, Tensor]] = []
    for length in LENGTHS:
        group = [(name, prompt) for name, prompt in found if len(prompt) == length]
        rows = continuation(net, torch.stack([prompt for _, prompt in group]), CONTINUED)
        kept += [pair for pair, row in zip(group, rows, strict=True) if _varied(row[length:])]
    per_file: Counter[str] = Counter()
    chosen: list[Tensor] = []
    for index in rng.permutation(len(kept)):
        name, prompt = kept[index]
        per_file[name] += 1
        if per_file[name] <= MOST_PER_FILE:
            chosen.append(prompt)
    needed = HELD_OUT + TRAFFIC + CACHED
    if len(chosen) < needed:
        raise ValueError(f"only {len(chosen)} of {needed} prompts continue without a loop: draw more candidates")
    return chosen[:needed]


def write(net: Target) -> None:
    """Write prompts.json (`held_out` to measure with, `traffic` to keep a server busy) and the cache.

    The cache has the layout of speculators 0.5 and newer: `hidden_states` [S, 4, H] bf16, the last slot being R_n
    before the final norm, and `token_ids` [S] int64. It covers other prompts than prompts.json.
    """
    texts = [bytes(prompt.tolist()).decode() for prompt in select(net)]
    listed = {
        "tokens": "one per UTF-8 byte, no bos",
        "held_out": texts[:HELD_OUT],
        "traffic": texts[HELD_OUT : HELD_OUT + TRAFFIC],
    }
    export.PROMPTS.write_text(json.dumps(listed, indent=1) + "\n")
    export.CACHE.mkdir(parents=True, exist_ok=True)
    for i, text in enumerate(texts[HELD_OUT + TRAFFIC :]):
        prompt = torch.tensor([list(text.encode())])
        ids = continuation(net, prompt, CACHED_LENGTH - prompt.shape[1])
        with torch.no_grad():
            states = net.states(ids)
        stacked = torch.stack([states[k][0] for k in (*AUX_STATES, net.shape.layers)], dim=1)
        save_file(
            {"hidden_states": stacked.bfloat16().contiguous(), "token_ids": ids[0].contiguous()},
            export.CACHE / f"hs_{i}.safetensors",
        )
