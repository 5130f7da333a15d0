"""A layout as a value: what its files are called, and where a file's dict holds ids, mask, slots and final state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from checks.caches.array import Array, describe, load
from checks.caches.cache import Cache, CacheSample, Claim, Hints, Look, Place, claimed
from checks.errors import BadTensors, OtherShape, UnknownLayout, Unpaired
from checks.tensors import Floats, Ids, Values


@dataclass(frozen=True)
class Block:
    """H columns of an array `[S, W]`, from column `low` on: one state."""

    array: Array
    low: int


@dataclass(frozen=True)
class Parts:
    """Where one sample holds what. `hidden` is H, the width of every slot."""

    ids: Array
    mask: Array | None
    slots: tuple[Block, ...]
    final: Block | None
    hidden: int
    length: int | None = None
    """How many of the leading tokens are text, where the rest is known to be padding of the batch."""

    @property
    def shape(self) -> tuple[int, int, bool]:
        """What all samples of a cache have in common: m, H, and whether a final state is there."""
        return len(self.slots), self.hidden, self.final is not None


FindParts = Callable[[Mapping[str, Any], Hints], "Parts | None"]


@dataclass(frozen=True)
class Layout:
    """A reader of one layout whose files are dicts of arrays.

    `parts` finds the parts of one sample's dict, or None when its keys and shapes are not this layout's. `many` takes a
    file's value apart where it may hold several samples. `claim` is what a side file says.
    """

    layout: str
    suffixes: tuple[str, ...]
    final: str
    parts: FindParts
    claim: Callable[[Look], Claim | None] | None = None
    many: Callable[[Any], Sequence[Any] | None] | None = None
    note: str = ""
    trouble: str = ""

    def open(self, look: Look) -> Cache | None:
        """The cache when the file looked at is of this layout. Raises UnknownLayout when H is anyone's guess."""
        if look.path is None or not look.path.name.endswith(self.suffixes):
            return None
        first = next(iter(self._items(look.value)), None)
        parts = self.parts(first, look.hints) if isinstance(first, Mapping) else None
        if parts is None:
            return None
        files = look.listing.having(*self.suffixes)
        return Cache(
            look.listing.path,
            self.layout,
            tuple(Place(file) for file in files),
            len(parts.slots),
            parts.hidden,
            self.final if parts.final is not None else "none",
            claimed(look.hints.states, self.claim(look) if self.claim is not None else None),
            _Open(self, parts.shape, replace(look.hints, hidden=parts.hidden, slots=len(parts.slots))),
            look.listing.label,
            self._count if self.many is not None else None,
            self.note,
            self.trouble,
        )

    def _items(self, value: Any) -> Sequence[Any]:
        if self.many is None:
            return (value,)
        return self.many(value) or ()

    def _count(self, path: Path) -> int:
        return len(self._items(load(path)))

    def sample(self, place: Place, hints: Hints) -> Parts:
        """The parts of the sample at a place. Raises BadTensors, OtherShape, NeedsLibrary."""
        value = load(place.path)
        items = self._items(value)
        if items and place.index >= len(items):
            raise BadTensors(f"{place.path}: has no sample {place.index}, only {len(items)}")
        one = items[place.index] if items else value
        parts = None
        if isinstance(one, Mapping):
            try:
                parts = self.parts(one, hints)
            except UnknownLayout as error:
                raise OtherShape(str(error), "; ".join(describe(one))) from None
        if parts is None:
            held = "; ".join(describe(one))
            raise OtherShape(f"{place.path}: is not a {self.layout} file as the rest: it holds {held}", held)
        return parts


class _Open:
    """Opens a sample and holds it to the shape the first file had."""

    def __init__(self, layout: Layout, shape: tuple[int, int, bool], hints: Hints) -> None:
        self._layout = layout
        self._shape = shape
        self._hints = hints

    def __call__(self, place: Place) -> CacheSample:
        parts = self._layout.sample(place, self._hints)
        if parts.shape != self._shape:
            raise OtherShape(
                f"{place.path}: holds {shape_words(parts.shape)}, and the rest of the cache {shape_words(self._shape)}",
                shape_words(parts.shape),
            )
        prove_paired(place.path, parts)
        return PartsSample(place.path, parts)


