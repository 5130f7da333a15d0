"""Owns the training of the drafter on text the target writes and text it reads."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from . import corpus, export
from .draft_net import DRAFT_VOCAB, TTT_STEPS, Draft, read_states
from .generate import continuation
from .muon import Muon, schedule
from .net import Target
from .parallel import average, calm_threads, join

STEPS, ROWS, WORKERS, SEED = 1300, 4, 2, 11
PROMPT, LENGTH, BATCH = 64, 224, 128
GENERATED = {"greedy": (640, 0.0), "sampled": (1280, 0.8)}
"""Rows a worker writes for itself, and at what temperature. With two fifths of corpus rows the mix is 1 : 2 : 2."""

STEP_DECAY = 0.8
"""Weight of step j is STEP_DECAY ** j, as in EAGLE-3's trainer."""


def train(say: Callable[[str], None], steps: int = STEPS) -> None:
    """Train the drafter for `steps` and write it to the models folder."""
    calm_threads()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_worker, args=(f"file://{folder}/meet", say, steps), nprocs=WORKERS)


def _written(net: Target, text: np.ndarray, rank: int, say: Callable[[str], None]) -> Tensor:
    """Rows [N, LENGTH] of one worker: greedy, sampled and corpus text, mixed."""
    rng, draw = np.random.default_rng([SEED, rank]), torch.Generator().manual_seed(SEED * WORKERS + rank)
    parts = []
    for kind, (count, temperature) in GENERATED.items():
        for _ in range(count // BATCH):
            prompts = torch.from_numpy(corpus.rows(text, BATCH, PROMPT, rng))
            parts.append(continuation(net, prompts, LENGTH - PROMPT, temperature, draw))
        if rank == 0:
            say(f"draft data: {count} {kind} rows written per worker")
    written = torch.cat(parts)
    read = torch.from_numpy(corpus.rows(text, len(written) * 2 // 3, LENGTH, rng))
    mixed = torch.cat([written, read])
    return mixed[torch.from_numpy(rng.permutation(len(mixed)))]


def _vocabulary(rows: Tensor) -> Tensor:
    """Offsets d2t [DV] of the most frequent ids over all workers' rows; ties go to the lower id."""
    counts = torch.bincount(rows.flatten(), minlength=corpus.VOCAB)
    dist.all_reduce(counts)
    kept = counts.argsort(descending=True, stable=True)[:DRAFT_VOCAB].sort().values
    return kept - torch.arange(DRAFT_VOCAB)


def loss_of(draft: Draft, net: Target, rows: Tensor) -> Tensor:
    """Mean over steps of the soft cross-entropy against the target's softmax inside the draft vocabulary.

    Positions whose likeliest token is outside the draft vocabulary teach nothing and are left out.
    """
    with torch.no_grad():
        states = net.states(rows)
        logits = net.head(states[-1])
        inside = draft.t2d[logits.argmax(-1)]
        teacher = logits[..., draft.token_ids()].softmax(-1)
        aux, embedded = read_states(states), states[0]
    with torch.autocast("cpu", torch.bfloat16):
        guesses = draft.unroll(aux, embedded)
    anchors = guesses[0].shape[1]
    total = torch.zeros(())
    for j, guess in enumerate(guesses):
        at = slice(1 + j, 1 + j + anchors)
        cost = -(teacher[:, at] * guess.float().log_softmax(-1)).sum(-1)
        total = total + STEP_DECAY**j * (cost * inside[:, at]).sum() / inside[:, at].sum()
    return total / sum(STEP_DECAY**j for j in range(TTT_STEPS))


def _worker(rank: int, meet: str, say: Callable[[str], None], steps: int) -> None:
    join(rank, WORKERS, meet)
    net = export.read_target()
    began = time.monotonic()
    rows = _written(net, corpus.stream(held_out=False), rank, say)
    draft = Draft(_vocabulary(rows))
    draft.initialise(net.lm_head.weight[draft.token_ids()], SEED)
    named = dict(draft.named_parameters())
    matrices = {name for name in named if "proj" in name or name == "fc.weight"}
    optimiser = Muon([named[n] for n in named if n in matrices], [named[n] for n in named if n not in matrices])
    if rank == 0:
        say(f"draft data ready after {time.monotonic() - began:.0f} s")
    for step in range(steps):
        pick = torch.arange(step * ROWS, (step + 1) * ROWS) % len(rows)
        loss = loss_of(draft, net, rows[pick])
        loss.backward()
        average(named.values(), WORKERS)
        optimiser.step(schedule(step, steps))
        if rank == 0 and step % 20 == 0:
            say(f"draft step {step}/{steps} loss {loss.item():.3f} after {time.monotonic() - began:.0f} s")
    if rank == 0:
        export.write_draft(draft)
    dist.destroy_process_group()
