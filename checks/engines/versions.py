"""Versions of engines: the release numbers of a version string, compared as tuples."""

from __future__ import annotations

import re
from dataclasses import dataclass

Release = tuple[int, ...]

_RELEASE = re.compile(r"\s*v?(\d{1,9}(?:\.\d{1,9}){0,5})")


def release(version: str) -> Release:
    """The release numbers of a version, `()` when it has none.

    Suffixes are dropped: `0.5.9.post1` and `0.5.9rc1` both behave as 0.5.9 here, because the tables know releases only.
    """
    found = _RELEASE.match(version)
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


@dataclass(frozen=True)
class Span:
    """A range of releases, both ends included; an open end is None."""

    since: Release | None = None
    until: Release | None = None

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple):
            return False
        # 0.5.12 as an upper end includes 0.5.12.1: compare on the length of the bound.
        above = self.since is None or item >= self.since
        below = self.until is None or item[: len(self.until)] <= self.until
        return above and below

    def __str__(self) -> str:
        return f"{dotted(self.since) or '…'}–{dotted(self.until) or '…'}"


def dotted(numbers: Release | None) -> str:
    """`(0, 5, 12)` as `0.5.12`; empty for None."""
    return ".".join(str(number) for number in numbers) if numbers else ""


def span(since: str = "", until: str = "") -> Span:
    """A Span from two version strings; empty = open."""
    return Span(release(since) or None, release(until) or None)
