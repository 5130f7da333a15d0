"""Caches of hidden states: recognised by what their files hold, one reader module per layout in this folder.

A module of this folder that defines `READER` is a reader; nothing else has to know of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from checks.caches.cache import Cache, CacheSample, Claim, Reader
from checks.caches.listing import Listing, list_files
from checks.errors import BadTensors, CheckError, NeedsLibrary, UnknownLayout

__all__ = ["Cache", "CacheSample", "Claim", "layouts", "open_cache"]


def open_cache(path: Path, layout: str = "", states: Sequence[int] = (), slots: int = 0) -> Cache:
    """The cache in a folder or in one file, read by `layout` or, when that is empty, by the reader that knows it.

    `states` is what the user believes it holds; it becomes the claim, by "deployment". `slots` is how many states the
    draft reads, when known: layouts that do not say whether their last block is a final state are told apart by it.
    Raises UnknownLayout with what one file holds, NeedsLibrary when looking takes a library this python lacks,
    BadTensors on damaged files.
    """
    listing = list_files(path)
    if layout:
        cache = _named(layout).open(listing, tuple(states), slots)
        if cache is None:
            raise UnknownLayout(f"{path}: not a cache of layout {layout!r}. {describe(listing)}")
        return cache
    failed: CheckError | None = None
    for reader in _readers():
        try:
            cache = reader.open(listing, tuple(states), slots)
        except NeedsLibrary as error:
            failed = failed or error
            continue
        if cache is not None:
            return cache
    if failed is not None:
        raise failed
    known = ", ".join(layouts())
    raise UnknownLayout(f"{path}: no reader knows this layout (known: {known}). {describe(listing)}")


def layouts() -> tuple[str, ...]:
    """The names of the layouts that can be read."""
    return tuple(reader.layout for reader in _readers())


def describe(listing: Listing) -> str:
    """What one file of the cache holds, for someone who has to tell what wrote it."""
    if not listing.files:
        return f"It holds no cache files ({', '.join(listing.others[:5]) or 'it is empty'})."
    file = listing.files[0]
    try:
        if file.suffix == ".safetensors":
            from checks.tensors import read_header

            parts = [f"{info.name} {list(info.shape)} {info.dtype}" for info in read_header(file).values()]
        else:
            from checks.caches.torchfile import describe_file

            parts = describe_file(file)
    except (BadTensors, NeedsLibrary) as error:
        return f"Its file {file.name} could not be looked into: {error}"
    shown = "; ".join(parts[:12]) + ("; …" if len(parts) > 12 else "")
    return f"Its file {file.name} holds {shown or 'nothing'}."


def _named(layout: str) -> Reader:
    for reader in _readers():
        if reader.layout == layout:
            return reader
    raise UnknownLayout(f"layout {layout!r} is not known; known are {', '.join(layouts())}")


@lru_cache(maxsize=1)
def _readers() -> tuple[Reader, ...]:
    modules = [importlib.import_module(f"{__name__}.{item.name}") for item in pkgutil.iter_modules(__path__)]
    return tuple(module.READER for module in modules if hasattr(module, "READER"))
