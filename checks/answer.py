"""Answering one request: the checks run over its evidence, steps are told as they come, the report is returned."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from checks.catalog import choose, run_checks
from checks.errors import CheckError, NotRunnable
from checks.evidence import Evidence
from checks.finding import Finding, Verdict, overall, plain
from checks.request import SCHEMA, Request

Emit = Callable[[dict[str, Any]], None]

# Progress lines a second at most: they cross a network, and a screen shows no more.
_PROGRESS_EVERY = 0.1


def answer(request: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """Run the checks a request asks for. Emits `progress` and `finding` events, returns the report object.

    Raises NotRunnable when the run cannot start (a path that is missing, or may not be read), NoSuchCheck when `only`
    or `skip` name a check that does not exist.
    """
    started = time.monotonic()
    asked = Request.from_json(request)
    chosen = choose(asked.only, asked.skip, host=asked.snapshot is not None)
    evidence = Evidence(asked, _Progress(emit))
    _open_what_must_open(evidence)
    findings: list[Finding] = []
    for finding in run_checks(evidence, chosen):
        findings.append(finding)
        emit({"event": "finding", "finding": finding.as_json()})
    evidence.close()
    verdicts = [finding.verdict for finding in findings]
    return {
        "schema": SCHEMA,
        "console": asked.console,
        "host": asked.host,
        "inputs": _inputs(evidence),
        "engines": _engines(evidence),
        "verdict": overall(verdicts).value,
        "summary": {verdict.value: verdicts.count(verdict) for verdict in Verdict},
        "findings": [finding.as_json() for finding in findings],
        "took_s": round(time.monotonic() - started, 4),
    }


class _Progress:
    """Turns progress into events, thinned; the first and the last of a check always pass."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._last = float("-inf")
        self._check = ""

    def __call__(self, check: str, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        must = check != self._check or (total > 0 and done == total)
        if not must and now - self._last < _PROGRESS_EVERY:
            return
        self._last, self._check = now, check
        self._emit({"event": "progress", "check": check, "done": done, "total": total, "note": note})


def _open_what_must_open(evidence: Evidence) -> None:
    """A path that cannot be used at all ends the run before the first finding; anything else is a check's to judge."""
    for opened in (lambda: evidence.draft, lambda: evidence.target, lambda: evidence.caches):
        try:
            opened()
        except NotRunnable:
            raise
        except CheckError:
            continue


def _inputs(evidence: Evidence) -> dict[str, Any]:
    request = evidence.request
    draft = evidence.draft
    return {
        "draft": request.draft or None,
        "config_sha256": draft.config_sha256 or None if draft is not None else None,
        "target": request.target or None,
        "parent": request.parent or None,
        "cache": _caches(evidence),
        "capture": list(request.captures),
        "log": request.log_of or request.log or None,
    }


def _caches(evidence: Evidence) -> list[dict[str, Any]]:
    request = evidence.request
    out = []
    for index, item in enumerate(request.caches):
        # One that cannot be opened is listed as it was given, with what is known.
        opened = evidence.cache_at(index)
        cache = None if isinstance(opened, CheckError) else opened
        files = cache.files if cache is not None else 0
        out.append(
            {
                "path": item.path,
                "layout": cache.layout if cache is not None else item.layout or None,
                "files": files,
                "sampled": min(request.samples or files, files),
                "seed": request.seed,
            }
        )
    return out


def _engines(evidence: Evidence) -> list[dict[str, Any]]:
    try:
        engines = evidence.engines
    except CheckError:
        return []
    return [
        plain({"name": item.name, "version": item.version, "source": item.source, "note": item.note})
        for item in engines
    ]
