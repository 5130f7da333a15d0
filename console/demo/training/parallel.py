"""Owns the two-process arrangement of both trainers: single-threaded workers that average their gradients."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist


def join(rank: int, workers: int, meet: str) -> None:
    """Make this process worker `rank` of `workers`; `meet` is a file URL they all can reach."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=workers)


def calm_threads() -> None:
    """Keep idle OpenMP threads from spinning: on a shared machine that costs a factor of ten."""
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ["OMP_NUM_THREADS"] = "1"


def average(weights: Iterable[torch.nn.Parameter], workers: int) -> None:
    """Replace every gradient by its mean over the workers."""
    grads = [w.grad for w in weights if w.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= workers
    for grad, piece in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        grad.copy_(piece.view_as(grad))
