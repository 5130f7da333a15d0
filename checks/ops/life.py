"""`ops.health`, `ops.load_phase`, `ops.stale_draft`: whether the server answers, how far it is, what it has loaded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from checks.catalog import check
from checks.engines.events import Event, Other, Phase, Prefill
from checks.errors import CheckError
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict
from checks.log.read import read_tail
from checks.ops.process import served_draft
from checks.ops.snapshot import File, Health, Process, Snapshot, snapshot_of, span, stamp

HEALTH_ID, LOAD_ID, STALE_ID = "ops.health", "ops.load_phase", "ops.stale_draft"

LOADING_S = 2 * 3600.0
"""Seconds that loading may say nothing: after "100 %" of the shards, large targets have taken so long."""
GRACE_S = 2.0
"""Seconds after its start in which no server has read its draft, and clocks may disagree."""
SILENT_S = 600.0
"""Seconds without a line after which a server that was ready, and is not well, is not merely busy."""

CONFIG = "config.json"
UP = ("ready", "serving")
NONE = "no server of this deployment runs"


@dataclass(frozen=True)
class Course:
    """What the log says of the running server: its phase, and for how many seconds it has said nothing of itself.

    `ready`: Unix seconds by which it said that it was ready; None when it does not say so, or prints no times.
    """

    phase: str
    detail: str
    progress: float | None
    was_ready: bool
    ready: float | None
    silent: float | None


def course_of(evidence: Evidence) -> Course:
    """The course of the running server's log; of a log that cannot be read nothing is known. Memoised."""
    return evidence.memo("course", lambda: _course(evidence))


def _course(evidence: Evidence) -> Course:
    events: Sequence[Event] = ()
    written = None
    if evidence.request.log:
        with suppress(CheckError, OSError, ValueError):
            events = read_tail(evidence).life
            # A copy is as old as this run, whenever its last line was written.
            if not evidence.request.log_of:
                written = Path(evidence.request.log).expanduser().stat().st_mtime
    phases = [event for event in events if isinstance(event, Phase)]
    last = phases[-1] if phases else None
    return Course(
        last.phase if last is not None else snapshot_of(evidence).phase or "starting",
        (last.detail or "") if last is not None else "",
        last.progress if last is not None else None,
        any(event.phase in UP for event in phases),
        None if written is None else _ready_by(events, written),
        None if written is None else max(time.time() - written, 0.0) + _asked_only(events),
    )


def _ready_by(events: Sequence[Event], written: float) -> float | None:
    """When the server said it was ready, at the latest: as long before the log was last written as its lines say.

    Printed times have no zone, so only their distances count.
    """
    ready = next((event for event in events if isinstance(event, Phase) and event.phase in UP), None)
    last = next((event for event in reversed(events) if event.time), None)
    first, until = _moment(ready.time if ready else None), _moment(last.time if last else None)
    return written - (until - first) if first is not None and until is not None and until >= first else None


def _asked_only(events: Sequence[Event]) -> float:
    """Seconds at the log's end in which it tells of nothing but that it was asked, as by a probe of its health."""
    own = next((event for event in reversed(events) if not _of_a_probe(event)), None)
    last = events[-1] if events else None
    if own is None or last is None:
        return 0.0
    first, until = _moment(own.time), _moment(last.time)
    return max(until - first, 0.0) if first is not None and until is not None else 0.0


def _of_a_probe(event: Event) -> bool:
    return event.probe if isinstance(event, Prefill) else isinstance(event, Other) and event.kind == "access"


def _moment(text: str | None) -> float | None:
    try:
        return datetime.strptime(text[:19].replace("T", " "), "%Y-%m-%d %H:%M:%S").timestamp() if text else None
    except (ValueError, OverflowError, OSError):
        return None


