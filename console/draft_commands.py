"""`console draft …`: staging between two calls, the diff, the write, the history."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from console.commands import agreed, moment, note, opened, say
from console.deployment import find_deployment
from console.draft import DraftStage, unified
from console.errors import ChangedMeanwhile, DeploymentError, DraftError, NotRun, Refused, UsageError
from console.exits import Exit
from console.hints import command
from console.paths import cause_file, staged_file
from console.plain import one_line

if TYPE_CHECKING:
    from console.jsontext import Change
    from console.session import Session


def run(name: str, args: argparse.Namespace) -> Exit:
    """Run one action on the draft."""
    return asyncio.run(_ACTIONS[name](args))


async def _load(session: Session, unread: bool = False) -> DraftStage:
    """The draft as the host holds it, with what an earlier call staged on top.

    `unread`: also where the host holds no config to read; what is staged from that is taken up in any case.
    """
    draft, file = session.draft, staged_file(session.deployment.name)
    if not session.deployment.model.draft:
        raise UsageError(f"{session.deployment.name}: [model] draft is not set")
    try:
        kept = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        kept = {}
    except ValueError:
        raise DraftError(f"what was staged in {file} cannot be read; console draft set --discard drops it") from None
    from_unread = kept.get("odd_sha") is not None
    why = ""
    if unread or from_unread:
        why = await draft.load_for_restore()
    else:
        await draft.load()
    if why:
        note(f"there is no config to read: {one_line(why)}")
    if kept.get("path") == draft.path and kept.get("host") == session.host.name and not (why and not from_unread):
        draft.adopt(str(kept["base"]), str(kept["staged"]), kept.get("finding"), kept.get("odd_sha"))
    return draft


def _keep(session: Session) -> None:
    draft, file = session.draft, staged_file(session.deployment.name)
    if not draft.dirty:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = {"path": draft.path, "host": session.host.name, "base": draft.base, "staged": draft.staged}
    more = {"finding": draft.finding, "odd_sha": draft.odd_sha}
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps({**kept, **more}), "utf-8")
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
    if any(word.startswith("=") for word in words):
        raise UsageError("a KEY=VALUE lacks its key")
    values = [(key, *_value(key, text)) for key, _, text in (word.partition("=") for word in words)]
    args.name = name
    _refuse_read_only(args)
    async with opened(args) as session:
        if args.discard:
            await _discard(session)
            if not (words or args.fix):
                return Exit.OK
        draft = await _load(session)
        if args.fix:
            await _stage_fix(session, args.fix)
        for key, value, as_text in values:
            made = draft.set(key, value)
            if as_text:
                note(_taken_as_text(key, str(value), made))
        _keep(session)
        _show_changes(draft)
        for remark in await draft.diagnose():
            note(f"line {remark.line}: {remark.verdict} {one_line(remark.text)}")
    return Exit.OK


def _refuse_read_only(args: argparse.Namespace) -> None:
    if args.read_only:
        raise Refused("read-only: nothing was staged or dropped; leave out --read-only to do it")


async def _discard(session: Session) -> None:
    """Drop what an earlier call staged, and say what that was."""
    file = staged_file(session.deployment.name)
    try:
        kept = json.loads(file.read_text("utf-8"))
        lines = unified(str(kept["base"]), str(kept["staged"]), "as it was", "dropped")
    except FileNotFoundError:
        note(f"nothing was staged for {session.draft.path}")
        return
    except (ValueError, KeyError, TypeError):
        lines = [f"what was staged in {file}, which cannot be read"]
    file.unlink(missing_ok=True)
    for line in lines:
        note(one_line(line))
    note(f"dropped; nothing is staged for {session.draft.path} any more")


def _value(key: str, text: str) -> tuple[object, bool]:
    """A value as JSON, or the text itself where it is none (then True): `x=abc` need not be quoted twice."""

    def refuse(name: str) -> object:
        raise UsageError(f"{key}: {name} is no JSON, and engines refuse such a config; write a number or null")

    try:
        return json.loads(text, parse_constant=refuse), False
    except (ValueError, RecursionError):
        return text, True


def _taken_as_text(key: str, text: str, made: Sequence[Change]) -> str:
    said = f"{key}: {one_line(text)} is no JSON, so it is taken as a string"
    before = next((item.before for item in made if item.absent != "before"), None)
    if isinstance(before, (int, float)):
        said += f"; what it replaces, {json.dumps(before)}, was no string"
    return said


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
            raise DraftError(f"nothing is staged for {draft.path}; `{command(args, 'draft set')}` stages a change")
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
        say(
            f"{draft.path} written: version {done.version.id}, sha256 {done.sha256[:12]}; "
            f"before: {done.backup_path or 'nothing was there'}"
        )
    return Exit.OK


async def _history(args: argparse.Namespace) -> Exit:
    async with opened(args) as session:
        await _list_versions(await _load(session, unread=True))
    return Exit.OK


async def _list_versions(draft: DraftStage) -> bool:
    """Print them, newest first; whether there are any."""
    versions = await draft.history()
    if not versions:
        note(f"no version of {draft.path} is kept here")
    for item in versions:
        here = "  on the host" if item.sha == draft.base_sha else ""
        say(f"{item.id:>5}  {moment(item.seen)}  {item.sha[:12]}  {item.by:<8} {one_line(item.why)}{here}")
    return bool(versions)


def _is_version(word: str) -> bool:
    """Whether a word alone is a version of the only deployment there is, and no deployment itself."""
    if not re.fullmatch(r"[0-9]+|[0-9a-f]{4,64}", word):
        return False
    try:
        find_deployment(word)
    except DeploymentError:
        return True
    return False


async def _restore(args: argparse.Namespace) -> Exit:
    if args.version is None and args.name is not None and _is_version(args.name):
        args.name, args.version = None, args.name
    if args.version is not None:
        _refuse_read_only(args)
    async with opened(args) as session:
        draft = await _load(session, unread=True)
        if args.version is None:
            name = args.name or session.deployment.name
            if not await _list_versions(draft):
                raise DraftError(f"there is nothing to restore: the first version is kept when {draft.path} is read")
            raise UsageError(f"which version? {command(args, 'draft restore', name)} VERSION stages one of them")
        version = await draft.restore(args.version)
        _keep(session)
        _show_changes(draft)
        note(f"version {version.id} is staged; `{command(args, 'draft write')}` writes it")
    return Exit.OK


_ACTIONS: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, Exit]]] = {
    "show": _show,
    "diff": _diff,
    "set": _set,
    "write": _write,
    "history": _history,
    "restore": _restore,
}
