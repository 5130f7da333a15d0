"""SpecForge's EAGLE-3 layout: `rows_{a}-{b}/data_{i}.ckpt[.gz]` with a concat of states and the final state.

`input_ids [S]`, `loss_mask [S]`, `aux_hidden_state [1, S, mH]` ascending, `hidden_state [1, S, H]` after the norm.
Nothing records the ids it was written with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.caches.array import Array
from checks.caches.cache import Hints
from checks.caches.layout import Block, Layout, Parts, ids_of, slots_of, states_of, width_of_slots

IDS, MASK, AUX, FINAL = "input_ids", "loss_mask", "aux_hidden_state", "hidden_state"
SUFFIXES = (".ckpt", ".ckpt.gz")


def holds_logits(aux: Array, final: Array, hints: Hints) -> bool:
    """Whether `hidden_state` is as wide as the vocabulary and not a state, as it was for four days."""
    if hints.vocab and final.width == hints.vocab != hints.hidden:
        return True
    return bool(aux.width % final.width)


def _parts(value: Mapping[str, Any], hints: Hints) -> Parts | None:
    ids, aux, final = ids_of(value, IDS), states_of(value, AUX, 3), states_of(value, FINAL, 3)
    if ids is None or aux is None or final is None or holds_logits(aux, final, hints):
        return None
    hidden = width_of_slots(aux.width, hints, final.width)
    if hidden is None:
        return None
    return Parts(ids, ids_of(value, MASK), slots_of(aux, hidden), Block(final, 0), hidden)


READER = Layout("specforge", SUFFIXES, "post", _parts)
