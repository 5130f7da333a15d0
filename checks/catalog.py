"""The catalog of checks: registration, what each needs, and running them over one body of evidence."""

from __future__ import annotations

import importlib
import inspect
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Callable

from checks.errors import CheckError, NoSuchCheck, NotRunnable
from checks.evidence import Evidence, Need
from checks.finding import ConfigFix, Finding, Verdict
from checks.similar import similar

CheckFunction = Callable[[Evidence], Iterable[Finding]]

FAMILIES = ("cfg", "ckpt", "data", "align", "replay", "flags", "log", "ops")
"""The modules of this package that hold checks, in the order of a report: a new family is one name here."""
OF_HOST = ("ops",)
"""The families whose every check needs a look at the host."""


@dataclass(frozen=True)
class Check:
    """One question: id `family.name`, the function that answers it, and the evidence it cannot do without."""

    id: str
    run: CheckFunction
    needs: tuple[Need, ...]

    @property
    def page(self) -> str:
        """The documentation page: the function's docstring."""
        return inspect.cleandoc(self.run.__doc__ or "")

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


def all_checks(families: Iterable[str] = FAMILIES) -> list[Check]:
    """Every check of these families in the order of its family, then of its definition; others may be among them."""
    for family in sorted(families):
        importlib.import_module(f"checks.{family}")  # which fills the registry
    return sorted(_REGISTRY.values(), key=lambda item: FAMILIES.index(item.id.split(".")[0]))


def choose(only: Sequence[str] = (), skip: Sequence[str] = (), host: bool = True) -> list[Check]:
    """The checks to run: those named in `only` (all when empty), without those in `skip`.

    A family's name stands for all its checks. `host`: whether there is a host to ask about; of files alone those of a
    host are asked by name only. Raises NoSuchCheck, with the nearest name, for one it lacks.
    """
    asked = {name.split(".")[0] for name in (*only, *skip)}
    if not only:
        asked |= set(FAMILIES) - (set() if host else set(OF_HOST))
    # One question is not to wait for the modules of all others: half of what a run of headers takes is importing them.
    catalog = all_checks(asked & set(FAMILIES))
    for name in (*only, *skip):
        if not any(_named(item, name) for item in catalog):
            raise NoSuchCheck(f"no check {name!r}; {nearest(name)}")
    return [
        item
        for item in catalog
        if (any(_named(item, name) for name in only) if only else host or Need.HOST not in item.needs)
        and not any(_named(item, name) for name in skip)
    ]


def find(id: str) -> Check:
    """The check of this id. Raises NoSuchCheck with the nearest id."""
    for item in all_checks():
        if item.id == id:
            return item
    raise NoSuchCheck(f"no check {id!r}; {nearest(id)}")


def nearest(name: str) -> str:
    """What a wrong check name may have meant."""
    ids = [item.id for item in all_checks()]
    families = {id.split(".")[0] for id in ids}
    # A name without its family, or with a wrong one, is nearest to the ids that end like it.
    tail = name.rpartition(".")[2]
    close = next((id for id in ids if id.endswith("." + tail)), "") or similar(name, [*ids, *families], 0.4)
    return f"did you mean {close}?" if close else f"known are {', '.join(ids)}"


def _named(item: Check, name: str) -> bool:
    return name in (item.id, item.id.split(".")[0])


def run_checks(evidence: Evidence, chosen: Iterable[Check]) -> Iterator[Finding]:
    """Run the chosen checks in order; one that lacks evidence is UNKNOWN once, one that raises is `internal`.

    What one of them tells in full the others only point to.
    """
    checks = list(chosen)
    ids = frozenset(item.id for item in checks)
    for item in checks:
        yield from _run_one(item, evidence, ids - {item.id})


def _run_one(item: Check, evidence: Evidence, others: frozenset[str]) -> Iterator[Finding]:
    started = time.monotonic()
    evidence.begin(item.id)
    try:
        findings = _missing(item, evidence, others) or list(item.run(evidence))
    except NotRunnable:
        raise
    except CheckError as error:
        said = _words(error, others)
        findings = [Finding(item.id, Verdict.UNKNOWN, f"not checked: {said}", {"needs": [said]})]
    except Exception as error:  # noqa: BLE001  (the edge: a check that raises is a bug and must not hide the others)
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
        yield replace(_proposable(finding), help=finding.help or item.help, took_s=finding.took_s or took)


def _proposable(finding: Finding) -> Finding:
    """The finding without a fix that no reader of the report could apply, and why there is none."""
    if not isinstance(finding.fix, ConfigFix) or finding.fix.can_be_said:
        return finding
    why = "no fix is offered: config.json holds NaN or Infinity, which is no JSON; write a number or null there first"
    return replace(finding, fix=None, summary=f"{finding.summary}; {why}")


def _words(error: CheckError, others: frozenset[str]) -> str:
    """The error in full, or where it stands in full when one of the `others` that run says it."""
    return f"{error.brief}: see {error.told_by}" if error.told_by in others else str(error)


def _missing(item: Check, evidence: Evidence, others: frozenset[str]) -> list[Finding]:
    """The one UNKNOWN of a check that lacks what it needs; empty when everything is there."""
    reasons: dict[str, str] = {}
    # Captures last: having them may mean asking the running server, which is no use when something else is absent.
    for need in sorted(item.needs, key=lambda need: need is Need.CAPTURE):
        if need is Need.CAPTURE and reasons and evidence.request.server.url:
            continue
        try:
            reason = evidence.missing(need)
        except NotRunnable:
            raise
        except CheckError as error:
            reason = _words(error, others)
        if reason is not None:
            reasons[need.value] = reason
    if not reasons:
        return []
    summary = "not checked: " + "; ".join(dict.fromkeys(reasons.values()))
    return [Finding(item.id, Verdict.UNKNOWN, summary, {"needs": list(reasons)})]
