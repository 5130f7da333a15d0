"""SpecForge's layout of 9 to 12 November 2025: `hidden_state` holds the target's logits, shifted left by one.

The aux states are as ever; the trainer of those days could not read the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.caches.cache import Hints
from checks.caches.layout import Layout, Parts, ids_of, slots_of, states_of, width_of_slots
from checks.caches.specforge import AUX, FINAL, IDS, MASK, SUFFIXES, holds_logits

TROUBLE = (
    "hidden_state is as wide as a vocabulary: target logits, as SpecForge wrote them from 9 to 12 November 2025; its "
    "trainer takes them for a state, so write the cache again"
)


def _parts(value: Mapping[str, Any], hints: Hints) -> Parts | None:
    ids, aux, logits = ids_of(value, IDS), states_of(value, AUX, 3), states_of(value, FINAL, 3)
    if ids is None or aux is None or logits is None or not holds_logits(aux, logits, hints):
        return None
    # Those versions took exactly three ids.
    hidden = width_of_slots(aux.width, hints) or aux.width // 3
    if aux.width % hidden:
        return None
    return Parts(ids, ids_of(value, MASK), slots_of(aux, hidden), None, hidden)


READER = Layout("specforge-logits", SUFFIXES, "none", _parts, trouble=TROUBLE)
