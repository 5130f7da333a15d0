"""Other wirings to try a draft on: neighbours of the one it is said to be trained on, and the known defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from checks.acceptance import Estimate, Hits, paired_gain
from checks.stretches import Bench

States = tuple[int, ...]

LEAST, MOST = 20, 60
"""Wirings tried at most: each is one run of the draft over the shared texts. A large draft gets fewer."""

BUDGET = 10**14
"""Floating-point operations of all the runs together."""


@dataclass(frozen=True)
class Trial:
    """A wiring, its hits, and what it gains over the base in tokens a round, paired on the same anchors."""

    states: States
    hits: tuple[Hits, ...]
    gain: Estimate


def neighbours(states: States, reach: int = 1) -> Iterator[States]:
    """All slots, then each slot alone, moved by up to `reach` layers."""
    moves = [step for size in range(1, reach + 1) for step in (-size, size)]
    for step in moves:
        yield tuple(k + step for k in states)
    for slot in range(len(states)):
        for step in moves:
            yield tuple(k + step if i == slot else k for i, k in enumerate(states))


def candidates(states: States, n: int) -> Iterator[States]:
    """The wirings a draft may have been trained on when its cache says otherwise, on a target of n layers.

    Neighbours; the embedding first with the rest moved up a slot, which is what an id of -1 gives; the defaults of
    engines and trainers; other orders of the same states.
    """
    yield states
    yield from neighbours(states)
    yield (0, *states[:-1])
    if len(states) == 3:
        yield (2, n // 2, n - 3)
        yield (3, n // 2 + 1, n - 2)
    if len(states) <= 3:
        yield from permutations(states)


def legal(wirings: Iterable[States], top: int, known: Iterable[States]) -> list[States]:
    """Those of states R_0 … R_top, no state twice, each wiring once, without the known ones."""
    seen, out = set(known), []
    for wiring in wirings:
        if wiring not in seen and all(0 <= k <= top for k in wiring) and len(set(wiring)) == len(wiring):
            seen.add(wiring)
            out.append(wiring)
    return out


def search(
    bench: Bench,
    base: Sequence[Hits],
    starts: Sequence[States],
    reach: tuple[int, int],
    run: Callable[[States, int, int], list[Hits]],
    known: set[States],
) -> list[Trial]:
    """Try the candidates, then climb from the best that certainly gains, neighbour by neighbour, while it gains.

    `reach` is (n, the highest captured state); `known` need not be tried, as the base itself. Returns the trials, best
    first; their intervals hold for all of them together.
    """
    n, top = reach
    most = min(max(BUDGET // max(bench.cost, 1), LEAST), MOST)
    hits: dict[States, list[Hits]] = {}
    queue = legal((wiring for start in starts for wiring in candidates(start, n)), top, known)
    gained = 0.0
    while queue and len(hits) < most:
        for index, wiring in enumerate(queue[: most - len(hits)]):
            hits[wiring] = run(wiring, index, len(queue))
        gains = {wiring: paired_gain(base, each, bench.valid, len(hits)) for wiring, each in hits.items()}
        leader = max(gains, key=lambda wiring: gains[wiring].mean)
        if gains[leader].mean <= gained or gains[leader].low <= 0:
            break
        gained = gains[leader].mean
        queue = legal(neighbours(leader, 2), top, {*hits, *known})
    trials = [
        Trial(wiring, tuple(each), paired_gain(base, each, bench.valid, len(hits))) for wiring, each in hits.items()
    ]
    return sorted(trials, key=lambda trial: -trial.gain.mean)
