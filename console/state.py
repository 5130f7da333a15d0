"""The cockpit's state: what the screens show, kept by the app as events arrive."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from console.checking import Found, Progress, Report
from console.flags import FlagSchema
from remote.gpu import Gpu

_ORDER = ("FAIL", "WARN", "UNKNOWN")


def worst(verdicts: Iterable[str]) -> str:
    """The verdict of several: FAIL > WARN > UNKNOWN > all else, which is PASS."""
    found = set(verdicts)
    return next((verdict for verdict in _ORDER if verdict in found), "PASS")


@dataclass(slots=True)
class CheckBoard:
    """The checks as a list: findings by id in the order they came, and what runs now.

    What was found before a run stays, `stale`, until its check is told again. A run that was cancelled or that failed
    proves nothing about what it did not tell: the verdict of what is there is then at best UNKNOWN.
    """

    findings: list[dict[str, Any]] = field(default_factory=list)
    running: str = ""
    note: str = ""
    done: int = 0
    total: int = 0
    started: float = 0.0
    took: float | None = None
    verdict: str = ""
    error: str = ""
    only: frozenset[str] = frozenset()
    """The checks that the run is of; empty for all of them."""
    stale: set[str] = field(default_factory=set)
    partial: bool = False
    """Whether the last run of all checks ended early: some may never have been told."""
    former: bool = False
    """Whether the server was started anew since all checks were run."""

    @property
    def busy(self) -> bool:
        """Whether a run is going on."""
        return bool(self.started) and self.took is None

    @property
    def lacking(self) -> str:
        """Why what is there is not the whole of what the server that runs was asked; "" where it is."""
        if self.busy or not (self.partial or self.stale):
            return ""
        return "not all run since the restart" if self.former else "interrupted"

    def restarted(self) -> None:
        """Another server runs: what was found is of the one before."""
        if self.findings and not self.busy:
            self.stale, self.former = {item["check"] for item in self.findings}, True
            self.verdict = worst((self.verdict, "UNKNOWN"))

    def begin(self, only: Iterable[str] = ()) -> None:
        """A run of all checks, or of some, starts: what was found of them before is stale."""
        self.only = frozenset(only)
        self.stale |= {item["check"] for item in self.findings if self._asked(item["check"])}
        self.running, self.note, self.error = "", "connecting", ""
        self.done = self.total = 0
        self.started, self.took = time.monotonic(), None

    def step(self, step: Progress | Found | Report) -> None:
        """Take in one step of the run."""
        if isinstance(step, Progress):
            self.running, self.note, self.done, self.total = step.check, step.note, step.done, step.total
        elif isinstance(step, Found):
            self._take(step.finding)
        else:
            # A check that was run and told nothing has nothing to say any more.
            gone = {check for check in self.stale if self._asked(check)}
            self.findings = [item for item in self.findings if item["check"] not in gone]
            self.stale -= gone
            self.partial, self.former = self.partial and bool(self.only), self.former and bool(self.only)
            self._close(worst(item["verdict"] for item in self.findings) if self.only else step.verdict)

    def _asked(self, check: str) -> bool:
        """Whether the run is of this check."""
        return not self.only or check in self.only

    def _take(self, finding: dict[str, Any]) -> None:
        """Put a finding where the former ones of its check stood, or behind what there is."""
        check = finding["check"]
        places = [index for index, item in enumerate(self.findings) if item["check"] == check]
        if not places:
            self.findings.append(finding)
        elif check in self.stale:
            self.stale.discard(check)
            rest = [item for item in self.findings if item["check"] != check]
            self.findings = [*rest[: places[0]], finding, *rest[places[0] :]]
        else:
            self.findings.insert(places[-1] + 1, finding)

    def end(self, error: str) -> None:
        """The run was cancelled or could not be made; what it told stays."""
        if self.only:
            # A check may tell more than once: what it told so far is not all of it.
            self.stale |= self.only.intersection(item["check"] for item in self.findings)
        else:
            self.partial = True
        self._close(worst(item["verdict"] for item in self.findings), error)

    def _close(self, verdict: str, error: str = "") -> None:
        self.took = time.monotonic() - self.started
        self.running, self.error = "", error
        self.verdict = worst((verdict, "UNKNOWN")) if self.lacking else verdict


SETTLED = 8
"""Decode lines after which a restart's accept length is worth noting; the first ones are of few tokens."""


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One step of a restart: its name, what it said, and the seconds since the restart began."""

    name: str
    detail: str
    at: float


@dataclass(slots=True)
class Timeline:
    """A restart as it passes by."""

    reason: str = ""
    started: float = 0.0
    steps: list[TimelineStep] = field(default_factory=list)
    ended: float | None = None
    error: str = ""

    @property
    def busy(self) -> bool:
        """Whether a restart is going on."""
        return bool(self.started) and self.ended is None

    def begin(self, reason: str) -> None:
        """A restart begins; the one before is forgotten here and kept in the history."""
        self.reason, self.started, self.ended, self.error = reason, time.monotonic(), None, ""
        self.steps = []

    def step(self, name: str, detail: str) -> None:
        """One phase passed; the same phase with a new detail replaces the one before."""
        at = time.monotonic() - self.started
        if self.steps and self.steps[-1].name == name:
            self.steps[-1] = TimelineStep(name, detail, self.steps[-1].at)
        else:
            self.steps.append(TimelineStep(name, detail, at))

    def serves(self, windows: int, accept_len: float | None) -> bool:
        """The new server has printed `windows` decode lines: note the first tokens, then what it accepts, once each."""
        passed = {step.name for step in self.steps}
        if self.ended is None or self.error or not windows:
            return False
        if "first tokens" not in passed:
            self.step("first tokens", "")
            return True
        if "accepting" not in passed and windows >= SETTLED and accept_len is not None:
            self.step("accepting", f"{accept_len:.2f} over {windows} decode lines")
            return True
        return False

    def end(self, error: str = "") -> None:
        """The server is ready, or it failed."""
        self.ended, self.error = time.monotonic() - self.started, error


@dataclass(slots=True)
class Cockpit:
    """Everything on screen that is not the session's own."""

    board: CheckBoard = field(default_factory=CheckBoard)
    timeline: Timeline = field(default_factory=Timeline)
    causing: dict[str, Any] | None = None
    """The finding whose fix was staged last; the next restart is linked to it."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Launch flags staged on top of the deployment's; None unsets one."""
    flags: FlagSchema | None = None
    """Every flag of the engine that is there; None until it was asked."""
    gpus: list[Gpu] | None = None
    """The host's GPUs; None until it was asked."""
    connected: bool = False
    looking: bool = False
    """Whether the wiring is being learnt unasked."""
    error: str = ""
