"""`ckpt.d2t_changed`: the vocabulary map is still the one of the checkpoint this draft was trained from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from checks.catalog import check
from checks.ckpt.vocab_map import find_map, row_of
from checks.draft import Draft, open_draft
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict

ID = "ckpt.d2t_changed"


@check(ID, needs=(Need.DRAFT, Need.DRAFT_WEIGHTS))
def d2t_changed(evidence: Evidence) -> Iterable[Finding]:
    """Fine-tuning kept the vocabulary map of the checkpoint it started from (--parent).

    Row i of the head stands for target token i + d2t[i]. A trainer that rebuilds the map from the new data and writes
    it over the old one gives every trained row another meaning. Accuracy in training uses the new map as well, so it
    cannot show it; the served acceptance falls to about 1.2.

    FAIL: any row leads to another token than the parent's, or the maps have different lengths. INFO: no parent given,
    or it has no map. PASS: the same.

    What to do: put the parent's d2t and t2d back and train again from it; a draft trained long enough under the new map
    is right as it is.
    """
    draft = evidence.draft
    assert draft is not None
    own = _map(draft)
    if own is None:
        yield Finding(ID, Verdict.INFO, "the draft has no map, so there is none to compare", {"rows": None})
        return
    if not evidence.request.parent:
        said = "whether fine-tuning changed the map needs the checkpoint it started from (--parent DIR)"
        yield Finding(ID, Verdict.INFO, said, {"rows": int(own.size)})
        return
    path = Path(evidence.request.parent).expanduser()
    parent = evidence.memo("parent", lambda: open_draft(path))
    theirs = _map(parent)
    facts: dict[str, Any] = {"rows": int(own.size), "parent": str(path), "parent_rows": None, "changed": None}
    if theirs is None:
        yield Finding(ID, Verdict.INFO, "the parent has no map to compare with", facts)
        return
    facts["parent_rows"] = int(theirs.size)
    if theirs.size != own.size:
        said = f"d2t has {own.size} rows and the parent's {theirs.size}: rows of the head changed their tokens"
        yield Finding(ID, Verdict.FAIL, said, facts)
        return
    apart = np.flatnonzero(own != theirs)
    facts["changed"] = int(apart.size)
    if apart.size:
        row = int(apart[0])
        facts["first"] = {"row": row, "draft": int(own[row]) + row, "parent": int(theirs[row]) + row}
        said = (
            f"{apart.size} of {own.size} rows of the head stand for another token than in the parent (row {row}: "
            f"{facts['first']['parent']}, now {facts['first']['draft']})"
        )
        yield Finding(ID, Verdict.FAIL, said, facts)
        return
    yield Finding(ID, Verdict.PASS, f"all {own.size} rows stand for the parent's tokens", facts)


def _map(draft: Draft) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    weights = draft.weights
    info = find_map(weights) if weights is not None else None
    values = row_of(info) if info is not None else None
    return values.astype(np.int64) if values is not None else None
