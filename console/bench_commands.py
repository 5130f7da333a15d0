"""`console bench` and `console sweep`: the running server measured, as it is or over numbers of draft steps."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from console import benching
from console.benching import Bench, Swept
from console.commands import agreed, note, opened, say, tell_step
from console.errors import NotRun
from console.exits import Exit
from console.masking import mask_argv
from console.plain import one_line

if TYPE_CHECKING:
    from console.session import Session


def run(name: str, args: argparse.Namespace) -> Exit:
    """Run one of the two commands."""
    return asyncio.run(_ACTIONS[name](args))


def _prompts(args: argparse.Namespace, session: Session) -> list[str]:
    found = benching.read_prompts(args.prompts) if args.prompts else benching.built_in(session)
    return found[: args.limit] if args.limit else found


def _told(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\r\x1b[K" if done == total else ""
        print(f"\r\x1b[Kprompt {done + 1}/{total}{end}", end="", file=sys.stderr, flush=True)


async def _bench(args: argparse.Namespace) -> Exit:
    async with opened(args) as session:
        found = await benching.bench(session, _prompts(args, session), args.max_new_tokens, _told)
    if args.json:
        print(json.dumps(found.as_json(), indent=1))
        return Exit.OK
    for line in _lines(found):
        say(line)
    return Exit.OK


def _lines(found: Bench) -> list[str]:
    exact = "bonus token included" if found.exact else "bonus token and the prefill's own included"
    return [
        f"run {found.run}: {len(found.accept_lens)} prompts, {found.tokens} tokens in {found.seconds:.1f} s",
        f"accept length {found.accept.words()}, {found.formula}: {exact}",
        f"tok/s         {found.speed.words()}, one request at a time",
        "95% intervals over prompts (Student's t); `console runs compare` sets two runs side by side",
    ]


async def _sweep(args: argparse.Namespace) -> Exit:
    steps = benching.read_steps(args.steps)
    async with opened(args) as session:
        from console.interim import amended, spec_of
        from console.launch import flags_of

        seen, prompts = await session.status(), _prompts(args, session)
        first = spec_of(session)
        flags = flags_of(session.deployment, first.argv)
        engine = session.deployment.server.engine_name
        said = [f"stop process {seen.pid}; requests in flight are lost"]
        for number in steps:
            argv = amended(first.argv, benching.changes_for(number, flags), engine)
            said.append(f"start and send {len(prompts)} prompts: {' '.join(mask_argv(argv))}")
        said.append("and start it again as it runs now")
        if args.dry_run:
            say("\n".join(said))
            return Exit.OK
        note("\n".join(said))
        await agreed(args, f"restart {session.deployment.name} on {session.host.name} {len(steps)} times, and back?")
        found: list[Swept] = []
        async with benching.sweeping(session, tell_step) as stand:
            values = benching.sweep(session, stand, steps, prompts, args.max_new_tokens, _told)
            async with aclosing(values):
                async for item in values:
                    found.append(item)
                    note(_row(item))
    _tell(found, args.json)
    if all(item.bench is None for item in found):
        raise NotRun("none of the values could be measured; what each of them said stands above")
    return Exit.OK


def _tell(found: list[Swept], as_json: bool) -> None:
    if as_json:
        rows = [
            {"steps": item.steps, "bench": item.bench and item.bench.as_json(), "problem": item.problem}
            for item in found
        ]
        print(json.dumps({"schema": 1, "swept": rows}, indent=1))
        return
    for item in found:
        say(_row(item))
    speeds = {item.steps: item.bench.speed.mean for item in found if item.bench is not None}
    if speeds:
        say(f"fastest for one request at a time: {max(speeds, key=lambda steps: speeds[steps])} steps")


def _row(item: Swept) -> str:
    if item.bench is None:
        return f"steps {item.steps:>2}  {one_line(item.problem)[:200]}"
    return f"steps {item.steps:>2}  accept length {item.bench.accept.words()}  tok/s {item.bench.speed.words()}"


_ACTIONS: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, Exit]]] = {"bench": _bench, "sweep": _sweep}
