"""SpecForge caches written without aux states, up to November 2025: only the final state, after the norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.caches.cache import Hints
from checks.caches.layout import Block, Layout, Parts, ids_of
from checks.caches.specforge import IDS, MASK, SUFFIXES
from checks.caches.specforge_concat import alone


def _parts(value: Mapping[str, Any], hints: Hints) -> Parts | None:
    ids, states = ids_of(value, IDS), alone(value)
    if ids is None or states is None or states.width != hints.hidden:
        return None
    return Parts(ids, ids_of(value, MASK), (), Block(states, 0), states.width)


NOTE = "it holds no aux states: it was written without --enable-aux-hidden-states, and trains no EAGLE-3 drafter"

READER = Layout("specforge-final", SUFFIXES, "post", _parts, note=NOTE)
