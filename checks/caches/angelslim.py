"""AngelSlim's layout: `.ckpt` dicts of a batch, `hidden_states [B, S, mH]` and `target_hiddens [B, S, H]`, normed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from checks.caches.batch import rows_of
from checks.caches.cache import Hints
from checks.caches.layout import Block, Layout, Parts, ids_of, slots_of, states_of, width_of_slots

IDS, MASK, AUX, FINAL = "input_ids", "loss_mask", "hidden_states", "target_hiddens"


def _samples(value: Any) -> Sequence[Any] | None:
    return rows_of(value, IDS)


def _parts(value: Mapping[str, Any], hints: Hints) -> Parts | None:
    ids, aux, final = ids_of(value, IDS), states_of(value, AUX), states_of(value, FINAL)
    if ids is None or aux is None or final is None:
        return None
    hidden = width_of_slots(aux.width, hints, final.width)
    if hidden is None:
        return None
    return Parts(ids, ids_of(value, MASK), slots_of(aux, hidden), Block(final, 0), hidden)


READER = Layout("angelslim", (".ckpt",), "post", _parts, many=_samples)
