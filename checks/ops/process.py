"""`ops.identity`, `ops.port`, `ops.stop`: whether the server is the deployment's, who has its port, who is left."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from checks.catalog import check
from checks.engines import REGISTRY
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict
from checks.ops.snapshot import Left, Snapshot, snapshot_of, span, stamp

IDENTITY_ID, PORT_ID, STOP_ID = "ops.identity", "ops.port", "ops.stop"

FOLLOW_S = 60.0
"""Seconds for what a server started to follow it when it ends."""


@check(IDENTITY_ID, needs=(Need.HOST,))
def identity(evidence: Evidence) -> Iterable[Finding]:
    """Whether the server that runs is the one of this deployment: the same draft, the same target, the same flags.

    What the other checks say of the draft is worth nothing for a server that serves another one.

    FAIL: the running command line names another draft or target than the deployment, and the two paths lead to
    different files. Restart the server, or correct [model] in the deployment.
    WARN: the process has another command line than was recorded of it, so that the console would not stop it; look at
    it, and stop it by hand.
    UNKNOWN: the two paths differ, and one of them cannot be seen from here.
    INFO: other flags differ. The running ones are what is judged, and the next start uses the deployment's.
    PASS: they agree, or no server of this deployment runs.
    """
    seen = snapshot_of(evidence)
    if seen.server is None:
        yield Finding(IDENTITY_ID, Verdict.PASS, "no server of this deployment runs", {"phase": seen.phase})
        return
    facts: dict[str, Any] = {
        "process": seen.server.pid,
        "started": stamp(seen.server.started),
        "differences": [{"flag": flag, "deployment": a, "running": b} for flag, a, b in seen.differences],
    }
    models = _models(evidence)
    for what, wanted, served in models:
        facts[what] = {"deployment": wanted, "running": served}
        same = _same(wanted, served)
        if same is False:
            words = f"the server serves the {what} {served}, the deployment names {wanted}: restart it, or correct one"
            yield Finding(IDENTITY_ID, Verdict.FAIL, words, facts)
            return
        if same is None:
            words = f"the server was started with the {what} {served}, the deployment names {wanted}"
            needs = [f"both paths of the {what}, visible to the account that runs the checks"]
            yield Finding(IDENTITY_ID, Verdict.UNKNOWN, f"{words}: one of them is not here", {**facts, "needs": needs})
            return
    if not seen.as_recorded:
        words = f"{seen.server.words} has another command line than was recorded of it: it would not be stopped"
        yield Finding(IDENTITY_ID, Verdict.WARN, words, facts)
        return
    if seen.differences:
        names = ", ".join(flag for flag, _, _ in seen.differences[:5])
        more = f" and {len(seen.differences) - 5} more" if len(seen.differences) > 5 else ""
        words = f"the server runs with other flags than the deployment would start it with: {names}{more}"
        yield Finding(IDENTITY_ID, Verdict.INFO, words, facts)
        return
    yield Finding(IDENTITY_ID, Verdict.PASS, f"{seen.server.words} is the deployment's server", facts)


def served_draft(evidence: Evidence) -> bool | None:
    """Whether the running server reads the draft that is judged; None when that cannot be told."""
    for what, wanted, served in _models(evidence):
        if what == "draft":
            return _same(wanted, served)
    return None


def _models(evidence: Evidence) -> list[tuple[str, str, str]]:
    """(draft or target, the deployment's path, the running server's) for those that both name."""
    request = evidence.request
    name = request.engines[0].name if request.engines else ""
    if not request.server.argv or name not in REGISTRY:
        return []
    facts = REGISTRY[name].launch.parse_argv([str(word) for word in request.server.argv], request.server.cwd)
    at = request.server.cwd
    pairs = [("draft", request.draft, facts.draft), ("target", request.target, facts.model)]
    return [(what, wanted, _from(served, at)) for what, wanted, served in pairs if wanted and served]


def _from(path: str, folder: str) -> str:
    """A path of a command line as its process takes it; a name of a model hub stays as it is."""
    joined = os.path.join(folder, path)
    try:
        return joined if folder and not os.path.isabs(path) and os.path.exists(joined) else path
    except ValueError:
        return path


def _same(wanted: str, served: str) -> bool | None:
    """Whether two paths lead to one model; None when one cannot be seen."""
    try:
        one, other = (_folder(path) for path in (wanted, served))
        if os.path.normpath(one) == os.path.normpath(other):
            return True
        return os.path.samefile(one, other)
    except (OSError, ValueError, RuntimeError):
        return None


def _folder(path: str) -> Path:
    """A draft may be named by its config."""
    found = Path(path).expanduser()
    return found.parent if found.name == "config.json" else found


@check(PORT_ID, needs=(Need.HOST,))
def port(evidence: Evidence) -> Iterable[Finding]:
    """Who listens on the server's port: requests go there, whoever it is.

    FAIL: the deployment's server runs, and another process, neither of its group nor started by it, listens on its
    port: what is measured there is not this server.
    WARN: no server of this deployment runs, and another process has the port: a start would be refused. Stop it by
    hand, or choose another port. Where it is what an ended server left behind, `ops.stop` says so.
    UNKNOWN: a process that this account may not see has the port, as with another user's, or one of another namespace.
    INFO: the server runs and does not listen yet.
    PASS: the server listens, or nothing runs and the port is free.
    """
    seen = snapshot_of(evidence)
    at = seen.port
    facts: dict[str, Any] = {"port": at.number, "listening": at.process.pid if at.process else None}
    if seen.server is not None:
        facts["server"] = seen.server.pid
    yield Finding(PORT_ID, *_port(seen), facts if _decided(seen) else {**facts, "needs": [_sight(at.number)]})


def _sight(number: int) -> str:
    return f"the process behind port {number}: the same check as its user, or `ss -ltnp` as root outside the container"


def _decided(seen: Snapshot) -> bool:
    return not (seen.port.open and seen.port.process is None) and bool(seen.port.number)


def _port(seen: Snapshot) -> tuple[Verdict, str]:
    at, server = seen.port, seen.server
    if not at.number:
        return Verdict.UNKNOWN, "the port was not looked at"
    if at.open and at.process is None:
        return Verdict.UNKNOWN, f"port {at.number} is held by a process that this account cannot see"
    if at.process is None:
        if server is not None:
            return Verdict.INFO, f"{server.words} does not listen on port {at.number} yet"
        return Verdict.PASS, f"port {at.number} is free"
    if server is None:
        return Verdict.WARN, f"port {at.number} is held by {at.process.words}, which is not this deployment's server"
    if not at.of_server and at.process.pid != server.pid:
        return Verdict.FAIL, f"{at.process.words} listens on port {at.number} in place of the server, {server.words}"
    return Verdict.PASS, f"the server listens on port {at.number}"


@check(STOP_ID, needs=(Need.HOST,))
def stop(evidence: Evidence) -> Iterable[Finding]:
    """Whether servers that have ended left processes behind: schedulers survive their launcher, and hold GPU and port.

    How it decides: each server that a console started is recorded on the host with its process group and a token in its
    environment. A process that carries the token of a server that has ended is proven to be its.

    FAIL: such a process holds a GPU or the port of this deployment, so that the next start fails.
    WARN: such a process still runs.
    UNKNOWN: a process is in the group of an ended server, and its environment cannot be read. Nothing proves it.
    INFO: the server ended within the last minute; what it started may still follow.
    PASS: nothing is left.

    What to do: look at the named processes, and end them by hand. Nothing is killed by this check.
    """
    seen = snapshot_of(evidence)
    rows = [item for item in seen.left if item.processes]
    if not rows:
        yield Finding(STOP_ID, Verdict.PASS, "no process of an ended server is left", {"left": []})
        return
    for item in rows:
        yield _leftover(seen, item)


def _leftover(seen: Snapshot, item: Left) -> Finding:
    pids = {process.pid for process in item.processes}
    proven = {process.pid for process in item.processes if process.proven}
    on_gpu = pids & ({pid for gpu in seen.gpus for pid in gpu.pids} | {process.pid for process in seen.open_gpus})
    on_port = seen.port.process is not None and seen.port.process.pid in pids
    age = seen.time - item.ended if seen.time is not None and item.ended is not None else None
    facts: dict[str, Any] = {
        "server": item.pid,
        "ended": stamp(item.ended),
        "processes": [
            {"pid": one.pid, "runs": one.title, "started": stamp(one.started), "proven": one.proven}
            for one in item.processes
        ],
        "on_gpu": sorted(on_gpu),
        "port": seen.port.number if on_port else None,
    }
    many = f"{len(pids)} process{'es' * (len(pids) > 1)} of server {item.pid}"
    when = f", which ended {span(age)} ago" if age is not None else ", which has ended"
    names = ", ".join(map(str, sorted(pids)[:8]))
    if age is not None and 0 <= age < FOLLOW_S:
        return Finding(STOP_ID, Verdict.INFO, f"{many}{when}, may still be ending: {names}", facts)
    if not proven:
        words = f"{names} in the process group of server {item.pid}{when}: not proven to be its"
        return Finding(STOP_ID, Verdict.UNKNOWN, words, {**facts, "needs": ["their environment, as their own user"]})
    holds = [f"port {seen.port.number}"] * on_port + ["a GPU"] * bool(on_gpu)
    if holds:
        words = f"{many}{when}, still hold {' and '.join(holds)}: {names}; end them before the next start"
        return Finding(STOP_ID, Verdict.FAIL, words, facts)
    return Finding(STOP_ID, Verdict.WARN, f"{many}{when}, still run: {names}", facts)
