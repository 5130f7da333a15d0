"""`console draft …`: staging between two calls, the diff, the write, the history."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from console.commands import agreed, note, opened, say
from console.draft import DraftStage, unified
from console.errors import ChangedMeanwhile, DraftError, NotRun, UsageError
from console.exits import Exit
from console.paths import cause_file, staged_file
from console.plain import one_line

if TYPE_CHECKING:
    from console.session import Session


def run(name: str, args: argparse.Namespace) -> Exit:
    """Run one action on the draft."""
    return asyncio.run(_ACTIONS[name](args))


async def _load(session: Session, discard: bool = False) -> DraftStage:
    """The draft as the host holds it, with what an earlier call staged on top."""
    draft, file = session.draft, staged_file(session.deployment.name)
    if not session.deployment.model.draft:
        raise UsageError(f"{session.deployment.name}: [model] draft is not set")
    await draft.load()
    if discard:
        file.unlink(missing_ok=True)
    try:
        kept = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return draft
    except ValueError:
        raise DraftError(f"what was staged in {file} cannot be read; remove that file") from None
    if kept.get("path") == draft.path and kept.get("host") == session.host.name:
        draft.adopt(str(kept["base"]), str(kept["staged"]), kept.get("finding"))
    return draft


def _keep(session: Session) -> None:
    draft, file = session.draft, staged_file(session.deployment.name)
    if not draft.dirty:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = {"path": draft.path, "host": session.host.name, "base": draft.base, "staged": draft.staged}
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps({**kept, "finding": draft.finding}), "utf-8")
    fresh.replace(file)


def _keep_cause(session: Session, sha: str, finding: Mapping[str, Any] | None) -> None:
    """Keep for the next restart which finding this config was written for."""
    file = cause_file(session.deployment.name)
    if finding is None:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_text(json.dumps({"sha256": sha, "finding": finding}), "utf-8")


def _show_changes(draft: DraftStage) -> None:
    for line in draft.diff():
        say(line)
    for change in draft.changes():
        note(one_line(change.words))
    if draft.three_way is not None:
        said = ", ".join(draft.three_way.conflicts)
        note(
            f"{draft.path} changed on the host since this was staged"
            + (f"; both sides changed {said}" if said else "; `console draft write --merge` keeps both")
        )


async def _show(args: argparse.Namespace) -> Exit:
    async with opened(args) as session:
        draft = await _load(session)
        sys.stdout.write(draft.staged)
        if draft.dirty:
            note("this is staged, and not yet on the host")
    return Exit.OK


async def _diff(args: argparse.Namespace) -> Exit:
    async with opened(args) as session:
        draft = await _load(session)
        if not draft.dirty:
            note(f"nothing is staged for {draft.path}")
        _show_changes(draft)
    return Exit.OK


async def _set(args: argparse.Namespace) -> Exit:
    words = list(args.words)
    name = words.pop(0) if words and "=" not in words[0] else None
    wrong = next((word for word in words if "=" not in word), None)
    if wrong is not None or not (words or args.fix or args.discard):
        raise UsageError(
            f"{wrong!r} is not KEY=VALUE" if wrong else "say what to set: KEY=VALUE, --fix CHECK or --discard"
        )
    args.name = name
    async with opened(args) as session:
        draft = await _load(session, args.discard)
        if args.fix:
            await _stage_fix(session, args.fix)
        for word in words:
            key, _, text = word.partition("=")
            draft.set(key, _value(text))
        _keep(session)
        _show_changes(draft)
        for remark in await draft.diagnose():
            note(f"line {remark.line}: {remark.verdict} {one_line(remark.text)}")
    return Exit.OK


def _value(text: str) -> object:
    """A value as JSON, or the text itself where it is none: `x=abc` need not be quoted twice."""
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _stage_fix(session: Session, check: str) -> None:
    async with aclosing(session.check(only=(check,))) as steps:
        async for _ in steps:
            pass
    found = session.report.find(check) if session.report is not None else None
    if found is None:
        raise NotRun(f"{check} said nothing")
    if not found.get("fix"):
        raise DraftError(f"{check} is {found['verdict']} and has no fix: {found['summary']}")
    session.draft.stage_fix(found["fix"], found)


async def _write(args: argparse.Namespace) -> Exit:
    async with opened(args) as session:
        draft = await _load(session)
        if draft.three_way is not None and args.merge:
            draft.take_merged()
        if not draft.dirty:
            raise DraftError(f"nothing is staged for {draft.path}; `console draft set` stages a change")
        _show_changes(draft)
        if args.dry_run:
            note(f"{draft.path} would be written; nothing was")
            return Exit.OK
        await agreed(args, f"write {draft.path} on {session.host.name}?")
        finding = draft.finding
        cause = f"fix of {finding['check']}" if finding else ""
        try:
            done = await draft.write(args.why or cause)
        except ChangedMeanwhile as error:
            for line in unified(draft.base, error.theirs, "as it was", "on the host now"):
                note(line)
            raise
        _keep(session)
        _keep_cause(session, done.sha256, finding)
        say(f"{draft.path} written: version {done.version.id}, sha256 {done.sha256[:12]}; before: {done.backup_path}")
    return Exit.OK


async def _history(args: argparse.Namespace) -> Exit:
    import time

    async with opened(args) as session:
        draft = await _load(session)
        for item in await draft.history():
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(item.seen))
            here = "  on the host" if item.sha == draft.base_sha else ""
            say(f"{item.id:>5}  {when}  {item.sha[:12]}  {item.by:<8} {one_line(item.why)}{here}")
    return Exit.OK


async def _restore(args: argparse.Namespace) -> Exit:
    async with opened(args) as session:
        draft = await _load(session)
        version = await draft.restore(args.version)
        _keep(session)
        _show_changes(draft)
        note(f"version {version.id} is staged; `console draft write` writes it")
    return Exit.OK


_ACTIONS: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, Exit]]] = {
    "show": _show,
    "diff": _diff,
    "set": _set,
    "write": _write,
    "history": _history,
    "restore": _restore,
}
