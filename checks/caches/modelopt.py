"""ModelOpt's layout: `{conversation_id}.pt` with `hidden_states [S, H]` and `aux_hidden_states [S, mH]`.

The final state is after the norm from its transformers dumper and before it from its vLLM one, and nothing in the file
says which: numbers decide. Nor are the ids recorded, and the same ids mean one layer less in the vLLM dumper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.caches.cache import Hints
from checks.caches.layout import Block, Layout, Parts, ids_of, slots_of, states_of, width_of_slots

IDS, MASK, AUX, FINAL = "input_ids", "loss_mask", "aux_hidden_states", "hidden_states"


def _parts(value: Mapping[str, Any], hints: Hints) -> Parts | None:
    ids, aux, final = ids_of(value, IDS), states_of(value, AUX), states_of(value, FINAL)
    if ids is None or aux is None or final is None:
        return None
    hidden = width_of_slots(aux.width, hints, final.width)
    if hidden is None:
        return None
    return Parts(ids, ids_of(value, MASK), slots_of(aux, hidden), Block(final, 0), hidden)


READER = Layout("modelopt", (".pt",), "unknown", _parts)
