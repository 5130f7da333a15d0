"""One question on the server's log, whose server may have ended meanwhile: its findings then say so."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Callable

from checks.catalog import CheckFunction, check
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict

ENDED = "of a server that has ended"


def log_check(id: str, lasts: bool = False) -> Callable[[CheckFunction], CheckFunction]:
    """Register a question on the log.

    Of a server that has ended a finding says so, and what was wrong with it is a warning: the next start may be of
    another config. `lasts`: it is not, where the end itself is what is asked about.
    """

    def register(run: CheckFunction) -> CheckFunction:
        @check(id, needs=(Need.LOG,))
        @functools.wraps(run)
        def asked(evidence: Evidence) -> Iterable[Finding]:
            for found in run(evidence):
                yield _past(found, lasts) if evidence.request.ended else found

        return asked

    return register


def _past(found: Finding, lasts: bool) -> Finding:
    verdict = Verdict.WARN if found.verdict is Verdict.FAIL and not lasts else found.verdict
    facts = {**found.evidence, "ended": True}
    return replace(found, verdict=verdict, summary=f"{ENDED}: {found.summary}", evidence=facts)
