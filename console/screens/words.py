"""The longer texts of the screens: questions before a change, help, the command log, errors, histories."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen

from console.flags import problems_of, rows_of
from console.glyphs import glyphs
from console.keys import key_words
from console.masking import mask_argv, mask_text
from console.plain import one_line, plain
from console.widgets.topline import elapsed_words
from console.widgets.trend import fit

if TYPE_CHECKING:
    from console.launch import Difference, LaunchPlan
    from console.runs import Version
    from console.session import Session
    from console.state import Cockpit
    from remote.errors import HostKeyUnknown

_MUTED = "$foreground-muted"


def restart_question(session: Session, cockpit: Cockpit, *, last_good: bool) -> Content:
    """What a restart will change: the command, its difference from what runs, and the draft's state."""
    status, draft = session.last_status, session.draft
    plan = session.plan(cockpit.overrides)
    rows = [
        Content.assemble(("now    ", "$foreground-muted"), _now(session)),
        Content.assemble(
            ("reason ", "$foreground-muted"),
            "the last configuration that served well" if last_good else _reason(cockpit),
        ),
    ]
    if draft.dirty:
        rows.append(
            Content.styled(
                "draft  an edit is staged and NOT written: it will not be served (2, then w)", "bold $warning"
            )
        )
    differences = [*plan.changes, *plan.env_changes]
    if differences:
        rows += [Content(""), Content.styled("what changes against the process that runs now", _MUTED)]
        rows += difference_rows(differences)
    elif status.up:
        rows += [
            Content(""),
            Content.styled("the command and its environment do not change; config.json is read anew", _MUTED),
        ]
    if not last_good:
        rows += _refused(session, plan, cockpit)
        rows += [Content(""), Content.styled("the command", "$foreground-muted"), Content(plain(plan.shown))]
    return Content("\n").join(rows)


def _refused(session: Session, plan: LaunchPlan, cockpit: Cockpit) -> list[Content]:
    """What the engine would refuse of this command, as far as its flags were read."""
    if cockpit.flags is None or not cockpit.flags.flags:
        return []
    problems = problems_of(rows_of(session.deployment, plan, cockpit.overrides, cockpit.flags))
    said = [Content.styled(f"  {one_line(problem)}", "$error") for problem in problems]
    title = Content.styled(
        f"by its own source {one_line(cockpit.flags.label)} would not start with this", "bold $error"
    )
    return [Content(""), title, *said] if said else []


def trust_question(unknown: HostKeyUnknown) -> Content:
    """An unknown host key: its fingerprint, and what trusting it does."""
    return Content(
        f"{one_line(unknown.host)} shows a key that {one_line(unknown.known_hosts)} does not have:\n\n"
        f"{one_line(unknown.fingerprint)}\n\n"
        "Compare it with what the host's owner says. Trusting it adds it to that file."
    )


def stop_question(session: Session) -> Content:
    """What will be stopped."""
    return Content.assemble(("stops  ", "$foreground-muted"), _now(session), "\n\nRequests in flight are lost.")


def difference_rows(differences: Iterable[Difference]) -> list[Content]:
    """One row a difference: what runs, then what would run."""
    rows = []
    for item in differences:
        running = "absent" if item.running is None else one_line(item.running)
        planned = "absent" if item.planned is None else one_line(item.planned)
        rows.append(
            Content.assemble(
                (f"  {one_line(item.key)}  ", "bold"),
                (running, "$error"),
                (f" {glyphs().arrow} ", "$foreground-muted"),
                (planned, "$success"),
            )
        )
    return rows


def failure(error: BaseException) -> Content:
    """An error as its own words: what, why, what next; for a server that died, the end of its log."""
    text = plain(mask_text(str(error)))
    rows = [Content.styled(text, "$error")]
    if "Traceback" in text:
        # The last line says what happened; the way there is for whoever repairs it.
        rows = [
            Content.styled(text.strip().splitlines()[-1], "bold $error"),
            Content(""),
            Content.styled(text, "$foreground-muted"),
        ]
    lines: Sequence[str] = getattr(error, "lines", ())
    if lines:
        rows += [
            Content(""),
            Content.styled("the end of its log", "$foreground-muted"),
            *(Content(one_line(line)) for line in lines),
        ]
    return Content("\n").join(rows)


