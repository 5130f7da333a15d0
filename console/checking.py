"""A run of the checks as the console sees it: the request that goes out, the steps and the report that come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """The check that runs now: `done` of `total` (0 = not known)."""

    check: str
    done: int
    total: int
    note: str


@dataclass(frozen=True, slots=True)
class Found:
    """One finding, as the JSON object of the report."""

    finding: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """The whole report, as the JSON object that `console check --json` prints."""

    raw: dict[str, Any]

    @property
    def verdict(self) -> str:
        """FAIL > WARN > UNKNOWN > INFO = PASS."""
        return str(self.raw["verdict"])

    @property
    def findings(self) -> list[dict[str, Any]]:
        """Every finding, in the order of the catalog."""
        return list(self.raw["findings"])

    def find(self, check: str) -> dict[str, Any] | None:
        """The worst finding of one check, or None when the report has none."""
        order = {"FAIL": 0, "WARN": 1, "UNKNOWN": 2, "INFO": 3, "PASS": 4}
        mine = [item for item in self.findings if item["check"] == check]
        return min(mine, key=lambda item: order.get(item["verdict"], 5), default=None)


CheckStep = Progress | Found | Report
