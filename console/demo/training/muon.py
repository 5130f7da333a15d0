"""Owns the optimiser: Muon (orthogonalised momentum) for weight matrices, AdamW for everything else."""
# mypy: allow-untyped-decorators
# torch is not installed where types are checked, so its decorators are unknown there.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices of [N, rows, cols] by the quintic Newton-Schulz iteration.

    Coefficients: Keller Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024).
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon:
    """Both optimisers behind one `step(scale)`; `scale` multiplies both learning rates (the schedule)."""

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        matrix_lr: float = 0.02,
        other_lr: float = 4e-3,
        momentum: float = 0.95,
    ) -> None:
        by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for weight in matrices:
            by_shape[weight.shape].append(weight)
        self.groups = list(by_shape.values())
        self.buffers = [torch.zeros(len(g), *g[0].shape) for g in self.groups]
        self.adam = torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.matrix_lr, self.other_lr, self.momentum = matrix_lr, other_lr, momentum

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Apply one update from the gradients in place, then drop them."""
        for weights, buffer in zip(self.groups, self.buffers, strict=True):
            grads = torch.stack([w.grad for w in weights if w.grad is not None])
            buffer.lerp_(grads, 1 - self.momentum)
            update = orthogonalise(grads.lerp(buffer, self.momentum))
            gain = max(1.0, update.shape[1] / update.shape[2]) ** 0.5
            for weight, delta in zip(weights, update, strict=True):
                weight.sub_(delta, alpha=self.matrix_lr * gain * scale)
                weight.grad = None
        for group in self.adam.param_groups:
            group["lr"] = self.other_lr * scale
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)


def schedule(step: int, total: int, warmup: int = 20, decay: float = 0.5) -> float:
    """Learning-rate factor: up over `warmup` steps, flat, then straight down to zero over the last `decay` share."""
    return min(1.0, (step + 1) / warmup, (total - step) / (total * decay))
