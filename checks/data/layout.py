"""`data.layout` and `data.mixed_layout`: what wrote a cache, and whether all of it is of one kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks.caches import Cache
from checks.caches.listing import list_files
from checks.catalog import check
from checks.data.scan import no_cache, place, scans
from checks.errors import CheckError, NeedsLibrary
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict

LAYOUT, MIXED = "data.layout", "data.mixed_layout"

FINALS = {
    "pre": "a final state before the norm (R_n)",
    "post": "a final state after the norm (N)",
    "unknown": "a last block that may be a final state, which align.final tells",
    "none": "no final state",
}

SHOWN = 8


@check(LAYOUT)
def layout(evidence: Evidence) -> Iterator[Finding]:
    """What wrote the cache, told from keys, shapes and side files: how many states it holds, how wide, and whether the
    final state stands beside them. A cache nobody knows needs a mapping in the deployment before anything else can be
    said of it.

    How it decides. One file is held against every known layout; the states themselves say nothing here. Side files
    and formats claim which states these are; claims are shown, never believed (align.states names them by numbers).

    - recognised: PASS. With something to know about it, such as a loss mask that could not be read: INFO.
    - a layout whose trainer cannot use what it holds (logits in the place of the final state): WARN.
    - states of another width than the target's hidden size: FAIL, it is a cache of another target.
    - no layout fits: UNKNOWN, with the keys, shapes and dtypes of a file. Say in the deployment what they are:
      `[[cache]]` with `layout = "custom: ids=KEY, slots=KEY, count=M, final=KEY:post, mask=KEY"`. `slots` is the key of
      the states, as a concat `[S, mH]`, as `[S, m, H]`, a list, or several keys with `+` between them; `count` is m;
      `final` is a key, or `last-slot`, or `none`, and `:pre` or `:post` says on which side of the
      final norm it stands.
    - a library is missing to look into it (torch for `.pt` and `.ckpt`): UNKNOWN, and the rest goes on.
    """
    if not evidence.request.caches:
        yield no_cache(evidence, LAYOUT)
    for index, given in enumerate(evidence.request.caches):
        opened = evidence.cache_at(index)
        if isinstance(opened, Cache):
            yield _recognised(evidence, opened)
            continue
        listing = list_files(Path(given.path).expanduser())
        if not listing.files and not listing.others:
            facts = {"cache": given.path, "needs": ["a folder that holds cached files"]}
            yield Finding(LAYOUT, Verdict.UNKNOWN, f"{given.path}: the folder is empty", facts)
            continue
        needs = [f"{opened.library} in the python that runs the checks"] if isinstance(opened, NeedsLibrary) else []
        facts = {"cache": given.path, "needs": needs or ["a layout in the deployment's [[cache]], or a right path"]}
        yield Finding(LAYOUT, Verdict.UNKNOWN, f"not recognised: {opened}", facts)


def _recognised(evidence: Evidence, cache: Cache) -> Finding:
    facts: dict[str, Any] = {
        "layout": cache.layout,
        "files": cache.files,
        "slots": cache.slots,
        "hidden": cache.hidden,
        "final": cache.final,
        **place(evidence, cache),
    }
    states = f"{cache.slots} states of width {cache.hidden}" if cache.slots else f"no aux states (width {cache.hidden})"
    words = f"{cache.layout}: {cache.files} samples, {states}, {FINALS[cache.final]}"
    if cache.claim is not None:
        facts["claimed"], facts["claimed_by"] = list(cache.claim.states), cache.claim.by
        words += f"; claimed by {cache.claim.by}: {','.join(map(str, cache.claim.states))}"
    hidden = _target_hidden(evidence)
    if hidden and hidden != cache.hidden:
        words = f"the cached states are {cache.hidden} wide and the target's are {hidden}: a cache of another target"
        return Finding(LAYOUT, Verdict.FAIL, words, {**facts, "target_hidden": hidden})
    if cache.trouble:
        return Finding(LAYOUT, Verdict.WARN, f"{words}; {cache.trouble}", facts)
    if cache.note:
        return Finding(LAYOUT, Verdict.INFO, f"{words}; {cache.note}", facts)
    return Finding(LAYOUT, Verdict.PASS, words, facts)


@check(MIXED, needs=(Need.CACHE,))
def mixed_layout(evidence: Evidence) -> Iterator[Finding]:
    """All files of a cache should be of one layout and width. Caches that were continued with another version of
    their generator are not: the same key held logits once and the final state later, or a target was changed. Keep
    one generation and write the others again.

    How it decides. Every sample that is opened is held against the first one: its keys, how many states, how wide,
    with or without a final state.

    - more than one kind: FAIL, with the files of each.
    - else PASS.
    """
    for found in scans(evidence, MIXED):
        if isinstance(found, Finding):
            yield found
            continue
        kinds: dict[str, list[str]] = {}
        for seen in found.seen:
            if seen.problem == "shape":
                kinds.setdefault(seen.found, []).append(seen.name)
        facts: dict[str, Any] = {**found.coverage(), **place(evidence, found.cache)}
        if not kinds:
            words = f"the {len(found.read)} samples looked at are of one kind"
            yield Finding(MIXED, Verdict.PASS if found.read else Verdict.UNKNOWN, words, facts)
            continue
        right = [seen.name for seen in found.read]
        facts["kinds"] = [{"holds": "as the first", "files": right[:SHOWN], "count": len(right)}]
        facts["kinds"] += [
            {"holds": kind, "files": names[:SHOWN], "count": len(names)} for kind, names in kinds.items()
        ]
        others = "; ".join(f"{', '.join(names[:3])}: {kind}" for kind, names in list(kinds.items())[:3])
        words = f"{len(kinds) + 1} kinds of files in one cache: {len(right)} as the first, and {others}"
        yield Finding(MIXED, Verdict.FAIL, words, facts)


def _target_hidden(evidence: Evidence) -> int:
    try:
        return evidence.target.hidden if evidence.target is not None else 0
    except CheckError:
        return 0  # a target that cannot be read is told by the checks that need it
