"""NeMo Automodel's layout: `shard-{i}` files of batches beside `manifest.json`; no final state, but probabilities.

`input_ids`, `attention_mask`, `loss_mask` `[n, S]`, `aux_hidden_states [n, S, mH]` in the order of the manifest's
`aux_layer_ids` (k = id + 1), and `target_probs` over the draft vocabulary, whole or as its largest. Rows are padded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from checks.caches.batch import rows_of
from checks.caches.cache import Cache, Claim, Hints, Look, claimed
from checks.caches.layout import Layout, Parts, ids_of, slots_of, states_of, undecided, width_of_slots, with_claim
from checks.caches.speculators_v1 import whole_numbers
from checks.errors import BadConfig
from checks.jsonfile import read_config, whole

IDS, MASK, REAL, AUX = "input_ids", "loss_mask", "attention_mask", "aux_hidden_states"
PROBS = ("target_probs", "target_probs_values", "position_mask")
SIDE = "manifest.json"


def _samples(value: Any) -> Sequence[Any] | None:
    return rows_of(value, IDS)


def _parts(value: Mapping[str, Any], hints: Hints) -> Parts | None:
    ids, aux = ids_of(value, IDS), states_of(value, AUX)
    if ids is None or aux is None or not any(key in value for key in PROBS):
        return None
    hidden = width_of_slots(aux.width, hints)
    if hidden is None:
        raise undecided("a NeMo Automodel cache without its manifest", aux)
    real = ids_of(value, REAL)
    length = None
    if real is not None and real.shape == ids.shape:
        ones = np.flatnonzero(real.integers())
        length = int(ones[-1]) + 1 if len(ones) else 0
    return Parts(ids, ids_of(value, MASK), slots_of(aux, hidden), None, hidden, length)


class _Reader:
    layout = "nemo"

    def __init__(self) -> None:
        self._layout = Layout(self.layout, (".safetensors", ".pt"), "none", _parts, many=_samples)

    def open(self, look: Look) -> Cache | None:
        """The manifest tells the width of a slot, and claims the states."""
        config = _manifest(look.listing.side(SIDE))
        ids, width = whole_numbers(config.get("aux_layer_ids")), whole(config.get("aux_hidden_dim"))
        hints = look.hints
        if ids and width and width % len(ids) == 0:
            hints = replace(hints, hidden=width // len(ids))
        cache = self._layout.open(replace(look, hints=hints))
        if cache is None or len(ids) != cache.slots:
            return cache
        return with_claim(cache, claimed(look.hints.states, Claim(tuple(value + 1 for value in ids), SIDE)))


def _manifest(path: Path | None) -> dict[str, Any]:
    try:
        return read_config(path)[1] if path is not None else {}
    except BadConfig:
        return {}


READER = _Reader()
