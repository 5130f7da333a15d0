"""A run of the checks as the console sees it: the request that goes out, the steps and the report that come back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from console import __version__
from console.errors import NotRun, UsageError

if TYPE_CHECKING:
    from console.deployment import Deployment
    from remote.host import Host


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


def request_for(
    deployment: Deployment,
    *,
    host: str,
    at_host: Callable[[str], str],
    server: Mapping[str, Any],
    argv: Sequence[str],
    log: str,
    python: str,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    samples: int = 16,
    engine_source: str = "",
) -> dict[str, Any]:
    """The request for a deployment: its paths as they are on the host, and what was seen of the server there."""
    name, _, version = deployment.server.engine.partition("==")
    return {
        "schema": 1,
        "draft": at_host(deployment.model.draft),
        "target": at_host(deployment.model.target),
        "caches": [
            {"path": at_host(item.path), "layout": item.layout, "states": list(item.states)}
            for item in deployment.caches
        ],
        "captures": [at_host(item) for item in deployment.captures],
        "engines": [{"name": name.strip(), "version": version.strip()}],
        "engine_source": engine_source,
        "args": list(argv),
        "env": dict(deployment.server.env),
        "server": dict(server),
        "log": log,
        "python": python,
        "only": list(only),
        "skip": list(skip),
        "samples": samples,
        "host": host,
        "console": __version__,
    }


async def run_on_host(host: Host, python: str, request: Mapping[str, Any]) -> AsyncGenerator[CheckStep, None]:
    """Carry the checks to the host, run them there, and tell each step; the last one is the Report.

    Closing the iterator ends the run on the host. Raises NotRun when they cannot be run, UsageError for a check that
    does not exist, remote's errors.
    """
    import asyncio

    from console.zipapp import checks_zipapp
    from remote import ship
    from remote.errors import CommandFailed

    path = await ship.ship(host, await asyncio.to_thread(checks_zipapp), python)
    refusal: ConsoleRefusal | None = None
    try:
        async with aclosing(ship.run_shipped(host, path, python, dict(request))) as lines:
            async for line in lines:
                if line.get("event") == "error":
                    refusal = (
                        UsageError(str(line["message"])) if line.get("exit") == 2 else NotRun(str(line["message"]))
                    )
                elif (step := read_step(line)) is not None:
                    yield step
    except CommandFailed:
        # The program says why in its last line, and then ends with a code that says no more.
        if refusal is None:
            raise
    if refusal is not None:
        raise refusal


_VERDICTS = ("PASS", "INFO", "WARN", "FAIL", "UNKNOWN")

ConsoleRefusal = NotRun | UsageError


def read_step(line: Mapping[str, Any]) -> CheckStep | None:
    """One line of the checks' output as a step; None for an event this console does not know.

    Raises NotRun for a line that no checks of ours write: it comes from the host, and the screens rely on its shape.
    """
    try:
        event = line.get("event")
        if event == "progress":
            return Progress(str(line["check"]), int(line["done"]), int(line["total"]), str(line["note"]))
        if event == "finding":
            return Found(_finding(line["finding"]))
        if event == "report":
            report = dict(line["report"])  # that of a capture or of flags has no findings
            return Report(_judged(report) if "findings" in report else report)
    except (KeyError, TypeError, ValueError) as error:
        raise NotRun(f"the host answered what is no result of the checks ({error}); run them again") from None
    return None


def _judged(report: dict[str, Any]) -> dict[str, Any]:
    """The report of a run of checks, with what everything here reads."""
    _verdict(report["verdict"])
    findings = [_finding(item) for item in report["findings"]]
    return {**report, "summary": dict(report["summary"]), "findings": findings}


def _verdict(word: object) -> None:
    if word not in _VERDICTS:
        raise ValueError(f"no verdict {str(word)[:40]!r}")


def _finding(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A finding with the keys that everything here reads, of the kind it has to be."""
    finding = dict(raw)
    if not all(isinstance(finding[key], str) for key in ("check", "verdict", "summary")):
        raise ValueError("a finding without words")
    _verdict(finding["verdict"])
    if finding.get("fix") is not None:
        dict(finding["fix"])["kind"]
    return finding
