"""Caches of hidden states: recognised by what their files hold, one reader module per layout in this folder.

A module of this folder that defines `READER` is a reader; nothing else has to know of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from checks.caches.array import Value, describe, load
from checks.caches.cache import Cache, CacheSample, Claim, Hints, Look, Place, Reader
from checks.caches.custom import CUSTOM, custom_reader
from checks.caches.listing import Listing, list_files
from checks.errors import BadTensors, CheckError, NeedsLibrary, UnknownLayout

__all__ = ["Cache", "CacheSample", "Claim", "Hints", "Place", "layouts", "open_cache"]

# How many files may be damaged, and how many of no known layout, before the folder as a whole is taken to be so.
_TRIES, _STRANGE = 12, 3


def open_cache(
    path: Path, layout: str = "", states: Sequence[int] = (), slots: int = 0, hints: Hints | None = None
) -> Cache:
    """The cache in a folder or in one file, read by `layout` or, when that is empty, by the reader that knows it.

    `states` is what the user believes it holds; it becomes the claim, by "deployment". `slots` is how many states the
    draft reads, when known: layouts that do not say whether their last block is a final state are told apart by it.
    `hints` are further facts of target and draft. `layout` may also be a mapping, see `checks.caches.custom`.
    Raises UnknownLayout with what one file holds, NeedsLibrary when looking takes a library this python lacks,
    BadTensors on damaged files.
    """
    known = hints or Hints()
    known = replace(known, states=tuple(states) or known.states, slots=slots or known.slots)
    listing = list_files(path)
    readers = (_named(layout),) if layout else _readers()
    failed: CheckError | None = None
    damaged: CheckError | None = None
    seen: list[tuple[Path, Value]] = []
    for file in _peeks(listing.files):
        try:
            value = load(file)
        except (BadTensors, NeedsLibrary) as error:
            damaged = damaged or error
            continue
        cache, why = _first(readers, Look(listing, known, file, value))
        if cache is not None:
            return cache
        failed = failed or why
        seen.append((file, value))
        if len(seen) == _STRANGE:
            break
    # Layouts that an index or a side file names need no readable sample.
    cache, why = _first(readers, Look(listing, known))
    if cache is not None:
        return cache
    failed = failed or why
    if failed is not None:
        raise UnknownLayout(f"{path}: {failed}") if isinstance(failed, UnknownLayout) else failed
    if damaged is not None and not seen:
        raise damaged
    what = (
        f"not a cache of layout {layout[:120]!r}"
        if layout
        else f"no reader knows this layout (known: {', '.join(layouts())})"
    )
    raise UnknownLayout(f"{path}: {what}. {_held(listing, seen)}")


def layouts() -> tuple[str, ...]:
    """The names of the layouts that can be read."""
    return tuple(reader.layout for reader in _readers())


def _first(readers: Sequence[Reader], look: Look) -> tuple[Cache | None, CheckError | None]:
    failed: CheckError | None = None
    for reader in readers:
        try:
            cache = reader.open(look)
        except (UnknownLayout, BadTensors) as error:
            failed = failed or error
            continue
        if cache is not None:
            return cache, None
    return None, failed


def _peeks(files: Sequence[Path]) -> list[Path]:
    """The files to look into: the first ones, then some spread over the rest."""
    half = _TRIES // 2
    rest = files[half:]
    return [*files[:half], *rest[:: max(len(rest) // half, 1)][:half]]


def _held(listing: Listing, seen: Sequence[tuple[Path, Value]]) -> str:
    """What one file of the cache holds, for someone who has to tell what wrote it."""
    if not listing.files:
        return f"It holds no cache files ({', '.join(listing.others[:5]) or 'it is empty'})."
    if not seen:
        return f"Its file {listing.files[0].name} could not be looked into."
    file, value = seen[0]
    shown = "; ".join(describe(value)) or "nothing"
    return f"Its file {file.name} holds {shown}. Name its parts in the deployment's [[cache]]: {CUSTOM}"


def _named(layout: str) -> Reader:
    if layout.startswith("custom:"):
        return custom_reader(layout)
    for reader in _readers():
        if reader.layout == layout:
            return reader
    raise UnknownLayout(f"layout {layout[:120]!r} is not known; known are {', '.join(layouts())}, or {CUSTOM}")


@lru_cache(maxsize=1)
def _readers() -> tuple[Reader, ...]:
    modules = [importlib.import_module(f"{__name__}.{item.name}") for item in pkgutil.iter_modules(__path__)]
    return tuple(module.READER for module in modules if hasattr(module, "READER"))
