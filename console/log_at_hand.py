"""The log that a run of the checks reads on the host: a file there, or a copy of what a container or a unit prints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from console import host_look
from remote.log_copy import copied, lives
from remote.output import log_source

if TYPE_CHECKING:
    from console.session import Session

READERS = ("log", "ops", "flags")
"""The families whose checks read a log."""


@asynccontextmanager
async def log_at_hand(session: Session, request: Mapping[str, Any], hidden: bool) -> AsyncIterator[dict[str, Any]]:
    """What is to be added to a request that was made for what `status` saw last; valid until the context is left.

    A running server that writes to a file is asked for already. Else it is the container or the unit that the
    deployment names, or the file of a server that has ended. `hidden`: what has the port is another user's, and not to
    be seen. Raises HostUnreachable.
    """
    if request["log"]:
        yield {}
        return
    source, seen, ended = log_source(session.deployment.server.log), session.last_status, False
    if source is None or not seen.up or seen.phase == "foreign":
        running = await lives(session.host, source) if source is not None else False
        if running is None:
            # Of a container only Docker's proxy may be seen on the port, or nothing.
            running = hidden or seen.phase == "foreign"
        path = "" if running else await host_look.log_of_ended(session)
        if path or source is None:
            yield {"log": path, "ended": True} if path else {}
            return
        ended = not running
    if not host_look.is_asked(request["only"], request["skip"], READERS):
        yield {}
        return
    async with copied(session.host, source) as copy:
        yield {"log": copy.path, "log_of": str(source), "log_failed": copy.why, "ended": ended}