@check(HEALTH_ID, needs=(Need.HOST,))
def health(evidence: Evidence) -> Iterable[Finding]:
    """Whether the running server answers its health endpoint, asked once with ten seconds of patience.

    One answer that is late or unkind proves little: an endpoint that generates a token takes a second by design, and a
    busy server takes longer. A server that still loads is not ill.

    WARN: the server was ready by its own log, and now nothing listens on its port, or it answers that it is not well
    (or not at all) while its log has said nothing for ten minutes.
    UNKNOWN: it was ready, does not answer well, and its log goes on or cannot be read: a second look would decide.
    INFO: it loads, it drains, or it has ended.
    PASS: it answers, or no server of this deployment runs.

    What to do at WARN: look at the end of the log and at the GPUs; `console restart` starts it again.
    """
    seen = snapshot_of(evidence)
    asked = seen.health
    facts: dict[str, Any] = {"phase": seen.phase, "url": asked.url if asked else None}
    if seen.server is None:
        ended = seen.phase == "crashed"
        yield Finding(HEALTH_ID, *((Verdict.INFO, seen.note or NONE) if ended else (Verdict.PASS, NONE)), facts)
        return
    course = course_of(evidence)
    facts.update(process=seen.server.pid, phase=course.phase, silent_s=course.silent and round(course.silent))
    if asked is None:
        needs = ["an answer of its health endpoint"]
        yield Finding(HEALTH_ID, Verdict.UNKNOWN, "its health was not asked for", {**facts, "needs": needs})
        return
    facts.update(status=asked.status or None, outcome=asked.outcome, took_s=asked.took)
    verdict, words = _health(seen, seen.server, asked, course)
    if verdict is Verdict.UNKNOWN:
        facts["needs"] = ["another look in some minutes, or the next line of its log"]
    yield Finding(HEALTH_ID, verdict, words, facts)


def _health(seen: Snapshot, server: Process, asked: Health, course: Course) -> tuple[Verdict, str]:
    if 200 <= asked.status < 300:
        return Verdict.PASS, f"the server answers {asked.status} in {asked.took:.1f} s"
    said = f"answers {asked.status}" if asked.status else f"gave no answer ({asked.outcome or 'not known why'})"
    if asked.status in (401, 403, 404, 405):
        return (
            Verdict.UNKNOWN,
            f"the server {said} where its health is asked for, which does not say how it is",
        )
    if course.phase == "draining":
        return Verdict.INFO, f"the server {said} while it drains: it is about to end"
    if not course.was_ready:
        return Verdict.INFO, f"the server {said} while it is {course.phase}: loading is no failure"
    if asked.outcome == "refused" and not seen.port.open:
        return Verdict.WARN, f"the server was ready, and {server.words} lives, but nothing listens on its port any more"
    if course.silent is not None and course.silent >= SILENT_S:
        return Verdict.WARN, f"the server was ready and {said}; its log has said nothing for {span(course.silent)}"
    return Verdict.UNKNOWN, f"the server was ready and {said} once: it may be busy"


@check(LOAD_ID, needs=(Need.HOST,))
def load_phase(evidence: Evidence) -> Iterable[Finding]:
    """How far a server is that does not serve yet: starting, loading, capturing graphs, warming.

    There is no limit on loading here. "100 %" of the shards is not ready, and large targets have then said nothing for
    up to two hours; engines end a start that takes too long by themselves, and say so in their log.

    WARN: it has not been ready yet and its log has said nothing for two hours. What it died of is for `log` to say.
    INFO: it loads; the phase, its progress and the times are in the evidence.
    PASS: it has been ready, or no server of this deployment runs.

    What to do at WARN: read the end of the log, and stop the server if it does nothing.
    """
    seen = snapshot_of(evidence)
    if seen.server is None:
        yield Finding(LOAD_ID, Verdict.PASS, NONE, {"phase": seen.phase})
        return
    course = course_of(evidence)
    answers = seen.health is not None and 200 <= seen.health.status < 300
    age = _age(seen, seen.server)
    facts: dict[str, Any] = {
        "phase": course.phase,
        "detail": course.detail or None,
        "progress": course.progress,
        "started": stamp(seen.server.started),
        "age_s": age and round(age),
        "silent_s": course.silent and round(course.silent),
    }
    if answers or course.was_ready:
        took = f" {span(seen.ready_after)} after its start" if seen.ready_after is not None else ""
        yield Finding(LOAD_ID, Verdict.PASS, f"the server was ready{took}", facts)
        return
    words = f"the server is {course.phase}" + (f" ({course.progress:.0%})" if course.progress is not None else "")
    words += f", {span(age)} after its start" if age is not None else ""
    if course.silent is not None and course.silent >= LOADING_S:
        yield Finding(LOAD_ID, Verdict.WARN, f"{words}, and its log has said nothing for {span(course.silent)}", facts)
        return
    yield Finding(LOAD_ID, Verdict.INFO, words, facts)


