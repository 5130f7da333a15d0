"""SpecForge's DFlash and Domino layout: `hidden_states [1, S, mH]`, and no final state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.caches.cache import Hints
from checks.caches.layout import Layout, Parts, ids_of, slots_of, states_of, undecided, width_of_slots
from checks.caches.specforge import IDS, MASK, SUFFIXES

STATES, LAST = "hidden_states", "target_last_hidden_states"


def _parts(value: Mapping[str, Any], hints: Hints) -> Parts | None:
    ids, states = ids_of(value, IDS), states_of(value, STATES, 3)
    if ids is None or states is None or LAST in value or "target_hiddens" in value:
        return None
    hidden = width_of_slots(states.width, hints)
    if hidden is None:
        raise undecided("a SpecForge DFlash cache", states)
    return Parts(ids, ids_of(value, MASK), slots_of(states, hidden), None, hidden)


READER = Layout("specforge-dflash", SUFFIXES, "none", _parts)
