"""What one sample of a cache showed: the facts that the checks of the family judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from checks.tensors import Ids


@dataclass(frozen=True)
class Fault:
    """Rows of one block that are wrong: which block, how many of those read, and the first by its place in the text."""

    where: str
    rows: int
    first: int
    note: str = ""

    def as_json(self, name: str) -> dict[str, Any]:
        """For evidence."""
        note = {"note": self.note} if self.note else {}
        return {"file": name, "where": self.where, "rows": self.rows, "first_row": self.first, **note}


@dataclass(frozen=True)
class Turn:
    """The tokens around the first masked-in token of a turn: `ids[begin]` is that token, `at` its place in `file`."""

    file: str
    ids: Ids
    begin: int
    at: int


@dataclass
class Seen:
    """What one sample showed. `problem`: damaged, shape, unpaired, or none."""

    name: str
    problem: str = ""
    error: str = ""
    found: str = ""
    length: int = 0
    text: int = 0
    """Equal for equal token ids."""
    low: tuple[int, int] = (0, 0)
    """Row and value of the least token id."""
    high: tuple[int, int] = (0, 0)
    tail: tuple[int, int, int] = (0, 0, 0)
    """The run of one id the text ends with: that id, its length, and how many of it are masked in."""
    mask_length: int | None = None
    masked_in: int = 0
    mask_values: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()
    pairing: str = ""
    """Why its ids are not those of its row in the dataset."""
    paired: bool = False
    rows: int = 0
    """Rows whose states were read; 0 where only ids and mask were."""
    dtype: str = ""
    broken: list[Fault] = field(default_factory=list)
    zero: list[Fault] = field(default_factory=list)
    saturated: list[Fault] = field(default_factory=list)
    strange: list[Fault] = field(default_factory=list)
    repeated: list[Fault] = field(default_factory=list)
