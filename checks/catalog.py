"""The catalog of checks: registration, what each needs, and running them over one body of evidence."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Callable

from checks.errors import CheckError
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict

CheckFunction = Callable[[Evidence], Iterable[Finding]]

FAMILIES = ("cfg", "ckpt", "data", "align", "replay", "flags", "log", "ops")


@dataclass(frozen=True)
class Check:
    """One question: id `family.name`, the function that answers it, and the evidence it cannot do without."""

    id: str
    run: CheckFunction
    needs: tuple[Need, ...]

    @property
    def page(self) -> str:
        """The documentation page: the function's docstring."""
        return _dedent(self.run.__doc__ or "")

    @property
    def help(self) -> str:
        """The first paragraph of the page, for the report."""
        return " ".join(self.page.split("\n\n")[0].split())


_REGISTRY: dict[str, Check] = {}


def check(id: str, needs: tuple[Need, ...] = ()) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check. Its docstring is its page: what it means, how it decides, what to do."""

    def register(run: CheckFunction) -> CheckFunction:
        _REGISTRY[id] = Check(id, run, needs)
        return run

    return register


def all_checks() -> list[Check]:
    """Every check in the order of its family, then of its definition."""
    import checks.families  # noqa: F401  (importing the families fills the registry)

    return sorted(_REGISTRY.values(), key=lambda item: FAMILIES.index(item.id.split(".")[0]))


def run_checks(evidence: Evidence, chosen: Iterable[Check]) -> Iterator[Finding]:
    """Run the chosen checks in order; one that lacks evidence is UNKNOWN once, one that raises is `internal`."""
    for item in chosen:
        yield from _run_one(item, evidence)


def _run_one(item: Check, evidence: Evidence) -> Iterator[Finding]:
    started = time.monotonic()
    evidence.begin(item.id)
    missing = [(need, reason) for need in item.needs if (reason := evidence.missing(need)) is not None]
    if missing:
        yield Finding(
            item.id,
            Verdict.UNKNOWN,
            "not checked: " + "; ".join(reason for _, reason in missing),
            {"needs": [need.value for need, _ in missing]},
            help=item.help,
            took_s=time.monotonic() - started,
        )
        return
    try:
        findings = list(item.run(evidence))
    except CheckError as error:
        findings = [Finding(item.id, Verdict.UNKNOWN, f"not checked: {error}", {"needs": [str(error)]})]
    except Exception as error:  # the edge: a check that raises is a bug, and must not hide the other findings
        findings = [
            Finding(
                "internal",
                Verdict.UNKNOWN,
                f"{item.id} stopped with {type(error).__name__}: {error}; please report this",
                {"check": item.id, "traceback": traceback.format_exc(limit=-4)},
            )
        ]
    took = (time.monotonic() - started) / max(len(findings), 1)
    for finding in findings:
        yield replace(finding, help=finding.help or item.help, took_s=finding.took_s or took)


def _dedent(text: str) -> str:
    import inspect

    return inspect.cleandoc(text)
