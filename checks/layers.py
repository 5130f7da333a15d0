"""The layer coordinate `R_k`, the rules that map config ids to it, and the way back from states to ids.

`R_k` is the residual stream after k decoder layers, before any norm: 0 is the embedding output, n the last layer's
output. A *rule* is one consumer's reading of `eagle_aux_hidden_state_layer_ids`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from checks.errors import CheckError


@dataclass(frozen=True)
class Served:
    """What a rule makes of a list of ids: the states that reach the draft, ascending, or why none do.

    `states` are the k the engine captures, in slot order. `problem` says what breaks (an index the capture loop
    never reaches, ids of a wrong type): then the engine fails or feeds fewer slots than `fc` expects.
    """

    states: tuple[int, ...]
    problem: str | None = None


class Rule(Protocol):
    """One consumer's reading of the ids for a target with n layers."""

    @property
    def source(self) -> str:
        """Where the rule was read: a file and line of the installed engine, or a row of the table."""
        ...

    def served(self, ids: Sequence[object] | None, n: int) -> Served:
        """The states fed for these ids (None: key absent, so the engine's default) on a target of n layers."""
        ...


def ids_for(states: Sequence[int], rule: Rule, n: int) -> tuple[int, ...] | None:
    """The ids that make `rule` feed exactly `states`, or None where no ids can.

    The rule is inverted by running it forward over candidates, never by algebra, so that a rule that branches on its
    input is inverted rightly too: SGLang's deepseek from 0.5.13 on reads ids that begin with 1 as one less, and feeds
    1,29,57 for 29,1,57 only (engines feed in ascending order whatever the order of the ids).
    """
    wanted = tuple(states)
    for candidate in _candidates(wanted):
        try:
            served = rule.served(list(candidate), n)
        except CheckError:
            continue  # what the rule makes of these ids is not known; others may still be
        if served.problem is None and served.states == wanted:
            return candidate
    return None


def _candidates(wanted: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every slot shifted alike, in order; then with another id in front; then slots shifted one by one."""
    alike = [tuple(state + shift for state in wanted) for shift in (0, -1, 1)]
    yield from alike
    for ids in alike:
        yield from ((ids[at], *ids[:at], *ids[at + 1 :]) for at in range(1, len(ids)))
    for shifts in product((0, -1, 1), repeat=len(wanted)):
        yield tuple(state + shift for state, shift in zip(wanted, shifts))


def shift_words(trained: int, served: int) -> str:
    """The distance in the project's words: *late* = the served k is above the trained one, *early* = below."""
    if served == trained:
        return "right"
    return f"{abs(served - trained)} {'late' if served > trained else 'early'}"
