"""`log.expected`: the accept length that the replay expects under the served wiring, against the one the log prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from checks.acceptance import REPLAYED, Estimate
from checks.evidence import Evidence
from checks.finding import Finding, Verdict
from checks.log.case import log_check
from checks.log.read import ENOUGH, LENGTH, mean_of, read_tail, silent

ID = "log.expected"

HALF = 0.5


@log_check(ID)
def expected(evidence: Evidence) -> Iterable[Finding]:
    """Whether the running server accepts what the draft, replayed on its cached texts under the served wiring, should.

    The requests are others than the cached texts, so that the two never agree closely. WARN: the live accepted drafts a
    step (accept length less 1) are under half the lower end of the replay's interval: the engine loses what the draft
    can do. PASS: they are not. INFO: too few lines. Without a replay there is nothing to compare, and no finding.

    What to do: known defects of the engine (flags.known_defect), CUDA graphs (compare with --disable-cuda-graph), a
    capture from the running server.
    """
    replayed: Any = evidence.memo(REPLAYED, lambda: None)
    if not isinstance(replayed, Estimate):
        return
    tail = read_tail(evidence)
    nothing = silent(evidence, ID, tail)
    if nothing is not None:
        yield nothing
        return
    live = mean_of(tail.told)
    facts = {
        "live": live,
        "expected": replayed.mean,
        "interval": [replayed.low, replayed.high],
        "lines": len(tail.told),
    }
    words = f"live {LENGTH} {live:.2f}, {replayed.mean:.2f} expected from the cached texts"
    if len(tail.told) < ENOUGH:
        yield Finding(ID, Verdict.INFO, f"{words}; too few decode lines to judge", facts)
        return
    low = replayed.low if replayed.units > 1 else replayed.mean
    if live - 1 < HALF * (low - 1):
        yield Finding(
            ID, Verdict.WARN, f"{words}: the engine loses what the draft can do, or the requests are unlike", facts
        )
        return
    yield Finding(ID, Verdict.PASS, words, facts)
