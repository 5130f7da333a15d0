"""Runs: every life of the server, what changed, and what it measured; two of them side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import replace

from textual import work
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from console import keys
from console.comparing import Comparison, compare
from console.feeds import OPERATIONAL
from console.glyphs import glyphs
from console.plain import one_line
from console.runs import Run
from console.screens.base import ConsoleScreen
from console.screens.words import failure
from console.topics import Topic
from console.widgets.runtable import Cell, Column, RunTable
from console.widgets.topline import elapsed_words

_VERDICT_STYLES = {"PASS": "$success", "INFO": "$success", "WARN": "$warning", "FAIL": "bold $error"}


# What was measured comes before why: at 80 columns it must be seen.
_COLUMNS = (
    Column(""),
    Column("run", number=True),
    Column("state"),
    Column("verdict"),
    Column("accept", number=True),
    Column("tok/s", number=True),
    Column("when", number=True),
    Column("config", last_resort=True),
    Column("why"),
)
_SPACE = "two runs are set side by side here: there are not two yet"
_UNCHECKED = "not checked"


class RunsScreen(ConsoleScreen):
    """The history of this deployment, and two runs of it side by side: the newest two until two are marked.

    Space marks a run, = compares the two marked last. A run's verdict is that of the last complete run of the checks on
    it (3, then c).
    """

    CSS_PATH = "runs.tcss"
    BINDINGS = keys.RUNS
    AUTO_FOCUS = "RunTable"

    def __init__(self) -> None:
        super().__init__()
        self._runs: list[Run] = []
        self._marked: list[int] = []
        self._compared: list[Run] = []

    def body(self) -> Iterable[Widget]:
        """The table, and the comparison below."""
        table = RunTable(_COLUMNS, id="runs", classes="panel")
        table.border_title = "runs"
        yield table
        with VerticalScroll(id="compared", classes="panel") as panel:
            panel.border_title = "compared"
            yield Static(Content.styled(_SPACE, "$foreground-muted"), id="comparison")

    def redraw(self, topic: Topic) -> None:
        """The table on RUNS and STATUS."""
        if self.session is not None and topic in (Topic.RUNS, Topic.STATUS, Topic.CHECKS):
            self._load()

    @work(exclusive=True, group="runs")
    async def _load(self) -> None:
        assert self.session is not None
        try:
            self._runs = await self.session.runs.list(self.session.deployment.name)
        except OPERATIONAL as error:
            self.query_one("#comparison", Static).update(failure(error))
            return
        self.query_one(RunTable).show([self._cells(run) for run in self._runs])
        if not self._marked and len(self._runs) > 1:
            await self._set_side_by_side(self._runs[:2])

    def _cells(self, run: Run) -> tuple[Cell, ...]:
        verdict = run.verdict or _UNCHECKED
        accept, speed = self._measured(run)
        return (
            (glyphs().mark if run.id in self._marked else " ", "bold $warning"),
            (str(run.id), ""),
            (run.state, ""),
            (verdict, _VERDICT_STYLES.get(verdict, "$foreground-muted")),
            (_number(accept), "bold"),
            (_number(speed, 1), ""),
            (f"{elapsed_words(time.time() - run.started)} ago", ""),
            ((run.config_sha or "")[:8], "$foreground-muted"),
            (one_line(run.why), ""),
        )

    def _measured(self, run: Run) -> tuple[float | None, float | None]:
        """Accept length and tokens/s: what was recorded, and for the run that serves now, what it shows so far."""
        assert self.session is not None
        serving, status = self.session.serving, self.session.last_status
        if run.accept_len is None and run.pid is not None and run.pid == status.pid and run.ended is None:
            return serving.mean_accept_len, serving.usual_tokens_per_s
        return run.accept_len, run.tokens_per_s

    # -- keys ---------------------------------------------------------------------------------------------------

    def action_mark(self) -> None:
        """Mark the run under the cursor, or unmark it; the two marked last count."""
        row = self.query_one(RunTable).cursor_row
        if not 0 <= row < len(self._runs):
            return
        number = self._runs[row].id
        self._marked = (
            [item for item in self._marked if item != number]
            if number in self._marked
            else [*self._marked, number][-2:]
        )
        self._load()

    @work(exclusive=True, group="compare")
    async def action_compare(self) -> None:
        """The two marked runs side by side; without marks the newest two."""
        by_id = {run.id: run for run in self._runs}
        chosen = [by_id[number] for number in self._marked if number in by_id] or self._runs[:2]
        if len(chosen) < 2:
            self.notify("two runs are needed: Space marks one", severity="warning")
            return
        await self._set_side_by_side(chosen)

    async def _set_side_by_side(self, chosen: list[Run]) -> None:
        """Compare two runs, where they or their order are not what stands there already."""
        assert self.session is not None
        measured = [
            replace(run, accept_len=accept, tokens_per_s=speed)
            for run in chosen
            for accept, speed in [self._measured(run)]
        ]
        before, after = sorted(measured, key=lambda run: run.started)[:2]
        if self._compared == [before, after]:
            return
        try:
            found = await compare(self.session.runs, before, after)
        except OPERATIONAL as error:
            self.console_app.fail("the runs could not be compared", error)
            return
        self._compared = [before, after]
        self.query_one("#comparison", Static).update(comparison(found))


def comparison(found: Comparison) -> Content:
    """Two runs: outcome side by side, then what differs of command, environment and the draft's config."""
    before, after = found.before, found.after
    rows = [
        ("why", before.why, after.why),
        ("verdict", before.verdict or _UNCHECKED, after.verdict or _UNCHECKED),
        ("accept length", _number(before.accept_len), _against(before.accept_len, after.accept_len, 2)),
        ("tok/s", _number(before.tokens_per_s, 1), _against(before.tokens_per_s, after.tokens_per_s, 1)),
    ]
    if found.benches is not None:
        one, two = found.benches
        rows.append(("bench accept", one.accept.words(), two.accept.words()))
        rows.append(("bench tok/s", one.speed.words(), two.speed.words()))
    rows += [
        ("state", before.state, after.state),
        ("config", (before.config_sha or "–")[:8], (after.config_sha or "–")[:8]),
    ]
    head = ("", f"run {before.id}", f"run {after.id}")
    name, left = (max(len(one_line(row[index])) for row in [head, *rows]) + 2 for index in (0, 1))
    lines = [Content.styled(f"{head[0]:<{name}}{head[1]:<{left}}{head[2]}", "bold")]
    for title, one_side, other in rows:
        style = "" if one_side == other else "bold"
        words = f"{one_line(one_side):<{left}}{one_line(other)}"
        lines.append(Content.assemble((f"{title:<{name}}", "$foreground-muted"), (words, style)))
    return Content("\n").join([*lines, *_change_rows(found)])


def _change_rows(found: Comparison) -> list[Content]:
    """One row a thing that differs: its kind and name, what it was, what it became."""
    if not found.changes:
        return [Content.styled("same command, environment and config", "$foreground-muted")]
    return [
        Content.assemble(
            (f"{item.kind} ", "$foreground-muted"),
            (f"{one_line(item.name)}  ", "bold"),
            (_said(item.before), "$error"),
            (f" {glyphs().arrow} ", "$foreground-muted"),
            (_said(item.after), "$success"),
        )
        for item in found.changes
    ]


def _said(value: object) -> str:
    if value is None:
        return "absent"
    return (one_line(value) or "set") if isinstance(value, str) else one_line(json.dumps(value, ensure_ascii=False))


def _against(before: float | None, after: float | None, digits: int) -> str:
    change = f"  {100 * (after / before - 1):+.1f}%" if before and after is not None else ""
    return _number(after, digits) + change


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
