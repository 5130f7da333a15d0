"""`data.token_ids`: token ids that the target's vocabulary does not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checks.catalog import check
from checks.data.scan import place, scans
from checks.errors import CheckError
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict
from checks.jsonfile import whole

TOKENS = "data.token_ids"

NAMED = 12


@check(TOKENS, needs=(Need.CACHE,))
def token_ids(evidence: Evidence) -> Iterator[Finding]:
    """Token ids beyond the target's vocabulary are of another target's tokenizer, and negative ones are labels or
    padding marks that were stored as ids. Neither cache fits this target; generate it again, or name the right target.

    How it decides. The least and the greatest id of every sample that is opened, against the vocabulary size in the
    target's config, else in the draft's.

    - a negative id, or one beyond the vocabulary: FAIL, with file and row.
    - else PASS; without a target and a draft: UNKNOWN. Another tokenizer of the same size does not show here, but in
      align.embedding.
    """
    vocab, whose = _vocab(evidence)
    for found in scans(evidence, TOKENS):
        if isinstance(found, Finding):
            yield found
            continue
        facts: dict[str, Any] = {"vocab": vocab or None, **found.coverage(), **place(evidence, found.cache)}
        read = [seen for seen in found.read if seen.length]
        negative = [(seen.name, *seen.low) for seen in read if seen.low[1] < 0]
        beyond = [(seen.name, *seen.high) for seen in read if vocab and seen.high[1] >= vocab]
        for listed, what in ((negative, "negative"), (beyond, f"beyond {whose} vocabulary of {vocab}")):
            if listed:
                name, row, value = listed[0]
                words = f"{name}: token id {value} in row {row} is {what}"
                if len(listed) > 1:
                    words += f"; {len(listed)} of {len(read)} samples have such ids"
                named = [{"file": name, "row": row, "id": value} for name, row, value in listed[:NAMED]]
                yield Finding(TOKENS, Verdict.FAIL, words, {**facts, "samples": named, "samples_with_it": len(listed)})
        if negative or beyond:
            continue
        if not read:
            yield Finding(TOKENS, Verdict.UNKNOWN, "no sample could be read", {**facts, "needs": ["readable files"]})
        elif not vocab:
            needs = ["the target's config.json (--target DIR)"]
            words = f"not checked: needs the vocabulary size, from {needs[0]}"
            yield Finding(TOKENS, Verdict.UNKNOWN, words, {**facts, "needs": needs})
        else:
            low, high = min(seen.low[1] for seen in read), max(seen.high[1] for seen in read)
            words = f"ids {low} to {high} in {len(read)} samples, within {whose} vocabulary of {vocab}"
            yield Finding(TOKENS, Verdict.PASS, words, {**facts, "least": low, "greatest": high})


def _vocab(evidence: Evidence) -> tuple[int, str]:
    """The size of the vocabulary, 0 when nothing says, and whose it is."""
    try:
        if evidence.target is not None:
            return evidence.target.vocab, "the target's"
    except CheckError:
        pass
    try:
        if evidence.draft is not None and evidence.draft.config_error is None:
            return whole(evidence.draft.config.get("vocab_size")) or 0, "the draft's"
    except CheckError:
        pass
    return 0, ""