def _age(seen: Snapshot, server: Process) -> float | None:
    if seen.time is None or server.started is None:
        return None
    return max(seen.time - server.started, 0.0)


@check(STALE_ID, needs=(Need.HOST,))
def stale_draft(evidence: Evidence) -> Iterable[Finding]:
    """Whether the draft on disk is the one the server has loaded: a config that is edited, or weights that training
    overwrites, take effect at the next start, and until then every other check judges what is not served.

    How it decides: by the content of config.json where the console started the server and so knows what it held then;
    otherwise by the times at which config.json and the weights were written, against the time the server was ready.

    FAIL: the config holds something else than when the server was started, and changed after the server was ready.
    WARN: the config or the weights were written after the server was ready.
    UNKNOWN: they were written while the server was starting, or after its start when it is not known how long that
    took: it may have read them before or after.
    PASS: nothing was written since the start, or the config was written again with the same content; or no server of
    this deployment runs. A copy that keeps old times is noticed for the config only.
    INFO: the server serves another draft, which `ops.identity` tells, or the draft's files cannot be seen.

    What to do: `console restart`, then measure again.
    """
    seen = snapshot_of(evidence)
    server = seen.server
    if server is None:
        yield Finding(STALE_ID, Verdict.PASS, f"{NONE}: the next start reads what is there", {"phase": seen.phase})
        return
    if served_draft(evidence) is False:
        yield Finding(STALE_ID, Verdict.INFO, "the server serves another draft than this one", {"process": server.pid})
        return
    if server.started is None or not seen.draft:
        facts: dict[str, Any] = {"process": server.pid, "files": len(seen.draft)}
        yield Finding(STALE_ID, Verdict.INFO, "when the server started, or its draft was written, is not known", facts)
        return
    yield _stale(seen, server, server.started, ready_by(seen, server.started, course_of(evidence)))


def _stale(seen: Snapshot, server: Process, started: float, ready: float | None) -> Finding:
    moved = {file.name: moment for file in seen.draft if (moment := _moved(file, seen)) is not None}
    later = {name: moment for name, moment in moved.items() if moment > started + GRACE_S}
    surely = {name: moment for name, moment in later.items() if ready is not None and moment > ready}
    facts: dict[str, Any] = {
        "process": server.pid,
        "server_started": stamp(started),
        "server_ready": stamp(ready),
        "written": {name: stamp(moment) for name, moment in sorted(later.items())[:8]},
    }
    if not later:
        return Finding(STALE_ID, Verdict.PASS, "the draft has not changed since the server started", facts)
    rows = surely or later
    # The config first: a fix that is written and not yet served is the usual reason.
    name = CONFIG if CONFIG in rows else max(rows, key=lambda item: rows[item])
    wrote = f"{name} was written {stamp(rows[name])}, {span(rows[name] - started)} after the server started"
    wrote += f" ({stamp(started)})"
    if not surely:
        needs = ["when the server was ready (a start by the console notes it, and so does its log), or a restart"]
        words = f"{wrote}: it may have read it before or after"
        return Finding(STALE_ID, Verdict.UNKNOWN, words, {**facts, "needs": needs})
    now = next((file.sha256 for file in seen.draft if file.name == name), "")
    proven = name == CONFIG and bool(seen.config_sha256 and now)
    if proven:
        facts["config_sha256"] = {"at_start": seen.config_sha256, "now": now}
    words = f"{wrote}: the server still serves the earlier one; restart it"
    return Finding(STALE_ID, Verdict.FAIL if proven else Verdict.WARN, words, facts)


def ready_by(seen: Snapshot, started: float, course: Course) -> float | None:
    """A time by which the server had loaded: as noted at its start, by its log, or long enough after its start."""
    if seen.ready is not None:
        return seen.ready
    if course.ready is not None and course.ready >= started:
        return course.ready
    answers = seen.health is not None and 200 <= seen.health.status < 300
    return started + LOADING_S if answers else None


def _moved(file: File, seen: Snapshot) -> float | None:
    """When the content of a file changed, as far as it can be told; None where it did not."""
    if file.name != CONFIG or not (seen.config_sha256 and file.sha256):
        return file.written
    if file.sha256 == seen.config_sha256:
        return None
    return max((moment for moment in (file.written, file.changed) if moment is not None), default=None)
