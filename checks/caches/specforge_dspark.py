"""SpecForge's DSpark layout: `hidden_states [1, S, mH]` and `target_last_hidden_states [1, S, H]` after the norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.caches.cache import Hints
from checks.caches.layout import Block, Layout, Parts, ids_of, slots_of, states_of, width_of_slots
from checks.caches.specforge import IDS, MASK, SUFFIXES
from checks.caches.specforge_dflash import LAST, STATES


def _parts(value: Mapping[str, Any], hints: Hints) -> Parts | None:
    ids, states, final = ids_of(value, IDS), states_of(value, STATES, 3), states_of(value, LAST, 3)
    if ids is None or states is None or final is None:
        return None
    hidden = width_of_slots(states.width, hints, final.width)
    if hidden is None:
        return None
    return Parts(ids, ids_of(value, MASK), slots_of(states, hidden), Block(final, 0), hidden)


READER = Layout("specforge-dspark", SUFFIXES, "post", _parts)
