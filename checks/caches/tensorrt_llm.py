"""TensorRT-LLM's layout: `{prefix}_{i}.pt`, a list of dicts, one for each request of a write interval.

`hidden_state` is the last H columns of what was captured; the concat is under `hidden_state_features` in older releases
and `aux_hidden_states` in newer ones, and absent where one layer was captured. Whether the last state is before or
after the norm is not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from checks.caches.cache import Hints
from checks.caches.layout import Block, Layout, Parts, ids_of, slots_of, states_of, width_of_slots

IDS, FINAL, AUX = "input_ids", "hidden_state", ("aux_hidden_states", "hidden_state_features")


def _samples(value: Any) -> Sequence[Any] | None:
    return value if isinstance(value, list) else None


def _parts(value: Mapping[str, Any], hints: Hints) -> Parts | None:
    ids, final = ids_of(value, IDS), states_of(value, FINAL)
    if ids is None or final is None:
        return None
    aux = next((found for key in AUX if (found := states_of(value, key)) is not None), None)
    if aux is None:
        return Parts(ids, None, (), Block(final, 0), final.width)
    hidden = width_of_slots(aux.width, hints, final.width)
    if hidden is None:
        return None
    return Parts(ids, ids_of(value, "loss_mask"), slots_of(aux, hidden), Block(final, 0), hidden)


READER = Layout("tensorrt-llm", (".pt",), "unknown", _parts, many=_samples)
