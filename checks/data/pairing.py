"""`data.pairing`: whether states belong to the token ids they stand beside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checks.catalog import check
from checks.data.scan import place, scans
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict

PAIRING = "data.pairing"

NAMED = 12


@check(PAIRING, needs=(Need.CACHE,))
def pairing(evidence: Evidence) -> Iterator[Finding]:
    """States and token ids are joined by position, and in speculators' caches file i is joined with row i of a dataset
    by its number alone. When either slips, every label is of another token and training still runs. Generate the
    cache again from the dataset as it is, or bring back the dataset it was generated from.

    How it decides. Every sample that is opened has as many states as ids; and where an arrow dataset stands beside
    the files (and pyarrow is there to read it), the ids are those of the row.

    - ids and states of different lengths: FAIL.
    - ids other than the dataset's row: FAIL, with the row they are of when it is one of the six around it.
    - else PASS. Ids that are as many and wrong show in align.embedding and align.states.
    """
    for found in scans(evidence, PAIRING):
        if isinstance(found, Finding):
            yield found
            continue
        facts: dict[str, Any] = {**found.coverage(), **place(evidence, found.cache)}
        unpaired = [(seen.name, seen.error) for seen in found.seen if seen.problem == "unpaired"]
        slipped = [(seen.name, seen.pairing) for seen in found.read if seen.pairing]
        # The ones whose row was found elsewhere say most.
        slipped.sort(key=lambda item: "slipped" not in item[1])
        for listed in (unpaired, slipped):
            if listed:
                name, why = listed[0]
                words = why if listed is unpaired else f"{name}: {why}"
                if len(listed) > 1:
                    words += f"; so it is with {len(listed) - 1} more samples"
                named = [{"file": name, "why": why} for name, why in listed[:NAMED]]
                more = {**facts, "samples": named, "samples_with_it": len(listed)}
                yield Finding(PAIRING, Verdict.FAIL, words, more)
        if unpaired or slipped:
            continue
        if not found.read:
            yield Finding(PAIRING, Verdict.UNKNOWN, "no sample could be read", {**facts, "needs": ["readable files"]})
            continue
        rows = sum(seen.paired for seen in found.read)
        words = f"{len(found.read)} samples have as many states as ids"
        if rows:
            words += f", and {rows} have the ids of their row in the dataset"
        yield Finding(PAIRING, Verdict.PASS, words, {**facts, "compared_with_dataset": rows})