def help_text(screen: Screen[object], everywhere: Sequence[BindingType], width: int) -> Content:
    """The screen's own words, its keys and what each does, and those that work everywhere; rows of `width` cells."""
    rows = [Content(" ".join((type(screen).__doc__ or "").split())), Content("")]
    groups = (("on this screen", screen, getattr(type(screen), "BINDINGS", ())), ("everywhere", screen.app, everywhere))
    keys = [(title, where, key) for title, where, table in groups for key in table if isinstance(key, Binding)]
    names = max((len(key.description) for _, _, key in keys), default=0)
    before = ""
    for title, where, key in keys:
        if title != before:
            rows += [*([Content("")] if before else []), Content.styled(title, "bold $primary")]
            before = title
        head = Content.assemble((f"  {key_words(key.key):<7}", "bold"), f"{key.description:<{names}}  ")
        rows.append(head + Content.styled(fit(about_action(where, key.action), width - head.cell_length), _MUTED))
    focused = screen.focused
    if focused is not None and type(focused).__doc__:
        rows += [
            Content(""),
            Content.styled("the focused part", "bold $primary"),
            Content(" ".join((type(focused).__doc__ or "").split())),
        ]
    return Content("\n").join(rows)


def about_action(where: object, action: str) -> str:
    """What a binding's action does, by the words of whoever does it; of another screen, what it is for."""
    name, _, given = action.partition("(")
    if name == "command_palette":
        return "All that can be done, found by its words."
    modes: Mapping[str, object] = getattr(where, "MODES", {})
    does = modes.get(given.strip("')")) if name == "go" else getattr(where, f"action_{name}", None)
    return (getattr(does, "__doc__", None) or "").strip().partition("\n")[0]


def command_log(session: Session | None) -> Content:
    """Every command the console ran on the host, newest first, secrets masked; one row for the same again and again."""
    if session is None or not session.host.commands:
        return Content("nothing was run yet")
    rows = []
    told = [(one_line(shlex.join(mask_argv(record.argv))), record) for record in reversed(session.host.commands)]
    for words, group in groupby(told, key=lambda item: item[0]):
        records = [record for _, record in group]
        last = records[0]
        code = glyphs().ellipsis if last.returncode is None else str(last.returncode)
        took = "" if last.took is None else f"{last.took:.2f}s"
        often = f"{len(records)} times since {_clock(records[-1].time)}" if len(records) > 1 else ""
        rows.append(
            Content.assemble(
                (f"{_clock(last.time)} {took:>7} rc {code:<3} ", _MUTED), words, (f"  {often}" if often else "", _MUTED)
            )
        )
    return Content("\n").join(rows)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def versions_content(versions: Sequence[Version], shown: str, now: float) -> Content:
    """The history of a config: number, when, who, why; the one on the host is marked."""
    newest = versions[:50]
    ages = [f"{elapsed_words(now - item.seen)} ago" for item in newest]
    numbers, width = max((len(str(item.id)) for item in newest), default=0), max(map(len, ages), default=0)
    rows = []
    for item, age in zip(newest, ages, strict=True):
        here = item.sha == shown
        who = "console" if item.by == "console" else "outside"
        rows.append(
            Content.assemble(
                (f"{glyphs().up if here else ' '} {item.id:>{numbers}} ", "$success" if here else _MUTED),
                f"{age:>{width}}  {who}  {one_line(item.why)}  ",
                (item.sha[:8], _MUTED),
            )
        )
    return Content("\n").join(rows)


def _now(session: Session) -> str:
    status = session.last_status
    if not status.up:
        return "no server runs"
    since = f", up {elapsed_words(time.time() - status.since)}" if status.since else ""
    return f"pid {status.pid or '?'} is {status.phase}{since}"


def _reason(cockpit: Cockpit) -> str:
    if cockpit.causing:
        return f"the fix of {cockpit.causing.get('check')}"
    return "flags staged here" if cockpit.overrides else "by hand"
