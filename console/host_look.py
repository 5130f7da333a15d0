"""One look at the host for the checks of the family `ops`: what remote sees there, and what the console knows of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from console.startup import HEALTH
from remote import files, server
from remote.errors import HostUnreachable, RemoteError
from remote.snapshot import Sought, snapshot

if TYPE_CHECKING:
    from console.session import Session

FAMILY = "ops"
_SAME_START_S = 120.0
"""Seconds that a run of the history and its process may differ in age: a run begins just before its process."""


def is_asked(only: Sequence[str], skip: Sequence[str], families: Sequence[str] = (FAMILY,)) -> bool:
    """Whether a run of the checks, by what it names, asks for the host, or for one of these families, at all."""
    named = {name.partition(".")[0] for name in only} if only else set(families)
    return any(family in named and family not in skip for family in families)


async def look(session: Session) -> dict[str, Any]:
    """The snapshot of a request, for a session that just looked at its server; `{"error": …}` where none can be had.

    Raises HostUnreachable.
    """
    own_server, deployment, seen = session.server, session.deployment, session.last_status
    own = seen.up and seen.phase != "foreign"
    process, record = (own_server.process, own_server.record) if own else (None, None)
    sought = Sought(
        port=deployment.server.port,
        pid=process.pid if process is not None else 0,
        pgid=process.pgid if process is not None else 0,
        health=deployment.server.url.rstrip("/") + HEALTH if own else "",
        headers=own_server.headers if own else {},
        draft=own_server.at_host(deployment.model.draft),
        places=_places(session),
    )
    try:
        found = await snapshot(session.host, sought)
    except HostUnreachable:
        raise
    except RemoteError as error:
        return {"error": str(error)}
    known: dict[str, Any] = {
        "phase": seen.phase,
        "own": own,
        "note": seen.note,
        "as_recorded": process is None or record is None or process.argv == record.cmdline,
        "differences": [asdict(item) for item in seen.differences],
    }
    return {**found, "known": {**known, **await _run_of(session, found)}}


async def log_of_ended(session: Session) -> str:
    """The log of a server that runs no more, for what it says of its last life; "" where there is none.

    It is that of the newest server known to have had the port, else the file that the deployment names.
    """
    seen, own = session.last_status, session.deployment.server
    if seen.up and seen.phase != "foreign":
        return ""
    mine = [item.log for item in await server.recorded(session.host) if item.port == own.port]
    named = session.server.at_host(own.log) if own.log.startswith(("/", "~")) else ""
    for path in (*mine[:1], named):
        if path and await files.exists(session.host, path):
            return path
    return ""


def _places(session: Session) -> dict[str, str]:
    """Where the deployment keeps what a full disk would hurt."""
    deployment, at_host = session.deployment, session.server.at_host
    record = session.server.record
    log = (record.log if record is not None else "") or deployment.server.log
    places = {"draft": deployment.model.draft, "log": log if log.startswith(("/", "~")) else ""}
    caches = {f"cache {index}": item.path for index, item in enumerate(deployment.caches, 1)}
    return {name: at_host(path) for name, path in {**places, **caches}.items() if path}


async def _run_of(session: Session, found: dict[str, Any]) -> dict[str, Any]:
    """What the history knows of the run that serves: the config it was started with, and how long it took to be ready.

    Only of one that this console began: it is as old as its process. One found running was noted later.
    """
    pid = session.last_status.pid
    run = await session.runs.current(session.deployment.name, pid) if pid else None
    process = found.get("server") or {}
    if run is None or not process:
        return {}
    # Ages, not times: the clocks of two machines differ.
    if abs((time.time() - run.started) - (found["time"] - process["started"])) > _SAME_START_S:
        return {}
    ready = run.ready - run.started if run.ready is not None else None
    config = await session.runs.config(run.config_sha) if run.config_sha else None
    return {"config_sha256": run.config_sha, "config": config, "ready_after": ready}
