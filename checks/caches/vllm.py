"""What vLLM's hidden-states connector writes: `{request}.safetensors` with `hidden_states [S, m, H]` and `token_ids`.

The states are those that were asked for, ascending, and the file does not say which. A last block is the final state
only where n was asked for: it is taken for one unless the draft reads as many states as there are blocks, and numbers
have to say whether it is. What the user names decides over both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.caches.array import Array, ScaledArray
from checks.caches.cache import Cache, Hints, Look
from checks.caches.layout import Block, Layout, Parts, ids_of

STATES, SCALES, IDS, MASK = "hidden_states", "hidden_states_scales", "token_ids", "loss_mask"


def parts(value: Mapping[str, Any], hints: Hints, own: bool) -> Parts | None:
    """The parts of a file with these two keys; keys beyond them are no hindrance. `own`: speculators moved it."""
    ids, states = ids_of(value, IDS), value.get(STATES)
    if ids is None or not isinstance(states, Array) or not states.floating or len(states.shape) != 3:
        return None
    blocks, hidden = states.shape[1:]
    if not blocks or not hidden:
        return None
    with_final = blocks > 1 and blocks != len(hints.states) and (own or blocks != hints.slots)
    scales = value.get(SCALES)
    if isinstance(scales, Array):
        if not scales.floating or scales.shape[:1] != states.shape[:1] or scales.width != 1:
            return None
        states = ScaledArray(states, scales)
    found = [Block(states, index * hidden) for index in range(blocks)]
    final = found.pop() if with_final else None
    return Parts(ids, ids_of(value, MASK), tuple(found), final, hidden)


def is_own(look: Look) -> bool:
    """Whether speculators wrote these files: it names them hs_{i}, and no request is called so."""
    return look.path is not None and look.path.name.startswith("hs_")


class _Reader:
    layout = "vllm"

    def open(self, look: Look) -> Cache | None:
        """Any safetensors file with the two keys that speculators did not name."""
        layout = Layout(self.layout, (".safetensors",), "unknown", lambda value, hints: parts(value, hints, False))
        return None if is_own(look) else layout.open(look)


READER = _Reader()
