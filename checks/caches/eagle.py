"""The layout of EAGLE-1 and EAGLE-2: `data_{i}.ckpt` with `hidden_state [S, H]` after the final norm, no aux states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.caches.cache import Hints
from checks.caches.layout import Block, Layout, Parts, ids_of, states_of

IDS, MASK, FINAL = "input_ids", "loss_mask", "hidden_state"


def _parts(value: Mapping[str, Any], hints: Hints) -> Parts | None:
    ids, final = ids_of(value, IDS), states_of(value, FINAL)
    if ids is None or final is None or "target" in value or "aux_hidden_state" in value:
        return None
    return Parts(ids, ids_of(value, MASK), (), Block(final, 0), final.width)


NOTE = "it holds no aux states: it trains EAGLE-1 and EAGLE-2 drafters"

READER = Layout("eagle", (".ckpt",), "post", _parts, note=NOTE)
