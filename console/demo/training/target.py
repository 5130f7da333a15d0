"""Owns the training of the target: two single-threaded processes that average their gradients."""
# mypy: allow-untyped-decorators
# torch is not installed where types are checked, so its decorators are unknown there.

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

from . import corpus
from .muon import Muon, schedule
from .net import Target
from .parallel import average, calm_threads, join

STEPS, LENGTH, ROWS, WORKERS, SEED = 2400, 256, 4, 2, 7
MEASURED_ROWS = 128


def train(out: Path, say: Callable[[str], None], steps: int = STEPS, every: int = 100) -> None:
    """Train for `steps` of 2048 tokens and save fp32 weights to `out`, also every `every` steps, for early use."""
    calm_threads()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_worker, args=(f"file://{folder}/meet", out, say, steps, every), nprocs=WORKERS)


def _worker(rank: int, meet: str, out: Path, say: Callable[[str], None], steps: int, every: int) -> None:
    join(rank, WORKERS, meet)
    net = Target()
    net.initialise(SEED)
    named = dict(net.named_parameters())
    body = [w for name, w in named.items() if "proj" in name]
    rest = [w for name, w in named.items() if "proj" not in name]
    optimiser = Muon(body, rest)
    text = corpus.stream(held_out=False)
    rng = np.random.default_rng([SEED, rank])
    began = time.monotonic()
    for step in range(steps):
        batch = torch.from_numpy(corpus.rows(text, ROWS, LENGTH + 1, rng))
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(batch[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        average(named.values(), WORKERS)
        optimiser.step(schedule(step, steps))
        if rank == 0 and step % 20 == 0:
            say(f"target step {step}/{steps} loss {loss.item():.3f} after {time.monotonic() - began:.0f} s")
        if rank == 0 and ((step + 1) % every == 0 or step + 1 == steps):
            partial = out.with_suffix(".partial")
            torch.save(net.state_dict(), partial)
            partial.replace(out)
    dist.destroy_process_group()


@torch.no_grad()
def measure(net: Target) -> tuple[float, float]:
    """Nats per byte and top-1 accuracy on fixed windows of the held-out files."""
    text = corpus.stream(held_out=True)
    batch = torch.from_numpy(corpus.rows(text, MEASURED_ROWS, LENGTH + 1, np.random.default_rng(SEED)))
    logits, labels = net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
    right = (logits.argmax(-1) == labels).float().mean().item()
    return F.cross_entropy(logits, labels).item(), right
