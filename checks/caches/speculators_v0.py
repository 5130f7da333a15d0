"""The layout of speculators 0.1 and 0.2: `data_{i}.ckpt` with a concat in `hidden_state` and the final state, normed.

Its generators were scripts with the states written into them: R_3, R_{n//2+1}, R_{n-2}. A claim, like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.caches.cache import Claim, Hints, Look
from checks.caches.layout import Block, Layout, Parts, ids_of, slots_of, states_of, width_of_slots

IDS, MASK, AUX, FINAL = "input_ids", "loss_mask", "hidden_state", "target"


def _parts(value: Mapping[str, Any], hints: Hints) -> Parts | None:
    ids, aux, final = ids_of(value, IDS), states_of(value, AUX), states_of(value, FINAL)
    if ids is None or aux is None or final is None:
        return None
    hidden = width_of_slots(aux.width, hints, final.width)
    if hidden is None:
        return None
    return Parts(ids, ids_of(value, MASK), slots_of(aux, hidden), Block(final, 0), hidden)


def _claim(look: Look) -> Claim | None:
    n = look.hints.layers
    return Claim((3, n // 2 + 1, n - 2), "the generator of this format") if n >= 6 else None


READER = Layout("speculators-v0", (".ckpt",), "post", _parts, _claim)
