"""`data.duplicates`: the same text twice in a cache, and rows of states that are copies of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checks.catalog import check
from checks.data.scan import place, scans
from checks.data.seen import Seen
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict

DUPLICATES = "data.duplicates"

MANY = 0.05
"""From this share of samples on, texts that stand twice change what is trained; a few stand twice in every corpus."""

SHORT = 8
"""Texts of fewer tokens are the same now and then."""

NAMED = 12


@check(DUPLICATES, needs=(Need.CACHE,))
def duplicates(evidence: Evidence) -> Iterator[Finding]:
    """A text that stands in a cache several times is trained on several times, and where it falls into the held-out
    part as well, accuracy is flattered. A row of states that is bit for bit another row, for another token or in
    another context, was not computed for its own token: a copy error of the generator or of its prefix cache.

    How it decides. Token ids of all samples that are opened, compared as wholes (texts under 8 tokens are left out);
    rows of the last block within each sample whose states are read. Equal rows of one token after the same token
    occur in repetitive text and are no fault.

    - copied rows: FAIL, with file and rows.
    - at least 5 % of the samples have a text that another one has: WARN. Fewer: INFO.
    - else PASS. With the default sample only duplicates among the samples looked at are seen.
    """
    for found in scans(evidence, DUPLICATES):
        if isinstance(found, Finding):
            yield found
            continue
        facts: dict[str, Any] = {**found.coverage(), **place(evidence, found.cache)}
        if not found.read:
            needs = {**facts, "needs": ["readable files"]}
            yield Finding(DUPLICATES, Verdict.UNKNOWN, "no sample could be read", needs)
            continue
        copied = [(seen, fault) for seen in found.deep for fault in seen.repeated]
        if copied:
            seen, fault = copied[0]
            words = f"{seen.name}: row {fault.first} of {fault.where} is {fault.note}, which is another token's"
            if len(copied) > 1 or fault.rows > 1:
                rows = sum(item.rows for _, item in copied)
                words += f"; {rows} rows of {len(copied)} samples are copies"
            named = [fault.as_json(seen.name) for seen, fault in copied[:NAMED]]
            yield Finding(DUPLICATES, Verdict.FAIL, words, {**facts, "rows_copied": named})
        groups = [names for names in _texts(found.read) if len(names) > 1]
        again = sum(len(names) - 1 for names in groups)
        if groups:
            verdict = Verdict.WARN if again >= MANY * len(found.read) else Verdict.INFO
            words = (
                f"{again} of {len(found.read)} samples repeat another one's text, {groups[0][1]} that of {groups[0][0]}"
            )
            yield Finding(
                DUPLICATES, verdict, words, {**facts, "same_text": [names[:NAMED] for names in groups[:NAMED]]}
            )
        if not copied and not groups:
            words = f"{len(found.read)} different texts, and no row is a copy of another"
            yield Finding(DUPLICATES, Verdict.PASS, words, facts)


def _texts(seen: tuple[Seen, ...]) -> list[list[str]]:
    """Names of samples by text."""
    groups: dict[tuple[int, int], list[str]] = {}
    for item in seen:
        if item.length >= SHORT:
            groups.setdefault((item.length, item.text), []).append(item.name)
    return list(groups.values())