class PartsSample(CacheSample):
    """A sample over its parts."""

    def __init__(self, path: Path, parts: Parts) -> None:
        self.name = path.name
        self._parts = parts

    @cached_property
    def token_ids(self) -> Ids:
        return self._parts.ids.integers()[: self._parts.length]

    @cached_property
    def loss_mask(self) -> Ids | None:
        mask = self._parts.mask
        return mask.integers()[: self._parts.length] if mask is not None else None

    @property
    def dtype(self) -> str:
        block = next(iter((*self._parts.slots, self._parts.final)), None)
        return block.array.dtype if block is not None else ""

    def slot(self, index: int, start: int, stop: int) -> Floats:
        if not 0 <= index < len(self._parts.slots):
            raise BadTensors(f"{self.name}: has no aux slot {index}, only {len(self._parts.slots)}")
        return self._rows(self._parts.slots[index], start, stop)

    def final(self, start: int, stop: int) -> Floats | None:
        return self._rows(self._parts.final, start, stop) if self._parts.final is not None else None

    def stored(self, slots: int, start: int, stop: int) -> list[Values]:
        stop = min(stop, self._parts.length) if self._parts.length is not None else stop
        final = self._parts.final
        blocks = [*self._parts.slots[:slots], *([] if final is None else [final])]
        whole: dict[Array, Values] = {}
        for block in blocks:
            if block.array not in whole:
                whole[block.array] = block.array.stored(start, stop)
        return [whole[block.array][:, block.low : block.low + self._parts.hidden] for block in blocks]

    def _rows(self, block: Block, start: int, stop: int) -> Floats:
        if self._parts.length is not None:
            stop = min(stop, self._parts.length)
        return block.array.read(start, stop, block.low, block.low + self._parts.hidden)


def shape_words(shape: tuple[int, int, bool]) -> str:
    """m, H and the final state in words."""
    slots, hidden, final = shape
    states = f"{slots} states of width {hidden}" if slots else "no aux states"
    return f"{states}, {'with' if final else 'without'} a final state" + ("" if slots else f" of width {hidden}")


def prove_paired(path: Path, parts: Parts) -> None:
    """Raises Unpaired when ids and states are not of one length."""
    count = parts.ids.shape[0]
    for what, block in [
        *((f"slot {i}", block) for i, block in enumerate(parts.slots)),
        ("the final state", parts.final),
    ]:
        if block is not None and block.array.shape[0] != count:
            raise Unpaired(
                f"{path}: {count} token ids and {block.array.shape[0]} rows of {what}: ids and states are of two texts"
            )


# -- what layouts are made of ------------------------------------------------------------------------------------------


def ids_of(value: Mapping[str, Any], key: str) -> Array | None:
    """A `[S]` array of ids under a key, or None."""
    array = value.get(key)
    return array if isinstance(array, Array) and array.whole and len(array.shape) == 1 else None


def states_of(value: Mapping[str, Any], key: str, axes: int = 2) -> Array | None:
    """An array of floats with so many axes under a key, or None; of three, the first is a batch of one: `[S, W]`."""
    array = value.get(key)
    if not isinstance(array, Array) or not array.floating or len(array.shape) != axes or array.width <= 0:
        return None
    if axes == 2:
        return array
    return array.at(0) if array.shape[0] == 1 and array.shape[2] > 0 else None


def slots_of(array: Array, hidden: int) -> tuple[Block, ...]:
    """The array `[S, mH]` as its m blocks."""
    return tuple(Block(array, low) for low in range(0, array.width, hidden))


def width_of_slots(width: int, hints: Hints, final: int = 0) -> int | None:
    """H of a concat of `width` = m·H columns: the final state's width, else the target's, else by how many there are.

    None when nothing says. The layouts that name three states are not believed: any number may be asked for.
    """
    for hidden in (final, hints.hidden):
        if hidden > 0:
            return hidden if width % hidden == 0 else None
    for count in (len(hints.states), hints.slots):
        if count > 0 and width % count == 0:
            return width // count
    return None


def undecided(what: str, array: Array) -> UnknownLayout:
    """What to say of a concat nobody knows the parts of."""
    return UnknownLayout(
        f"it looks like {what}, but {array.words} does not say how many states stand side by side: give the target "
        "(--target DIR), the draft (--draft DIR), or states in the deployment"
    )


def with_claim(cache: Cache, claim: Claim | None) -> Cache:
    """The cache with this claim."""
    return replace(cache, claim=claim)
