"""SpecForge's layout of 8 November 2025: the concat of states in `hidden_state`, and no final state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.caches.array import Array
from checks.caches.cache import Hints
from checks.caches.layout import Layout, Parts, ids_of, slots_of, states_of, undecided, width_of_slots
from checks.caches.specforge import AUX, FINAL, IDS, MASK, SUFFIXES


def alone(value: Mapping[str, Any]) -> Array | None:
    """A `hidden_state [1, S, W]` with no aux states beside it."""
    return states_of(value, FINAL, 3) if AUX not in value else None


def _parts(value: Mapping[str, Any], hints: Hints) -> Parts | None:
    ids, states = ids_of(value, IDS), alone(value)
    if ids is None or states is None or states.width == hints.hidden:
        return None
    if not hints.hidden and not hints.states:
        # The same keys hold one final state in caches written without aux states.
        raise undecided("a SpecForge cache with one tensor of states", states)
    hidden = width_of_slots(states.width, hints)
    if hidden is None:
        return None
    return Parts(ids, ids_of(value, MASK), slots_of(states, hidden), None, hidden)


NOTE = "the states stand in hidden_state and no final state is kept, as SpecForge wrote on 8 November 2025"

READER = Layout("specforge-concat", SUFFIXES, "none", _parts, note=NOTE)
