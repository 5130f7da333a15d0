"""Who proposes tokens: the Drafter protocol, and the EAGLE-3 chain that implements it."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from console.demo.engine.models.layers import Floats, Ints
from console.demo.engine.models.llama_eagle3 import DraftOutput, LlamaForCausalLMEagle3


class Drafter(Protocol):
    """Proposes the tokens a verify step checks; sees only what the target has already accepted."""

    def reset(self) -> None:
        """Forget the sequence; the next `extend` starts a new one at position 0."""

    def extend(self, next_tokens: Ints, aux: Floats) -> None:
        """Take T newly accepted positions.

        `aux` [T, m*H] are the target's captured states at those positions, `next_tokens` [T] the token that follows
        each of them (the prompt shifted left by one, with the newest token at the end).
        """

    def propose(self, steps: int) -> Ints:
        """The next `steps` tokens after the newest one, as target token ids."""


class ChainDrafter:
    """Drafts one chain (top-k 1) with an EAGLE-3 head.

    Rows that come from the target re-extend the cache after every verify, so that earlier keys are always made from
    target states; the draft's own steps write behind them and are overwritten by the next `extend`.
    """

    def __init__(self, model: LlamaForCausalLMEagle3, capacity: int) -> None:
        self._model = model
        self._cache = model.new_cache(capacity)
        self._committed = 0
        self._last: DraftOutput | None = None

    @property
    def cache_bytes(self) -> int:
        """Bytes of the draft's keys, which equal the bytes of its values."""
        return self._cache.nbytes

    def reset(self) -> None:
        """Start a new sequence."""
        self._committed = 0
        self._last = None

    def extend(self, next_tokens: Ints, aux: Floats) -> None:
        """Overwrite the speculative tail with rows fed by the target; raises RuntimeError when fc does not fit."""
        self._cache.length = self._committed
        self._last = self._model.forward(next_tokens, self._model.project(aux), self._cache)
        self._committed = self._cache.length

    def propose(self, steps: int) -> Ints:
        """Draft `steps` tokens greedily: the first from the last `extend`, the others from the draft's own states."""
        if self._last is None:
            raise RuntimeError("propose() before extend(): the draft has seen no target state")
        tokens = np.empty(steps, dtype=np.int64)
        output = self._last
        for step in range(steps):
            tokens[step] = self._model.hot_token_id[int(output.logits.argmax())]
            if step + 1 < steps:
                output = self._model.forward(tokens[step : step + 1], output.hidden[-1:], self._cache)
        return tokens
