"""The value behind the wiring strip: which states the draft was trained on, and which the engine feeds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OK, BAD, UNKNOWN = "ok", "bad", "unknown"


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of the draft's input: trained and served k (None: not known), and the distance in words."""

    index: int
    trained: int | None
    served: int | None

    @property
    def state(self) -> str:
        """`ok`, `bad` or `unknown`."""
        if self.trained is None or self.served is None:
            return UNKNOWN
        return OK if self.trained == self.served else BAD

    @property
    def words(self) -> str:
        """`right`, `1 late`, `3 early`; empty when either side is not known."""
        if self.trained is None or self.served is None:
            return ""
        distance = self.served - self.trained
        return "right" if not distance else f"{abs(distance)} {'late' if distance > 0 else 'early'}"


@dataclass(frozen=True, slots=True)
class Wiring:
    """The target's n layers, and per slot what was trained and what is served.

    `source` says where the served states come from (`probed`, `table`, `capture`), `trained_by` where the trained
    ones do; both empty when not known.
    """

    n: int | None = None
    trained: tuple[int, ...] | None = None
    served: tuple[int, ...] | None = None
    source: str = ""
    trained_by: str = ""
    engine: str = ""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Trained and served side by side; as many as the longer of the two."""
        trained, served = self.trained or (), self.served or ()
        return tuple(
            Slot(i, trained[i] if i < len(trained) else None, served[i] if i < len(served) else None)
            for i in range(max(len(trained), len(served)))
        )

    @property
    def state(self) -> str:
        """`ok` when every slot is right, `bad` when one is wrong or the counts differ, else `unknown`."""
        if self.trained is None or self.served is None:
            return UNKNOWN
        return OK if self.trained == self.served else BAD


def read_wiring(findings: Sequence[Mapping[str, Any]]) -> Wiring:
    """The wiring that a report's findings speak of; an unknown wiring when they name none.

    Reads the evidence keys that the align family promises: `trained_states`, `engine_states`, `source`, `n`.
    """
    raise NotImplementedError
