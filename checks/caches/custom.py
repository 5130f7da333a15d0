"""A layout the user describes: which keys of a file hold the ids, the states, the final state and the mask.

`layout = "custom: ids=tokens, slots=feats, count=3, final=last_hidden:post, mask=loss_mask"`

- `ids`: the key of the token ids, `[S]` or `[B, S]`. Needed.
- `slots`: the key of the states: `[S, mH]`, `[S, m, H]`, `[B, S, mH]` or a list of `[S, H]`; several keys with `+`
  between them are taken one after the other. Needed, or `none`.
- `count`: how many states m there are, where neither the shape nor the final state's width nor the target says.
- `final`: the key of the final state, or `last-slot` for the last of the slots, or `none`; `:pre` or `:post`
  behind it says on which side of the final norm it is.
- `mask`: the key of the loss mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checks.caches.array import Array
from checks.caches.batch import rows_of
from checks.caches.cache import Hints
from checks.caches.layout import Block, Layout, Parts, ids_of, slots_of, undecided, width_of_slots
from checks.caches.listing import SUFFIXES
from checks.errors import UnknownLayout

CUSTOM = 'layout = "custom: ids=KEY, slots=KEY, count=M, final=KEY:post, mask=KEY" (or final=none, final=last-slot:pre)'
_FIELDS = ("ids", "slots", "count", "final", "mask")


@dataclass(frozen=True)
class _Mapping:
    """The parsed text."""

    ids: str
    slots: tuple[str, ...]
    count: int
    final: str
    norm: str
    mask: str

    def parts(self, value: Mapping[str, Any], hints: Hints) -> Parts | None:
        """The parts of a sample that has the keys named, or None."""
        ids = ids_of(value, self.ids)
        if ids is None or any(key not in value for key in self.slots):
            return None
        final = None
        if self.final not in ("none", "last-slot"):
            final = _matrix(value.get(self.final), ids)
            if final is None:
                return None
        blocks: list[Block] = []
        widths = {final.width} if final is not None else set()
        for key in self.slots:
            found, hidden = self._blocks(value[key], ids, hints, final.width if final is not None else 0)
            blocks.extend(found)
            widths.add(hidden)
        if len(widths) != 1 or 0 in widths:
            return None
        last = Block(final, 0) if final is not None else None
        if self.final == "last-slot" and blocks:
            last = blocks.pop()
        return Parts(ids, ids_of(value, self.mask), tuple(blocks), last, widths.pop())

    def _blocks(self, item: Any, ids: Array, hints: Hints, final: int) -> tuple[list[Block], int]:
        """The states under one key, and their width; ([], 0) when there are none."""
        if isinstance(item, list):
            arrays = [array for part in item if (array := _matrix(part, ids)) is not None]
            same = len(arrays) == len(item) and len({array.shape for array in arrays}) == 1
            return ([Block(array, 0) for array in arrays], arrays[0].width) if same else ([], 0)
        array = _matrix(item, ids)
        if array is None:
            return [], 0
        hidden: int | None
        if len(array.shape) == 3:
            hidden = array.shape[2]
        elif self.count:
            hidden = array.width * len(self.slots) // self.count
        elif len(self.slots) > 1:
            hidden = final or array.width
        else:
            hidden = width_of_slots(array.width, hints, final)
        if not hidden or array.width % hidden:
            raise undecided("the mapping's cache", array)
        return list(slots_of(array, hidden)), hidden

    def samples(self, value: Any) -> Sequence[Any] | None:
        """The samples of a file: those of a list, the rows of a batch, else the one."""
        if isinstance(value, list):
            return value
        return rows_of(value, self.ids) or ((value,) if isinstance(value, Mapping) else None)


def custom_reader(text: str) -> Layout:
    """The layout a `custom:` text describes. Raises UnknownLayout that says what is wrong with it."""
    given: dict[str, str] = {}
    for part in text.partition(":")[2].split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in _FIELDS or not value or name in given:
            raise UnknownLayout(f"layout {text[:120]!r}: {part.strip()[:40]!r} is not understood; write {CUSTOM}")
        given[name] = value
    if "ids" not in given or "slots" not in given:
        raise UnknownLayout(f"layout {text[:120]!r}: names no ids or no slots; write {CUSTOM}")
    final, _, norm = given.get("final", "none").partition(":")
    count = given.get("count", "0")
    if norm not in ("", "pre", "post") or not count.isdecimal() or len(count) > 3:
        raise UnknownLayout(f"layout {text[:120]!r}: final ends in :pre or :post, count is a number; write {CUSTOM}")
    slots = () if given["slots"] == "none" else tuple(key.strip() for key in given["slots"].split("+"))
    mapping = _Mapping(given["ids"], slots, int(count), final, norm, given.get("mask", ""))
    return Layout("custom", SUFFIXES, norm or "unknown", mapping.parts, many=mapping.samples)


def _matrix(item: Any, ids: Array) -> Array | None:
    """An array of states for these ids: `[S, W]`, `[S, m, H]`, or the one row of a batch."""
    if not isinstance(item, Array) or not item.floating or item.width <= 0:
        return None
    if len(item.shape) == 3 and item.shape[0] == 1 and item.shape[1] == ids.shape[0] != 1:
        item = item.at(0)
    return item if len(item.shape) in (2, 3) else None
