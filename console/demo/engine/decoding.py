"""The decode loops: greedy one token a step, or greedy with a drafter whose chain is verified in one target pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from console.demo.engine.drafting import Drafter
from console.demo.engine.models.layers import Floats, Ints, KVCache
from console.demo.engine.models.llama import LlamaForCausalLM


@dataclass(frozen=True, slots=True)
class Step:
    """One target pass as the loop saw it.

    `correct_drafts` is None where nothing was drafted: in prefill, and in decoding without a drafter. `cached_tokens`
    is the length of the target's key/value cache after the step.
    """

    prefill: bool
    emitted: tuple[int, ...]
    correct_drafts: int | None
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Limits:
    """When a generation ends: token budget, stop tokens, or `stop_after` seeing the tokens so far."""

    max_new_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    stop_after: Callable[[Sequence[int]], bool] | None = None
    cancelled: Callable[[], bool] = field(default=lambda: False)


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation and exactly what the verify loop counted.

    `drafts_histogram[i]` is the number of verify rounds in which i drafts were right; it has steps+1 entries, and none
    without speculation. The last round counts in full even where `max_new_tokens` cut its tokens.
    `hidden_states` is [rows, width]: prompt rows first, then one row per decode output; None unless asked for.
    """

    tokens: tuple[int, ...]
    prompt_tokens: int
    drafts_histogram: tuple[int, ...]
    finish_reason: str
    hidden_states: Floats | None = None

    @property
    def verify_rounds(self) -> int:
        """Number of target passes that verified a chain."""
        return sum(self.drafts_histogram)

    @property
    def correct_drafts(self) -> int:
        """Drafted tokens that the target agreed with, over all rounds."""
        return sum(count * drafts for drafts, count in enumerate(self.drafts_histogram))

    @property
    def accept_length(self) -> float:
        """Tokens per verify round, the bonus token included; 0.0 when nothing was verified."""
        rounds = self.verify_rounds
        return (self.correct_drafts + rounds) / rounds if rounds else 0.0


def decode(
    target: LlamaForCausalLM,
    cache: KVCache,
    drafter: Drafter | None,
    steps: int,
    prompt: Ints,
    limits: Limits,
    *,
    keep_hidden: bool = False,
    on_step: Callable[[Step], None] | None = None,
) -> Generation:
    """Greedy continuation of `prompt` [S], S >= 1.

    With a drafter, each round drafts `steps` tokens and verifies them in one pass of steps+1 rows: the longest prefix
    that equals the target's own choices is accepted, and the target's next choice comes on top (the bonus token). Every
    emitted token is therefore the target's argmax, with or without a drafter.
    """
    cache.length = 0
    out = target.forward(prompt, cache)
    tokens = [int(target.greedy(out.final[-1:])[0])]
    hidden = [out.aux if drafter else out.final] if keep_hidden else []
    histogram = [0] * (steps + 1) if drafter else []
    report = on_step or (lambda step: None)
    report(Step(True, tuple(tokens), None, cache.length))
    if drafter:
        drafter.reset()
        drafter.extend(np.append(prompt[1:], tokens[0]), out.aux)
    reason = _finished(tokens, 1, limits)
    while reason is None:
        before = len(tokens)
        if drafter is None:
            out = target.forward(np.array(tokens[-1:], dtype=np.int64), cache)
            emitted, correct = target.greedy(out.final), None
        else:
            drafts = drafter.propose(steps)
            start = cache.length
            out = target.forward(np.append(tokens[-1], drafts), cache)
            choices = target.greedy(out.final)
            agree = choices[:-1] == drafts
            correct = steps if agree.all() else int(agree.argmin())
            emitted = choices[: correct + 1]
            cache.length = start + correct + 1
            drafter.extend(emitted, out.aux[: correct + 1])
            histogram[correct] += 1
        tokens.extend(emitted.tolist())
        if keep_hidden:
            hidden.append((out.aux if drafter else out.final)[: len(emitted)])
        report(Step(False, tuple(tokens[before:]), correct, cache.length))
        reason = _finished(tokens, len(tokens) - before, limits)
    kept = len(tokens)
    return Generation(
        tokens=tuple(tokens),
        prompt_tokens=len(prompt),
        drafts_histogram=tuple(histogram),
        finish_reason=reason,
        hidden_states=np.concatenate(hidden)[: len(prompt) + kept - 1] if keep_hidden else None,
    )


def _finished(tokens: list[int], new: int, limits: Limits) -> str | None:
    """Cut `tokens` in place where the generation ends within its `new` last ones; the reason, or None to go on."""
    for end in range(len(tokens) - new + 1, len(tokens) + 1):
        ended = None
        if tokens[end - 1] in limits.stop_tokens or (limits.stop_after and limits.stop_after(tokens[:end])):
            ended = "stop"
        elif end >= limits.max_new_tokens:
            ended = "length"
        if ended:
            del tokens[end:]
            return ended
    return "abort" if limits.cancelled() else None
