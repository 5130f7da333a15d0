"""`console status`, `start`, `stop`, `restart`: the server looked at and changed, and what Ctrl-C left of it."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from console.commands import agreed, moment, note, opened, say, tell_step
from console.deployment import load_deployment
from console.errors import ConsoleError, Refused
from console.exits import Exit
from console.hints import command
from console.masking import mask_argv
from console.paths import cause_file, history_file
from console.plain import one_line
from console.runs import STARTING, RunHistory

if TYPE_CHECKING:
    from console.session import Session

_PATIENCE_S = 20.0
"""How long an interrupted command may take to see what it left behind."""


def run(name: str, args: argparse.Namespace) -> Exit:
    """Run one of the commands; `runs_list` is the list, once runs left at `starting` are settled."""
    if name == "runs_list":
        from console import runs_commands

        asyncio.run(_settle(args.name or ""))
        return runs_commands.run("list", args)
    return asyncio.run(_ACTIONS[name](args))


async def _status(args: argparse.Namespace) -> Exit:
    async with opened(args) as session:
        seen = await session.status()
        argv = list(mask_argv(seen.argv))
        differences = [{"flag": item.key, "file": item.planned, "running": item.running} for item in seen.differences]
        if args.json:
            keys = ("phase", "pid", "url", "healthy", "engine", "since", "note")
            print(
                json.dumps(
                    {**{key: getattr(seen, key) for key in keys}, "argv": argv, "differences": differences}, indent=1
                )
            )
            return Exit.OK
        say(
            f"{session.deployment.name} on {session.host.name}: {seen.phase}"
            + (f", {seen.engine}" if seen.engine else "")
        )
        if seen.pid:
            say(f"  process {seen.pid} at {seen.url}: {' '.join(argv)}")
        if seen.note:
            say(f"  {seen.note}")
        for line in await _to_put_back(session):
            say(f"  {line}")
        for item in differences:
            say(f"  --{item['flag']}: runs with {item['running'] or '–'}, the file says {item['file'] or '–'}")
    return Exit.OK


async def _to_put_back(session: Session) -> list[str]:
    """What is to run here again, where another command line stands in for it; nothing where none does."""
    from remote.interim import pending

    left = await pending(session.host, session.deployment.server.port)
    if left is None:
        return []
    names = f", with {', '.join(left.env_names)} in its environment" if left.env_names else ""
    how = "the host could not put it back" if left.failed else "the host puts it back when that is over"
    return [
        f"since {moment(left.since)} another command stands in, for {left.who}; {how}",
        f"to go back by hand, stop it and run: {' '.join(mask_argv(left.argv))}{names}; then remove {left.file}",
    ]


async def _change_server(args: argparse.Namespace) -> Exit:
    async with opened(args) as session:
        seen, plan = await session.status(), session.plan()
        lines = []
        if args.command in ("stop", "restart") and seen.up:
            lines.append(f"stop process {seen.pid}: {' '.join(mask_argv(seen.argv))}")
        if args.command in ("start", "restart"):
            lines.append(f"start: {plan.shown}")
            lines += [
                f"  --{item.key}: {item.running or 'absent'} → {item.planned or 'absent'}" for item in plan.changes
            ]
            lines += [
                f"  {item.key}: {item.running or 'absent'} → {item.planned or 'absent'}" for item in plan.env_changes
            ]
        if args.command == "restart" and args.last_good:
            good = await session.runs.last_good(session.deployment.name)
            lines[-1] = f"start as run {good.id} did" if good else "no run has served well yet"
        if args.dry_run:
            say("\n".join(lines) or "nothing to do")
            return Exit.OK
        if args.read_only:
            raise Refused(f"read-only: nothing was done; without --read-only this would {args.command} the server")
        note("\n".join(lines))
        await agreed(args, f"{args.command} {session.deployment.name} on {session.host.name}?")
        try:
            await _changed(args, session)
        except asyncio.CancelledError:
            await _tell_aftermath(session, args, seen.pid)
            raise
    return Exit.OK


async def _changed(args: argparse.Namespace, session: Session) -> None:
    if args.command == "stop":
        await session.stop(args.why, tell_step)
        say(f"{session.deployment.name} stopped")
        return
    if args.command == "start":
        begun = await session.start(args.why, tell_step)
    else:
        cause = None if args.last_good else await _cause(session)
        begun = await session.restart(args.why, tell_step, last_good=args.last_good, finding=cause)
        cause_file(session.deployment.name).unlink(missing_ok=True)
    say(f"{session.deployment.name} is ready: run {begun.id}, process {begun.pid}")


async def _tell_aftermath(session: Session, args: argparse.Namespace, before: int | None) -> None:
    """After Ctrl-C: what the server is now, and what to do next; a second Ctrl-C ends this too."""
    from remote.errors import RemoteError

    note(f"interrupted during {args.command}; looking at what became of the server (Ctrl-C again ends this at once)")
    try:
        async with asyncio.timeout(_PATIENCE_S):
            note(await session.aftermath(args.command, before))
    except (ConsoleError, RemoteError, TimeoutError) as error:
        why = one_line(str(error)) or "it took too long"
        note(f"what became of the server is not known: {why}; look with: {command(args, 'status')}")


async def _cause(session: Session) -> Mapping[str, Any] | None:
    """The finding for whose fix an earlier `console draft write` wrote the config as it is now."""
    try:
        kept = json.loads(cause_file(session.deployment.name).read_text("utf-8"))
        found = kept["finding"] if kept["sha256"] == await session.snapshot() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, dict) else None


async def _settle(name: str) -> None:
    """Look at the servers whose runs an interrupted command left at `starting`."""
    from console.session import Session
    from remote.errors import RemoteError

    if not history_file().exists():
        return
    history = RunHistory(history_file())
    try:
        left = {item.deployment: item.id for item in await history.list(name) if item.state == STARTING}
    finally:
        await history.close()
    for deployment, number in left.items():
        try:
            async with asyncio.timeout(_PATIENCE_S):
                session = await Session.open(load_deployment(deployment))
                try:
                    await session.status()
                finally:
                    await session.close()
        except (ConsoleError, RemoteError, TimeoutError) as error:
            why = one_line(str(error)) or "its host did not answer in time"
            note(f"run {number} of {one_line(deployment)} is listed as it was left, at {STARTING}: {why}")


_ACTIONS: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, Exit]]] = {
    "status": _status,
    "start": _change_server,
    "stop": _change_server,
    "restart": _change_server,
}
