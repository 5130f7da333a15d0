"""Owns the closing measurement: is the pair sane, and what does wrong wiring cost it."""
# mypy: allow-untyped-decorators
# torch is not installed where types are checked, so its decorators are unknown there.

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor

from . import export, target
from .draft_net import AUX_STATES, TTT_STEPS, Draft, read_states
from .generate import continuation
from .net import Target

CONTINUED = 128
WIRINGS = {"right": AUX_STATES, "all +1": (4, 8, 11), "all -1": (2, 6, 9), "embedding": (0, 3, 7)}


@torch.no_grad()
def hits(net: Target, draft: Draft, ids: Tensor, ks: tuple[int, ...]) -> Tensor:
    """Where the drafter names the target's likeliest token, teacher forced: [steps, A] for one row of ids [1, S]."""
    states = net.states(ids)
    wanted = net.head(states[-1]).argmax(-1)[0]
    steps = draft.unroll(read_states(states, ks), states[0])
    anchors = steps[0].shape[1]
    tokens = draft.token_ids()
    return torch.stack(
        [tokens[guess[0].argmax(-1)] == wanted[1 + j : 1 + j + anchors] for j, guess in enumerate(steps)]
    )


def walk(hit: Tensor) -> tuple[int, int]:
    """Tokens and rounds of a greedy speculative decode over a hit matrix [steps, A]: t += accepted + 1."""
    accepted = hit.int().cumprod(0).sum(0).tolist()
    at = rounds = 0
    while at < len(accepted):
        at += accepted[at] + 1
        rounds += 1
    return at, rounds


def report(say: Callable[[str], None]) -> None:
    """Print the target's held-out loss and the drafter's accuracy under each wiring on the held-out prompts."""
    net, draft = export.read_target(), export.read_draft()
    nats, top = target.measure(net)
    say(f"target, held out: {nats:.3f} nats/byte, top-1 {top:.1%}")
    prompts = [list(text.encode()) for text in json.loads(export.PROMPTS.read_text())["held_out"]]
    rows = [(len(p), continuation(net, torch.tensor([p]), CONTINUED)) for p in prompts]
    baseline = torch.zeros(len(rows))
    for name, ks in WIRINGS.items():
        # The first anchor sits on the prompt's last token: it is where the engine drafts first.
        found = [hits(net, draft, ids, ks)[:, length - 1 :] for length, ids in rows]
        runs = torch.cat(found, dim=1).int().cumprod(0).float().mean(1)
        conditional = runs / torch.cat([torch.ones(1), runs[:-1]])
        each = torch.tensor([1 + h.int().cumprod(0).sum(0).float().mean().item() for h in found])
        if name == "right":
            baseline = each
        drop = baseline - each
        error = drop.std() / len(drop) ** 0.5
        walked = torch.tensor([walk(h) for h in found]).sum(0).tolist()
        say(
            f"{name:9} {ks}: conditional {' '.join(f'{c:.3f}' for c in conditional.tolist())}"
            f"  1+sum {each.mean():.2f}  paired drop {drop.mean():.2f} ± {error:.2f}"
            f"  walked {walked[0] / walked[1]:.2f} tokens a round at {TTT_STEPS} steps"
        )
