"""`console runs …`: the history of runs listed, one shown, two set side by side."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from console.commands import moment, note, say
from console.errors import Refused, UsageError
from console.exits import Exit
from console.paths import history_file
from console.plain import one_line
from console.runs import Run, RunHistory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def run(name: str, args: argparse.Namespace) -> Exit:
    """Run one action on the history."""
    return asyncio.run(_ACTIONS[name](args))


@asynccontextmanager
async def _history() -> AsyncIterator[RunHistory]:
    history = RunHistory(history_file())
    try:
        yield history
    finally:
        await history.close()


async def _list(args: argparse.Namespace) -> Exit:
    async with _history() as history:
        found = await history.list(args.name or "")
    if not found:
        of = f" of {one_line(args.name)}" if args.name else ""
        note(f"no run{of} is recorded here; console start, restart and the app record them")
    if args.json:
        print(json.dumps([_as_json(item) for item in found], indent=1))
        return Exit.OK
    for item in found:
        accept = "–" if item.accept_len is None else f"{item.accept_len:.2f}"
        speed = "–" if item.tokens_per_s is None else f"{item.tokens_per_s:.1f}"
        cause = f" ({item.finding['check']})" if item.finding else ""
        say(
            f"{item.id:>5}  {moment(item.started)}  {item.deployment:<16} {item.state:<8} {item.verdict or '–':<8}"
            f" accept {accept:>5}  {speed:>7} tok/s  {one_line(item.why)}{cause}"
        )
    return Exit.OK


async def _show(args: argparse.Namespace) -> Exit:
    async with _history() as history:
        found = await _one(history, args.number)
        values = {**_as_json(found), "benches": [item.as_json() for item in await history.benches(found.id)]}
    if args.json:
        print(json.dumps(values, indent=1))
        return Exit.OK
    for key, value in values.items():
        if value not in (None, "", {}, []):
            say(f"{key:<13} {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return Exit.OK


async def _compare(args: argparse.Namespace) -> Exit:
    from console.comparing import compare

    async with _history() as history:
        before, after = await _one(history, args.before), await _one(history, args.after)
        found = await compare(history, before, after)
    if args.json:
        print(json.dumps(found.as_json(), indent=1))
    else:
        for line in found.lines():
            say(line)
    return Exit.OK


async def _one(history: RunHistory, number: str) -> Run:
    if not (number.isascii() and number.isdecimal() and len(number) < 19):
        raise UsageError(f"{number!r} is not the number of a run; `console runs list` shows them")
    found = await history.get(int(number))
    if found is None:
        raise Refused(f"there is no run {number}; `console runs list` shows them")
    return found


def _as_json(item: Run) -> dict[str, Any]:
    return {field.name: getattr(item, field.name) for field in fields(item)}


_ACTIONS: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, Exit]]] = {
    "list": _list,
    "show": _show,
    "compare": _compare,
}
