"""Words and evidence the alignment checks share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from checks.evidence import Evidence


def listed(states: Sequence[int] | None) -> str:
    """`states 3,7,10`."""
    return "states " + ",".join(map(str, states or ()))


def place(evidence: Evidence, cache: Any) -> dict[str, Any]:
    """Which cache a finding speaks of, where several were given."""
    return {"cache": str(cache.path)} if len(evidence.caches) > 1 else {}
