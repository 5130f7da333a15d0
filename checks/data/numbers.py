"""`data.finite` and `data.padding`: numbers that are none, rows that are empty, and the padding a batch left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checks.catalog import check
from checks.data.scan import Scan, place, scans
from checks.data.seen import Fault, Seen
from checks.errors import CheckError
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict

FINITE, PADDING = "data.finite", "data.padding"

NAMED = 12
"""Samples that a finding lists one by one."""

RUN, COLLAPSED = 2, 4
"""A text that ends with this many of one padding id was padded; trained on, it takes more to be sure of it."""


@check(FINITE, needs=(Need.CACHE,))
def finite(evidence: Evidence) -> Iterator[Finding]:
    """NaN or infinity in a cached state makes every gradient it meets NaN, and a row of zeros teaches nothing. Generate
    the samples named here again; when float16 could not hold the states, in bfloat16.

    How it decides. Of 16 samples spread over the cache 256 rows each are read, in stretches from the first row to the
    last (`--samples all`: everything), slot by slot and the final state. The report says how much was read. A walk over
    everything that was interrupted goes on where it was when it is asked for again, but for files changed since.

    - NaN or infinity in a row, or a row of zeros that is no padding: FAIL, with file, slot and first row.
    - numbers that are bytes of another float type (float16 read of bfloat16 bytes lies between 0.25 and 8, bfloat16
      read of float16 bytes spreads over thirty powers of two and more), or of a size no state has: FAIL.
    - float16 at its largest value, 65504: WARN, the state was larger and was cut.
    - else PASS.
    """
    for found in scans(evidence, FINITE):
        if isinstance(found, Finding):
            yield found
            continue
        facts: dict[str, Any] = {**found.coverage(), **place(evidence, found.cache)}
        if not found.deep:
            yield Finding(FINITE, Verdict.UNKNOWN, "no sample could be read", {**facts, "needs": ["readable files"]})
            continue
        said = [
            *_said(found, "broken", Verdict.FAIL, "not a number or infinite", facts),
            *_said(found, "zero", Verdict.FAIL, "all zero", facts),
            *_said(found, "strange", Verdict.FAIL, "no states of the dtype they are stored as", facts),
            *_said(found, "saturated", Verdict.WARN, "cut at float16's largest value", facts),
        ]
        yield from said
        if not said:
            rows = sum(item.rows for item in found.deep)
            yield Finding(FINITE, Verdict.PASS, f"{rows} rows of {len(found.deep)} samples are finite", facts)


def _said(found: Scan, kind: str, verdict: Verdict, what: str, facts: dict[str, Any]) -> Iterator[Finding]:
    """One finding for all samples with this fault."""
    listed = [
        (seen, fault)
        for seen in found.deep
        for fault in getattr(seen, kind)
        if kind != "zero" or not _padded(seen, fault)
    ]
    if not listed:
        return
    seen, fault = listed[0]
    samples = len({item.name for item, _ in listed})
    if fault.rows:
        words = f"{seen.name}: {fault.rows} rows of {fault.where} are {what}, from row {fault.first} on"
    else:
        words = f"{seen.name}: {fault.where}: {fault.note}"
    if samples > 1:
        words += f"; {samples} of {len(found.deep)} samples have such rows"
    named = [fault.as_json(item.name) for item, fault in listed[: NAMED * 2]]
    yield Finding(FINITE, verdict, words, {**facts, "faults": named, "samples_with_it": samples})


def _padded(seen: Seen, fault: Fault) -> bool:
    """Whether the rows are those of the padding at the end, which trains nothing."""
    _, run, masked_in = seen.tail
    return run >= RUN and not masked_in and fault.first >= seen.length - run


@check(PADDING, needs=(Need.CACHE,))
def padding(evidence: Evidence) -> Iterator[Finding]:
    """Some generators pad the rows of a batch to the longest one and store the padding: ids 0 with states that the
    target computed for them. Behind a mask of zeros it costs disk space and no accuracy; where it is masked in, the
    draft learns to predict padding.

    How it decides. The run of one id that a text ends with, when that id is 0 or the target's pad_token_id.

    - two or more, none masked in: INFO, with how many and where they begin.
    - four or more, masked in: WARN. It is padding that is trained on, or a text that collapsed into one token.
    - else PASS. Without a loss mask the run is told as INFO: whether it is trained on is not known.
    """
    pads = {0} | _pad_ids(evidence)
    for found in scans(evidence, PADDING):
        if isinstance(found, Finding):
            yield found
            continue
        facts: dict[str, Any] = {**found.coverage(), **place(evidence, found.cache)}
        padded = [seen for seen in found.read if seen.tail[0] in pads and RUN <= seen.tail[1] < seen.length]
        trained = [seen for seen in padded if seen.tail[2] >= COLLAPSED]
        hidden = [seen for seen in padded if not seen.tail[2]]
        if trained:
            yield _padding(trained, Verdict.WARN, "that are trained on: padding, or a text that collapsed", facts)
        if hidden:
            masked = all(seen.mask_length is not None for seen in hidden)
            words = (
                "masked out, which trains nothing" if masked else "of padding; no mask says whether it is trained on"
            )
            yield _padding(hidden, Verdict.INFO, words, facts)
        if not trained and not hidden:
            verdict = Verdict.PASS if found.read else Verdict.UNKNOWN
            words = f"none of {len(found.read)} samples ends in padding" if found.read else "no sample could be read"
            yield Finding(PADDING, verdict, words, facts if found.read else {**facts, "needs": ["readable files"]})


def _padding(samples: list[Seen], verdict: Verdict, what: str, facts: dict[str, Any]) -> Finding:
    first = samples[0]
    pad, run, _ = first.tail
    words = f"{first.name} ends with {run} tokens of id {pad} {what}"
    if len(samples) > 1:
        words += f"; so do {len(samples) - 1} more samples"
    named = [
        {"file": seen.name, "from_row": seen.length - seen.tail[1], "rows": seen.tail[1], "masked_in": seen.tail[2]}
        for seen in samples[:NAMED]
    ]
    return Finding(PADDING, verdict, words, {**facts, "padded": named, "samples_with_it": len(samples)})


def _pad_ids(evidence: Evidence) -> set[int]:
    try:
        pad = evidence.target.text.get("pad_token_id") if evidence.target is not None else None
    except CheckError:
        return set()
    return {pad} if isinstance(pad, int) and not isinstance(pad, bool) else set()
