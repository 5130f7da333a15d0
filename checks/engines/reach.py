"""From the indices an engine sets for its capture loop to the states that reach the draft, or why they do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checks.errors import CheckError
from checks.layers import Served


class RuleUnknown(CheckError):
    """The rule does not say what happens for these ids: neither right nor wrong can be concluded."""


@dataclass(frozen=True)
class Reach:
    """Which loop indices of a capture loop over layers 0 … n-1 yield a state; None = not known.

    `start`: index 0 (the embedding output) works; where an engine adds hidden and residual stream at a layer's entry,
    layer 0 has no residual yet and the forward pass raises.
    `end`: index n (R_n) is captured by a branch after the loop; without one it is never met.
    `flagged`: the layers themselves are marked, so an index without a layer stops the server at start.
    """

    start: bool | None = None
    end: bool | None = None
    flagged: bool = False


def collect(indices: Sequence[object], n: int, reach: Reach) -> Served:
    """The states captured for loop indices on n layers, ascending and without duplicates as the loop meets them.

    Raises RuleUnknown when index n is asked for and it is not known whether it is captured.
    """
    wrong = [index for index in indices if isinstance(index, bool) or not isinstance(index, int)]
    if wrong:
        return Served((), f"{wrong[0]!r} is not an integer: it matches no layer or stops the engine")
    wanted = [index for index in indices if isinstance(index, int)]
    outside = [index for index in wanted if not -n <= index < n]
    if reach.flagged and outside:
        return Served((), f"the server stops at start: there is no layer {outside[0]} to mark (IndexError)")
    if n in wanted and reach.end is None:
        raise RuleUnknown(
            f"whether the state after the last layer (R_{n}) is captured could not be read; "
            "a capture from the engine decides"
        )
    last = n if reach.end else n - 1
    states = tuple(sorted({index for index in wanted if 0 <= index <= last}))
    return Served(states, _problem(wanted, states, last, n, reach))


def wrong_ids(ids: object) -> Served | None:
    """What happens to ids that are not a list of integers, or None when they are.

    A string raises TypeError when the server starts (`can only concatenate str`), so does a list that is no list.
    """
    if not isinstance(ids, (list, tuple)):
        return Served((), f"the ids are {type(ids).__name__}, not a list: the server stops with TypeError at start")
    for value in ids:
        if isinstance(value, bool) or not isinstance(value, int):
            return Served((), f"id {value!r} is not an integer: the server stops at start, or the id matches no layer")
    return None


def _problem(wanted: Sequence[int], states: tuple[int, ...], last: int, n: int, reach: Reach) -> str | None:
    lost = sorted({index for index in wanted if not 0 <= index <= last})
    if lost:
        named = ", ".join(f"R_{index}" for index in lost)
        why = "lies beyond the capture loop" if lost == [n] else f"is not within R_0 … R_{last}"
        return f"{named} {why}: {len(states)} of {len(wanted)} slots are fed, too few for fc"
    if not wanted:
        return "the list is empty: no state is captured"
    if len(states) < len(wanted):
        return f"duplicates collapse: {len(states)} of {len(wanted)} slots are fed, too few for fc"
    if 0 in states and reach.start is False:
        return "R_0 is asked for, where this build has no residual yet: the forward pass raises unless it was patched"
    return None
