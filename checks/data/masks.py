"""`data.loss_mask`: masks that train nothing, that do not fit their text, or that begin a token early or late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from checks.catalog import check
from checks.data.scan import Scan, place, scans
from checks.data.seen import Turn
from checks.data.turns import late_by_constancy, offsets, read_tokens
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict

MASK = "data.loss_mask"

EMPTY = 0.2
"""Share of samples with nothing masked in beyond which it is no accident of long prompts."""

TURNS, AGREE = 3, 0.8
"""How many turns must show where they begin, and what share of them must agree, before a mask is called shifted."""

NAMED = 12


@check(MASK, needs=(Need.CACHE,))
def loss_mask(evidence: Evidence) -> Iterator[Finding]:
    """The mask says which tokens are learned, each by its own position. All zero it trains nothing and the loss of 0
    looks like success; shifted by one against its text, the first token of every answer is never learned and one
    token of the prompt is. Write the masks again; no layer is at fault.

    How it decides. Sums and lengths of the masks of all samples that are opened. Where a turn begins is told from the
    tokens before it: the header of its chat template, in the words of the target's tokenizer.json; without one, from
    what never varies right before an answer, which shows a mask that begins late, and not one that begins early.

    - a mask of another length than its text, or with values other than 0 and 1: FAIL.
    - samples with nothing masked in: WARN, FAIL above 20 % of the samples.
    - the mask begins early or late by one to three tokens in most turns: WARN, with file and index.
    - else PASS. A cache without masks: INFO.
    """
    for found in scans(evidence, MASK):
        if isinstance(found, Finding):
            yield found
            continue
        facts: dict[str, Any] = {**found.coverage(), **place(evidence, found.cache)}
        with_mask = [seen for seen in found.read if seen.mask_length is not None and seen.length]
        if not with_mask:
            words = "this cache holds no loss masks" if found.read else "no sample could be read"
            more = facts if found.read else {**facts, "needs": ["readable files"]}
            yield Finding(MASK, Verdict.INFO if found.read else Verdict.UNKNOWN, words, more)
            continue
        said = [*_lengths(found, facts), *_values(found, facts), *_empty(found, facts)]
        shift, judged = _shift(evidence, found, facts)
        yield from [*said, *shift]
        if not said and not shift:
            share = sum(seen.masked_in for seen in with_mask) / sum(seen.length for seen in with_mask)
            words = f"{len(with_mask)} masks fit their texts and train {100 * share:.0f} % of the tokens; {judged}"
            yield Finding(MASK, Verdict.PASS, words, {**facts, "share_masked_in": round(share, 4)})


def _lengths(found: Scan, facts: dict[str, Any]) -> Iterator[Finding]:
    wrong = [seen for seen in found.read if seen.mask_length not in (None, seen.length)]
    if wrong:
        first = wrong[0]
        words = f"{first.name}: its mask has {first.mask_length} values and its text {first.length} tokens"
        if len(wrong) > 1:
            words += f"; so it is with {len(wrong) - 1} more samples"
        named = [{"file": seen.name, "mask": seen.mask_length, "tokens": seen.length} for seen in wrong[:NAMED]]
        yield Finding(MASK, Verdict.FAIL, words, {**facts, "samples": named, "samples_with_it": len(wrong)})


def _values(found: Scan, facts: dict[str, Any]) -> Iterator[Finding]:
    wrong = [seen for seen in found.read if not set(seen.mask_values) <= {0, 1}]
    if wrong:
        words = (
            f"{wrong[0].name}: its mask holds {', '.join(map(str, wrong[0].mask_values))}, where 0 and 1 should stand"
        )
        named = [{"file": seen.name, "values": list(seen.mask_values)} for seen in wrong[:NAMED]]
        yield Finding(MASK, Verdict.FAIL, words, {**facts, "samples": named, "samples_with_it": len(wrong)})


def _empty(found: Scan, facts: dict[str, Any]) -> Iterator[Finding]:
    masks = [seen for seen in found.read if seen.mask_length]
    empty = [seen.name for seen in masks if not seen.masked_in]
    if empty:
        share = len(empty) / len(masks)
        which = f"{empty[0]} and others" if len(empty) > 1 else empty[0]
        words = f"{len(empty)} of {len(masks)} samples have nothing masked in and train nothing ({which}): answers cut "
        words += "off by a length limit, or a template that was not recognised"
        verdict = Verdict.FAIL if share > EMPTY else Verdict.WARN
        yield Finding(MASK, verdict, words, {**facts, "empty": empty[:NAMED], "share": round(share, 4)})


def _shift(evidence: Evidence, found: Scan, facts: dict[str, Any]) -> tuple[list[Finding], str]:
    """A finding when most turns begin elsewhere than their masks, and what was said of it otherwise."""
    turns = [turn for seen in found.read for turn in seen.turns]
    if not turns:
        return [], "none begins within its text"
    path = evidence.target.path if evidence.target is not None else None
    texts = read_tokens(path if path is None or path.is_dir() else path.parent) if path is not None else None
    seen = offsets(turns, texts) if texts is not None else []
    if len(seen) >= TURNS:
        offset, count = Counter(value for _, value in seen).most_common(1)[0]
        if offset and count >= AGREE * len(seen):
            example = next(turn for turn, value in seen if value == offset)
            return [_shifted(example, offset, f"in {count} of {len(seen)} turns, by the chat template", facts)], ""
        return [], f"{sum(not value for _, value in seen)} of {len(seen)} turns begin where their masks do"
    late = late_by_constancy(turns)
    if late:
        how = "what stands before it varies, and what stands before that never does"
        return [_shifted(turns[0], late, how, facts)], ""
    return [], "where turns begin was seen" if late == 0 else "where turns begin could not be told"


def _shifted(turn: Turn, offset: int, how: str, facts: dict[str, Any]) -> Finding:
    side = f"{abs(offset)} token{'s' if abs(offset) > 1 else ''} {'late' if offset > 0 else 'early'}"
    words = f"masks begin {side}: {turn.file} at index {turn.at} instead of {turn.at - offset} ({how})"
    more = {**facts, "offset": offset, "file": turn.file, "index": turn.at, "expected": turn.at - offset}
    return Finding(MASK, Verdict.WARN, words, more)
