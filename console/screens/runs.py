"""Runs: every life of the server, what changed, and what it measured; two of them side by side."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from textual import work
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable, Static

from console import keys
from console.feeds import OPERATIONAL
from console.plain import one_line
from console.runs import Run
from console.screens.base import ConsoleScreen
from console.screens.words import failure
from console.topics import Topic
from console.widgets.topline import elapsed_words

_VERDICT_STYLES = {"PASS": "$success", "INFO": "$success", "WARN": "$warning", "FAIL": "bold $error"}


# What was measured comes before why: at 80 columns it must be seen.
_COLUMNS = (
    (" ", 1),
    ("run", 4),
    ("state", 8),
    ("verdict", 7),
    ("accept", 6),
    ("tok/s", 7),
    ("when", 9),
    ("why", 20),
    ("config", 8),
)


class RunsScreen(ConsoleScreen):
    """The history of this deployment. Space marks a run, = compares the two marked last."""

    CSS_PATH = "runs.tcss"
    BINDINGS = keys.RUNS
    AUTO_FOCUS = "DataTable"

    def __init__(self) -> None:
        super().__init__()
        self._runs: list[Run] = []
        self._marked: list[int] = []

    def body(self) -> Iterable[Widget]:
        """The table, and the comparison below."""
        table: DataTable[Content] = DataTable(id="runs", cursor_type="row", classes="panel")
        table.border_title = "runs"
        yield table
        with VerticalScroll(id="compared", classes="panel") as panel:
            panel.border_title = "compared"
            yield Static("Space marks two runs, = compares them", id="comparison")

    def on_mount(self) -> None:
        """Columns of the table."""
        table: DataTable[Content] = self.query_one("#runs", DataTable)
        for title, width in _COLUMNS:
            table.add_column(title, width=width)
        super().on_mount()

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
        table: DataTable[Content] = self.query_one("#runs", DataTable)
        row = table.cursor_row
        table.clear()
        for run in self._runs:
            table.add_row(*self._cells(run))
        table.move_cursor(row=row)

    def _cells(self, run: Run) -> list[Content]:
        mark = "◆" if run.id in self._marked else ""
        verdict = run.verdict or ""
        accept, speed = self._measured(run)
        return [
            Content.styled(mark, "bold $warning"),
            Content(str(run.id)),
            Content(run.state),
            Content.styled(verdict, _VERDICT_STYLES.get(verdict, "$foreground-muted")),
            Content.styled(_number(accept), "bold"),
            Content(_number(speed)),
            Content(f"{elapsed_words(time.time() - run.started)} ago"),
            Content(one_line(run.why)),
            Content.styled((run.config_sha or "")[:8], "$foreground-muted"),
        ]

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
        row = self.query_one("#runs", DataTable).cursor_row
        if not 0 <= row < len(self._runs):
            return
        number = self._runs[row].id
        self._marked = (
            [item for item in self._marked if item != number]
            if number in self._marked
            else [*self._marked, number][-2:]
        )
        self._load()

    def action_compare(self) -> None:
        """The two marked runs side by side; without marks the newest two."""
        by_id = {run.id: run for run in self._runs}
        chosen = [by_id[number] for number in self._marked if number in by_id] or self._runs[:2]
        if len(chosen) < 2:
            self.notify("two runs are needed: Space marks one", severity="warning")
            return
        measured = [
            replace(run, accept_len=accept, tokens_per_s=speed)
            for run in chosen
            for accept, speed in [self._measured(run)]
        ]
        before, after = sorted(measured, key=lambda run: run.started)[:2]
        self.query_one("#comparison", Static).update(comparison(before, after))


def comparison(before: Run, after: Run) -> Content:
    """Two runs: outcome side by side, then the flags and variables that differ."""
    rows = [Content.assemble((f"{'':<14}", ""), (f"run {before.id:<20}", "bold"), (f"run {after.id}", "bold"))]
    for name, one, two in (
        ("why", before.why, after.why),
        ("state", before.state, after.state),
        ("verdict", before.verdict or "–", after.verdict or "–"),
        ("accept length", _number(before.accept_len), _number(after.accept_len)),
        ("tok/s", _number(before.tokens_per_s), _number(after.tokens_per_s)),
        ("config", (before.config_sha or "–")[:8], (after.config_sha or "–")[:8]),
    ):
        style = "" if one == two else "bold"
        rows.append(
            Content.assemble(
                (f"{name:<14}", "$foreground-muted"), (f"{one_line(one):<24}", style), (one_line(two), style)
            )
        )
    gone, came = (
        [word for word in before.argv if word not in after.argv],
        [word for word in after.argv if word not in before.argv],
    )
    rows += [Content.styled(f"- {one_line(word)}", "$error") for word in gone] + [
        Content.styled(f"+ {one_line(word)}", "$success") for word in came
    ]
    return Content("\n").join(rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
