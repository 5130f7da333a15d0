"""What a check says: verdict, finding, fix, and the overall verdict of many findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Union


class Verdict(str, Enum):
    """One check's answer. UNKNOWN means the evidence at hand cannot decide, and says what would."""

    PASS = "PASS"
    INFO = "INFO"
    WARN = "WARN"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


# Order of the overall verdict: FAIL > WARN > UNKNOWN > INFO = PASS.
_WEIGHT = {Verdict.PASS: 0, Verdict.INFO: 0, Verdict.UNKNOWN: 1, Verdict.WARN: 2, Verdict.FAIL: 3}


@dataclass(frozen=True)
class ConfigFix:
    """A change of the draft's config.json as a JSON Patch (RFC 6902), a `test` op before every change."""

    patch: tuple[dict[str, Any], ...]
    file: str = "config.json"

    def as_json(self) -> dict[str, Any]:
        """The `fix` object of the report."""
        return {"kind": "config", "file": self.file, "patch": list(self.patch)}

    @property
    def can_be_said(self) -> bool:
        """Whether JSON can say it: a `test` of what holds NaN or Infinity would never hold."""
        return _is_finite(self.patch)


@dataclass(frozen=True)
class FlagsFix:
    """A change of launch flags or environment: what to set, what to drop."""

    set: dict[str, Any] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The `fix` object of the report."""
        return {"kind": "flags", "set": self.set, "unset": list(self.unset), "env": self.env}


def _is_finite(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(_is_finite(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


Fix = Union[ConfigFix, FlagsFix]


@dataclass(frozen=True)
class Finding:
    """One answer to one question. `evidence` holds plain JSON values only."""

    check: str
    verdict: Verdict
    summary: str
    evidence: dict[str, Any] = field(default_factory=dict)
    fix: Fix | None = None
    help: str = ""
    engine: str | None = None
    took_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The finding as the report's JSON object; `engine` only on engine-dependent findings."""
        out: dict[str, Any] = {"check": self.check, "verdict": self.verdict.value, "summary": self.summary}
        if self.engine is not None:
            out["engine"] = self.engine
        out["evidence"] = plain(self.evidence)
        out["fix"] = plain(self.fix.as_json()) if self.fix is not None else None
        out["help"] = self.help
        out["took_s"] = round(self.took_s, 4)
        return out


def plain(value: Any) -> Any:
    """The value in JSON's own types: tuples as lists, numpy scalars as numbers, and what JSON cannot say as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    # numpy arrays and scalars, by the methods they share: this module stays free of numpy.
    for name in ("tolist", "item"):
        if hasattr(value, name):
            return plain(getattr(value, name)())
    return str(value)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of the whole run; PASS when there is nothing to say."""
    worst = Verdict.PASS
    for verdict in verdicts:
        if _WEIGHT[verdict] > _WEIGHT[worst]:
            worst = verdict
    return worst
