"""What feeds the cockpit: coroutines that take the session's events into its state and publish what changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from console import flags
from console.errors import ConsoleError
from console.launch import engine_part
from console.masking import mask_text
from console.serving import LOG
from console.topics import Topic
from remote.errors import RemoteError

if TYPE_CHECKING:
    from console.session import Session
    from console.state import Cockpit

    Publish = Callable[[Topic], None]
    Fail = Callable[[str, BaseException], None]

OPERATIONAL = (ConsoleError, RemoteError, OSError)
"""What may go wrong with hosts and files; each says what, why and what next, and is shown, never raised."""

FIRST_LOOK = ("cfg.aux_ids", "align.embedding", "align.engine_pair")

_AT_ONCE = 200  # events put on screen without a pause: a few milliseconds
GPU_PERIOD = 5.0  # seconds between two calls of nvidia-smi
METRICS_PERIOD = 10.0  # seconds between two looks at /metrics
METRICS_LIMIT = 8 << 20  # bytes; with many labels it is some hundred KiB
MEASURED_PROMPTS, MEASURED_TOKENS = 4, 64  # enough verify steps for two digits, over in seconds
STATUS_PERIOD = 3.0  # seconds between two looks at the server's process and port


async def follow_log(
    session: Session, cockpit: Cockpit, add: Callable[[list[Any]], None], publish: Publish, fail: Fail
) -> None:
    """The server's log, batch by batch."""
    try:
        async for batch in session.follow_log():
            for begin in range(0, len(batch), _AT_ONCE):
                add(batch[begin : begin + _AT_ONCE])
                await asyncio.sleep(0)  # keys and redraws get their turn while a long log comes in
            publish(Topic.SERVING)
            if cockpit.timeline.serves(session.serving.windows, session.serving.mean_accept_len):
                publish(Topic.TIMELINE)
    except OPERATIONAL as error:
        fail("the log could not be followed", error)


async def watch_server(session: Session, cockpit: Cockpit, publish: Publish) -> None:
    """The server's process, port and health, every few seconds; a lost link is shown, not fatal."""
    while True:
        try:
            await session.status()
            cockpit.error = ""
        except OPERATIONAL as error:
            cockpit.error = str(error)
        publish(Topic.STATUS)
        await asyncio.sleep(STATUS_PERIOD)


async def watch_gpus(session: Session, cockpit: Cockpit, publish: Publish) -> None:
    """The host's GPUs, every few seconds; a host without any is asked once."""
    from remote import gpu

    while True:
        try:
            cockpit.gpus = await gpu.snapshot(session.host)
        except OPERATIONAL as error:
            cockpit.error = str(error)
        publish(Topic.SERVING)
        if not cockpit.gpus and not cockpit.error:
            return
        await asyncio.sleep(GPU_PERIOD)


async def watch_positions(session: Session, publish: Publish) -> None:
    """Acceptance by position from /metrics, for an engine that counts it there and whose log has not said it."""
    try:
        metrics = engine_part(session.deployment.server.engine_name, "metrics")
    except ConsoleError:
        return
    earlier = None
    while True:
        if session.last_status.healthy and session.serving.by_position_from != LOG:
            try:
                earlier = await _look_at_metrics(session, metrics, earlier, publish)
            except OPERATIONAL:
                earlier = None  # the link or the server is away, which the top line says
        await asyncio.sleep(METRICS_PERIOD)


async def _look_at_metrics(session: Session, metrics: Any, earlier: Any, publish: Publish) -> Any:
    from remote import http

    url = session.deployment.server.url.rstrip("/") + "/metrics"
    sent = session.server.headers
    answer = await http.get(session.host, url, headers=sent, timeout=METRICS_PERIOD, limit=METRICS_LIMIT)
    now = metrics.positions(answer.body.decode("utf-8", "replace")) if answer.ok else None
    if now is None:
        return earlier
    fresh = now.since(earlier) if earlier is not None else None
    if fresh is not None:
        session.serving.take_positions(fresh.rates, f"/metrics: {fresh.drafts:.0f} drafts just now")
    elif earlier is None or now.drafts < earlier.drafts:
        session.serving.take_positions(now.rates, f"/metrics: {now.drafts:.0f} drafts since start")
    publish(Topic.SERVING)
    return now


async def measure(session: Session, fail: Fail, told: Callable[[int, int], None]) -> None:
    """Send a few prompts of our own: what each verify step of theirs accepted is in their answers."""
    from console import benching

    try:
        prompts = benching.built_in(session)[:MEASURED_PROMPTS]
        await benching.bench(session, prompts, MEASURED_TOKENS, told)
    except OPERATIONAL as error:
        fail("acceptance was not measured", error)


async def run_checks(session: Session, cockpit: Cockpit, only: tuple[str, ...], publish: Publish, fail: Fail) -> None:
    """Run the checks on the host; being cancelled kills the run there."""
    board = cockpit.board
    board.begin(only)
    publish(Topic.CHECKS)
    try:
        async for step in session.check(only=only):
            board.step(step)
            publish(Topic.CHECKS)
    except OPERATIONAL as error:
        board.end(str(error))
        fail("the checks could not be run", error)
    finally:
        if board.busy:
            board.end("cancelled")
        publish(Topic.CHECKS)


async def first_look(session: Session, cockpit: Cockpit, publish: Publish) -> None:
    """Learn the wiring by itself once the server is up, so that the strip is red before anybody asks.

    Only what is quick and costs the server a few requests: one that gives hidden states is asked for those of two
    cached texts, and nothing is restarted, flushed or staged for it. A server that cannot be asked leaves the
    strip unknown, and the panel says why.
    """
    while not session.last_status.healthy:
        await asyncio.sleep(STATUS_PERIOD / 3)
    await _look(session, cockpit, publish)


async def _look(session: Session, cockpit: Cockpit, publish: Publish) -> None:
    cockpit.looking = True
    publish(Topic.CHECKS)
    try:
        async for _ in session.check(only=FIRST_LOOK, samples=2):
            pass
    except OPERATIONAL as error:
        cockpit.error = str(error)
    finally:
        cockpit.looking = False
        publish(Topic.CHECKS)


async def read_flags(session: Session, cockpit: Cockpit, publish: Publish) -> None:
    """Every flag of the engine that runs or is installed; where they cannot be read, why."""
    try:
        cockpit.flags = await flags.read_flags(session)
    except OPERATIONAL as error:
        cockpit.flags = flags.FlagSchema(why=str(error))
    publish(Topic.FLAGS)


async def restart(
    session: Session, cockpit: Cockpit, reason: str, last_good: bool, publish: Publish, fail: Fail
) -> None:
    """Stop, start, and note each phase as it passes; what was staged has then been used."""
    timeline = cockpit.timeline
    timeline.begin(reason)
    publish(Topic.TIMELINE)

    def on_step(name: str, detail: str) -> None:
        timeline.step(name, detail)
        publish(Topic.TIMELINE)
        if name == "start":
            cockpit.board.restarted()
            publish(Topic.CHECKS)

    try:
        staged = dict(cockpit.overrides) or None
        await session.restart(reason, on_step, staged, last_good=last_good, finding=cockpit.causing)
        cockpit.causing, cockpit.overrides = None, {}
        timeline.end()
        await _look(session, cockpit, publish)
    except OPERATIONAL as error:
        timeline.end(mask_text(str(error)))
        fail("the server did not come up", error)
    finally:
        if timeline.busy:
            timeline.end("cancelled")
        for topic in (Topic.TIMELINE, Topic.STATUS, Topic.RUNS):
            publish(topic)
