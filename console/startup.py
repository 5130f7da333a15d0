"""From a started process to a server that answers: what passes by meanwhile, and why it did not come up."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from console.errors import StartFailed
from console.following import follow_events
from console.plain import plain

if TYPE_CHECKING:
    from remote.host import Host
    from remote.server import ServerRecord

OnStep = Callable[[str, str], None]

HEALTH = "/health"
"""SGLang and vLLM both answer here, 200 once the warm-up is through. SGLang takes a second or more for it."""
NO_KEY = (401, 403)
"""What a server answers to whom it does not know."""
_LOOK_EVERY = 0.5
_HEALTH_TIMEOUT = 10.0
_LINES_KEPT = 40
_SAID = 200
_SYMPTOMS = ("exception", "child-died", "start-failed")
"""Kinds of errors that say that it died and not why: any other one counts more."""


@dataclass(slots=True)
class Watch:
    """What the log said so far: the phase it is in, and its last lines."""

    phase: str = "starting"
    error: str = ""
    error_kind: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES_KEPT))


async def await_ready(
    host: Host, record: ServerRecord, url: str, engine: str, on_step: OnStep, headers: Mapping[str, str] | None = None
) -> None:
    """Wait until the started server answers, telling each phase as it passes; there is no time limit but the caller's.

    `headers`, which may hold its key, are sent only where it wants one, and once it is seen to be itself: another
    process may have its port. Being cancelled leaves the server starting. Raises StartFailed when it ends, or when
    another process answers in its place; remote's errors.
    """
    watch = Watch()
    ended, sent = asyncio.Event(), None
    reader = asyncio.create_task(_read_log(host, record, engine, watch, ended, on_step))
    try:
        while True:
            await _alive_or_told(host, record, watch)
            status = await _health(host, url, sent)
            if (200 <= status < 300 or status in NO_KEY) and await _answers_itself(host, record, watch):
                if status not in NO_KEY:
                    return
                sent = headers
            await asyncio.sleep(_LOOK_EVERY)
    finally:
        ended.set()
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def healthy(host: Host, url: str, headers: Mapping[str, str]) -> bool:
    """Whether the server says that it is well; a lost link raises HostUnreachable."""
    return 200 <= await _health(host, url, headers) < 300


async def _health(host: Host, url: str, headers: Mapping[str, str] | None) -> int:
    """The status it answers with; 0 where no answer came in time."""
    from remote import http
    from remote.errors import BadResponse, NotListening, TimedOut

    try:
        return (await http.get(host, url.rstrip("/") + HEALTH, headers=headers, timeout=_HEALTH_TIMEOUT)).status
    except (NotListening, TimedOut, BadResponse):
        return 0


async def _read_log(
    host: Host, record: ServerRecord, engine: str, watch: Watch, ended: asyncio.Event, on_step: OnStep
) -> None:
    async with aclosing(follow_events(host, record.log, engine, 0, ended, start=record.log_offset)) as events:
        async for batch in events:
            for event in batch:
                _note(event, watch, on_step)


def _note(event: Any, watch: Watch, on_step: OnStep) -> None:
    line = plain(event.text, keep="\t")
    watch.lines.append(line)
    if event.event == "error" and (not watch.error or watch.error_kind in _SYMPTOMS):
        watch.error_kind, watch.error = event.kind, f"{line[:_SAID]}; {event.advice}"
    if event.event == "phase" and event.phase not in (watch.phase, "crashed"):
        watch.phase = event.phase
        # Ready by its own word is not ready: an older server on the port can make it say so.
        if watch.phase not in ("ready", "serving"):
            on_step(watch.phase, line[:_SAID])


async def _alive_or_told(host: Host, record: ServerRecord, watch: Watch) -> None:
    from remote import server

    status = await server.status(host, record)
    if status.alive:
        return
    # Its last lines may still be on their way.
    await asyncio.sleep(1.0)
    code = "" if status.exit_code is None else f" with code {status.exit_code}"
    said = watch.error or (watch.lines[-1][:_SAID] if watch.lines else "it wrote nothing")
    raise StartFailed(
        f"the server ended while {watch.phase}{code}: {said}. Its log is {record.log} on {host.name}",
        watch.phase,
        tuple(watch.lines),
    )


async def _answers_itself(host: Host, record: ServerRecord, watch: Watch) -> bool:
    from remote import process

    listening = await process.listener(host, record.port)
    if listening is None:
        return False
    if listening.pid == record.pid or listening.pgid == record.pgid:
        return True
    raise StartFailed(
        f"process {listening.pid} answers on port {record.port} in place of the server that was started; "
        f"stop it, or choose another port",
        watch.phase,
        tuple(watch.lines),
    )


class Stopwatch:
    """Seconds since it was made, for the detail of a step."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def words(self) -> str:
        """`12.3 s`."""
        return f"{time.monotonic() - self._began:.1f} s"
