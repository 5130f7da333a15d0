"""`data.files`: cache files that are empty, half written or damaged, and gaps in their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from checks.caches import Cache
from checks.caches.container import prove
from checks.caches.listing import Listing, list_files
from checks.catalog import check
from checks.data.scan import no_cache, scan
from checks.data.seen import Seen
from checks.errors import BadTensors, CheckError
from checks.evidence import Evidence
from checks.finding import Finding, Verdict

FILES = "data.files"

PROVEN = 2000
"""Files whose ends are looked at when not all are asked for; it costs one or two small reads each."""

NAMED = 20
"""Damaged files that get a finding of their own; the rest is counted."""

_NUMBERED = re.compile(r"(data_|hs_|shard-)([0-9]{1,15})\.")


@check(FILES)
def files(evidence: Evidence) -> Iterator[Finding]:
    """A generator that is killed, or whose disk is full, leaves half a file under its final name, and counts it as done
    when it is started again. Delete the files named here and generate them again; a gap in the numbers is normal where
    a generator skips samples it could not use.

    How it decides. The ends of up to 2000 files, spread over the cache, are held against the format (all of them with
    `--samples all`): a safetensors header against the file's size, the directory of a torch archive. No tensor is read
    and no torch is needed. The samples whose states are read by other checks are opened as well; only that shows a
    compressed file that ends early.

    - a file that is empty, truncated, longer than its header says, or no such file at all: FAIL, one finding each.
    - gaps in the numbers of data_, hs_ or shard- files: INFO, with the ranges.
    - else PASS, with how many files were looked at.
    """
    if not evidence.request.caches:
        yield no_cache(evidence, FILES)
    for index, given in enumerate(evidence.request.caches):
        listing = list_files(Path(given.path).expanduser())
        opened = evidence.cache_at(index)
        cache = opened if isinstance(opened, Cache) else None
        where = {"cache": given.path} if len(evidence.request.caches) > 1 else {}
        damaged, looked = _damaged(evidence, listing, cache)
        yield from _report(damaged, where)
        if gaps := list(_gaps(listing.files)):
            missing = sum(stop - start + 1 for _, start, stop in gaps)
            shown = ", ".join(
                f"{prefix}{start}" + (f"–{stop}" if stop > start else "") for prefix, start, stop in gaps[:5]
            )
            words = f"{missing} numbers are missing among its files ({shown}{', …' if len(gaps) > 5 else ''}): samples "
            words += "that were skipped or not generated yet"
            facts = {"missing": missing, "gaps": [list(gap) for gap in gaps[:NAMED]], **where}
            yield Finding(FILES, Verdict.INFO, words, facts)
        facts = {"files": len(listing.files), "looked_at": looked, **where}
        if not looked and cache is None:
            words = "it holds no cache files" if not listing.files else "no file of it was looked at"
            yield Finding(FILES, Verdict.UNKNOWN, words, {**facts, "needs": ["a folder of cache files"]})
        elif not damaged:
            yield Finding(FILES, Verdict.PASS, f"{looked} of {len(listing.files) or looked} files are whole", facts)


def _damaged(evidence: Evidence, listing: Listing, cache: Cache | None) -> tuple[dict[str, str], int]:
    """Names of damaged files and why, and how many files were looked at."""
    chosen = listing.files
    if evidence.request.samples and len(chosen) > PROVEN:
        chosen = tuple(chosen[len(chosen) * part // PROVEN] for part in range(PROVEN))
    opened: tuple[Seen, ...] = ()
    if cache is not None:
        with suppress(CheckError):  # without the library that opens them, their ends have to do
            opened = scan(evidence, cache).seen
    whole = {seen.name for seen in opened if not seen.problem}
    out: dict[str, str] = {}
    for done, file in enumerate(chosen):
        if listing.label(file) in whole:
            continue
        try:
            prove(file)
        except BadTensors as error:
            out[listing.label(file)] = _without_path(str(error), file)
        if done % 100 == 0:
            evidence.progress(done, len(chosen), "looking at the ends of files")
    if cache is not None and cache.proof is not None:
        for name, why in cache.proof():
            out.setdefault(name, why)
    for seen in opened:
        if seen.problem == "damaged" and seen.name.partition("#")[0] not in out:
            out[seen.name] = seen.error
    return out, max(len(chosen), len(opened))


def _report(damaged: dict[str, str], where: dict[str, Any]) -> Iterator[Finding]:
    for name, why in list(damaged.items())[:NAMED]:
        yield Finding(FILES, Verdict.FAIL, f"{name}: {why}", {"file": name, "why": why, **where})
    if rest := list(damaged)[NAMED:]:
        words = f"{len(rest)} more files are damaged, from {rest[0]} to {rest[-1]}"
        yield Finding(FILES, Verdict.FAIL, words, {"count": len(rest), "examples": rest[:NAMED], **where})


def _gaps(paths: Sequence[Path]) -> Iterator[tuple[str, int, int]]:
    """(prefix, first, last) of each run of numbers missing within a folder's own range."""
    groups: dict[tuple[Path, str], list[int]] = {}
    for path in paths:
        named = _NUMBERED.match(path.name)
        if named:
            groups.setdefault((path.parent, named.group(1)), []).append(int(named.group(2)))
    for (_, prefix), held in groups.items():
        ordered = sorted(set(held))
        for before, after in zip(ordered, ordered[1:]):
            if after - before > 1:
                yield prefix, before + 1, after - 1


def _without_path(text: str, path: Path) -> str:
    """The reason alone: the finding names the file already."""
    return text[len(str(path)) + 2 :] if text.startswith(f"{path}: ") else text
