"""`ckpt.numbers`: the draft's weights are finite numbers that somebody trained."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from checks.catalog import check
from checks.draft_shapes import normal_names
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict
from checks.tensors import TensorInfo
from checks.tiles import Looked, look_through

ID = "ckpt.numbers"

TILE = 1 << 20
"""Bytes read at a time."""
BUDGET = 16 << 20
"""Bytes of one tensor that are looked at, spread over its rows; `--samples all` reads everything."""

_FLOATS = ("F16", "BF16", "F32", "F64")
_SHOWN = 4


@check(ID, needs=(Need.DRAFT, Need.DRAFT_WEIGHTS))
def numbers(evidence: Evidence) -> Iterable[Finding]:
    """The weights are finite, and no matrix is empty of numbers.

    Training in float16 may end in Inf and NaN, which spread to every proposal; an export may write a fresh buffer in
    place of a trained matrix. Each tensor is read in tiles of 1 MB spread over its rows, 16 MB of it at most;
    `--samples all` reads all of it.

    FAIL: a NaN or an Inf; `fc` or the head all zero. WARN: another matrix all zero, or a norm all zero. INFO: a matrix
    whose values are all one number, or every norm exactly one, as a fresh module has them (in pure bfloat16 a norm may
    stay there). PASS: none of it in what was read; `evidence.read` says how much.

    What to do: export again from the last good step; train in bfloat16 or with a scaled loss.
    """
    draft = evidence.draft
    weights = draft.weights if draft is not None else None
    assert weights is not None
    tensors = {name: info for name, info in normal_names(weights.info).items() if info.dtype in _FLOATS}
    whole = evidence.request.samples == 0
    seen = {}
    for done, (name, info) in enumerate(sorted(tensors.items())):
        evidence.progress(done, len(tensors), name)
        seen[name] = _look(info, whole)
    yield _judge(tensors, seen)


def _look(info: TensorInfo, whole: bool) -> Looked:
    if info.start == info.end:
        return Looked()  # an empty tensor may claim any number of rows
    width = max((info.end - info.start) // max(info.rows, 1), 1)
    step = max(TILE // width, 1)
    count, limit = -(-info.rows // step), max(BUDGET // (step * width), 1)
    tiles = range(count) if whole or count <= limit else np.linspace(0, count - 1, limit).astype(np.int64).tolist()
    return look_through(info, ((tile * step, min((tile + 1) * step, info.rows)) for tile in tiles))


def _judge(tensors: dict[str, TensorInfo], seen: dict[str, Looked]) -> Finding:
    bad = {tensors[name].name: item for name, item in seen.items() if item.bad}
    flat = [name for name, item in seen.items() if item.only is not None and not item.bad]
    zero = [name for name in flat if seen[name].only == 0 and not name.endswith(".bias")]
    vital = [name for name in zero if name in ("fc.weight", "lm_head.weight")]
    norms = [name for name in seen if "norm" in name and len(tensors[name].shape) == 1]
    fresh = [
        name for name in flat if len(tensors[name].shape) == 2 and name not in zero and tensors[name].shape != (1, 1)
    ]
    ones = bool(norms) and all(name in flat and seen[name].only == 1 for name in norms)
    facts = {
        "read": {tensors[name].name: [item.rows, tensors[name].rows] for name, item in sorted(seen.items())},
        "not_finite": {name: item.bad for name, item in bad.items()},
        "zero": sorted(zero),
        "constant": sorted(fresh),
        "norms_all_one": ones,
    }
    if bad:
        worst = "; ".join(
            f"{name} has {item.bad} values that are NaN or Inf, the first in row {item.first_bad}"
            for name, item in list(bad.items())[:_SHOWN]
        )
        return Finding(ID, Verdict.FAIL, worst, facts)
    if zero:
        what = f"{', '.join(zero[:_SHOWN])} all zero: never filled, or lost on export"
        return Finding(ID, Verdict.FAIL if vital else Verdict.WARN, what, facts)
    if fresh or ones:
        said = [f"{', '.join(fresh[:_SHOWN])}: one number throughout"] if fresh else []
        said += ["every norm is exactly 1, as before training"] if ones else []
        return Finding(ID, Verdict.INFO, "; ".join(said), facts)
    return Finding(ID, Verdict.PASS, f"{len(seen)} tensors are finite and not empty, in what was read", facts)
