"""`console capture`: states for cached texts from the running server, or from the target itself, into a folder."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from console.commands import Ticker, agreed, note, opened, say, tell_step
from console.errors import NotRun, UsageError
from console.exits import Exit
from console.hints import command

if TYPE_CHECKING:
    from console.checking import CheckStep
    from console.session import Session


def run(_: str, args: argparse.Namespace) -> Exit:
    """Run the command."""
    if (args.layers or args.target or args.cache) and not args.reference:
        raise UsageError("--layers, --target and --cache go with --reference")
    if bool(args.target) != bool(args.cache) or (args.target and args.name):
        raise UsageError("--reference takes a deployment, or --target DIR and --cache DIR")
    if args.reference and args.how:
        raise UsageError("--how is about a server; --reference asks none")
    found = _here(args) if args.target else asyncio.run(_on_host(args))
    if found is not None:
        _tell(found, args)
    return Exit.OK


def _here(args: argparse.Namespace) -> dict[str, Any] | None:
    """A reference capture on this machine, by this python."""
    from checks.__main__ import answer
    from checks.errors import CheckError, NeedsLibrary
    from console import __version__

    if args.dry_run:
        say(_reference_words(args, args.target))
        return None
    request = {
        "task": "capture",
        "how": "reference",
        "layers": args.layers,
        "most": args.samples,
        "tokens": args.tokens,
        "target": args.target,
        "caches": [{"path": path} for path in args.cache],
        "capture_dir": args.out,
        "samples": max(args.samples, 16),
        "console": __version__,
    }
    show = Ticker()
    try:
        return answer(request, show.event)
    except NeedsLibrary as error:
        raise NotRun(f"{error}; in a checkout of it that is `pip install '.[torch]'`: the extra torch") from None
    except CheckError as error:
        raise NotRun(str(error)) from None
    finally:
        show.done()


def _reference_words(args: argparse.Namespace, target: str) -> str:
    part = f"its first {args.layers} layers" if args.layers else "all of its layers"
    return f"run {target} ({part}) over {args.samples} cached texts, and write its states to {args.out or 'the cache'}"


async def _on_host(args: argparse.Namespace) -> dict[str, Any] | None:
    from console import capturing

    async with opened(args) as session:
        args.name = args.name or session.deployment.name
        if args.reference:
            if args.dry_run:
                say(_reference_words(args, f"{session.deployment.model.target} on {session.host.name}"))
                return None
            return await _taken(
                session, capturing.take_reference(session, args.layers, args.samples, args.out, args.tokens)
            )
        plan = await capturing.plan_capture(session, args.how)
        pid = session.last_status.pid
        if plan.restarts:
            said = [
                f"stop process {pid}; requests in flight are lost",
                f"start: {plan.shown}",
                f"capture, by {plan.way.what}",
                "and start it again as it runs now",
            ]
        else:
            said = [f"ask process {pid}, by {plan.way.what}; it stays as it is"]
        if args.dry_run:
            say("\n".join(said))
            return None
        note("\n".join(said))
        if plan.restarts:
            await agreed(args, f"restart {session.deployment.name} on {session.host.name} for this, and back?")
        return await _taken(
            session, capturing.take_capture(session, plan, args.samples, args.out, tell_step, args.tokens)
        )


async def _taken(session: Session, steps: AsyncGenerator[CheckStep, None]) -> dict[str, Any]:
    from console.checking import Report

    show, found = Ticker(), None
    try:
        async with aclosing(steps):
            async for step in steps:
                show.step(step)
                found = step.raw if isinstance(step, Report) else found
    finally:
        show.done()
    if found is None:
        raise NotRun("the capture ended without a result; take it again, and report this if it stays")
    return {"host": session.host.name, **found}


def _tell(found: dict[str, Any], args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(found, indent=1))
        return
    where = found.get("host") or "local"
    for item in found["captures"]:
        made = f"{item['engine']} {item['version']}".strip()
        say(f"{item['path']}" + (f" on {where}" if where != "local" else ""))
        say(
            f"  {item['kind']}, by {made}: {item['positions']} tokens of {item['samples']} texts, {item['slots']} slots"
        )
        say(f"  shows {item['proves']}")
    say(f"next: {_next(found, args)}")


def _next(found: dict[str, Any], args: argparse.Namespace) -> str:
    """The command that judges with these captures: for a deployment it reads them on its host."""
    taken = [word for item in found["captures"] for word in ("--capture", item["path"])]
    if not args.target:
        return command(args, "check", None, *taken)
    caches = [word for path in args.cache for word in ("--cache", path)]
    return f"{command(args, 'check', None, '--target', args.target, *caches, *taken)} --draft DIR"
