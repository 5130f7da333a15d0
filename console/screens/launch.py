"""Launch: the flags that will run against those that run now, the exact command, and a restart as it passes by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from textual import work
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable, Static

from console import keys
from console.errors import ConsoleError
from console.glyphs import glyphs
from console.launch import LaunchPlan
from console.masking import mask_json
from console.plain import one_line, plain
from console.screens.base import ConsoleScreen
from console.screens.dialogs import Line
from console.screens.words import difference_rows
from console.state import Timeline
from console.topics import Topic
from console.widgets.trend import fit

_STAMP = re.compile(r"^\[[^\]]*\] *")  # the server's own clock; the timeline has one already


class Steps(Widget):
    """The restart as it passes by; what a phase said is cut to the width there is."""

    DEFAULT_CSS = "Steps { height: auto; }"

    timeline: Timeline | None = None

    def render(self) -> Content:
        """One row a phase."""
        if self.timeline is None or not self.timeline.started:
            return Content("R restarts the server; each phase shows here with its time")
        return timeline_content(self.timeline, max(self.size.width, 30))


class LaunchScreen(ConsoleScreen):
    """Stages launch flags and shows the exact command before it runs. Enter changes a flag, u takes that back.

    R restarts; the timeline shows each phase with its time, and where it stands if it fails. b goes back to the last
    configuration that served well.
    """

    CSS_PATH = "launch.tcss"
    BINDINGS = keys.LAUNCH
    AUTO_FOCUS = "DataTable"

    def __init__(self) -> None:
        super().__init__()
        self._drawn: tuple[LaunchPlan, dict[str, Any]] | None = None

    def body(self) -> Iterable[Widget]:
        """Flags, command, timeline."""
        with Container(id="split"):
            table: DataTable[Content] = DataTable(id="flags", cursor_type="row", classes="panel")
            table.border_title = "flags and environment"
            yield table
            with VerticalScroll(id="timeline", classes="panel") as panel:
                panel.border_title = "restart"
                yield Steps(id="steps")
        with VerticalScroll(id="command", classes="panel") as panel:
            panel.border_title = "the command that will run"
            yield Static(id="command-text")

    def on_mount(self) -> None:
        """Columns of the table."""
        table: DataTable[Content] = self.query_one("#flags", DataTable)
        table.add_column("flag", width=34)
        table.add_column("planned", width=18)
        table.add_column("running")
        super().on_mount()

    def redraw(self, topic: Topic) -> None:
        """Flags on STATUS, steps on TIMELINE."""
        if self.session is None:
            return
        if topic is Topic.STATUS:
            self._draw_plan()
        if topic is Topic.TIMELINE:
            self._draw_timeline()

    def _draw_plan(self) -> None:
        assert self.session is not None
        try:
            plan = self.session.plan(self.cockpit.overrides)
        except ConsoleError as error:
            self._drawn = None
            self.query_one("#command-text", Static).update(Content.styled(plain(str(error)), "$error"))
            return
        state = (plan, dict(self.cockpit.overrides))
        if state == self._drawn:
            return
        self._drawn = state
        differs = {item.key.lstrip("-"): item for item in plan.changes}
        rows = [(key, _shown(value), differs.pop(key, None)) for key, value in self._flags().items()]
        table: DataTable[Content] = self.query_one("#flags", DataTable)
        row = table.cursor_row
        table.clear()
        for key, value, difference in rows:
            style = "bold $warning" if key in self.cockpit.overrides else ""
            running = (
                "" if difference is None else "absent" if difference.running is None else one_line(difference.running)
            )
            table.add_row(
                Content.styled(one_line(key), style),
                Content.styled(value, style),
                Content.styled(running, "$error"),
                key=key,
            )
        for key, difference in differs.items():
            table.add_row(
                Content.styled(one_line(key), "$foreground-muted"),
                Content.styled(
                    "absent" if difference.planned is None else one_line(difference.planned), "$foreground-muted"
                ),
                Content.styled("absent" if difference.running is None else one_line(difference.running), "$error"),
                key=f" {key}",
            )
        table.move_cursor(row=row)
        table.border_subtitle = f"{len(self.cockpit.overrides)} staged" if self.cockpit.overrides else ""
        body = [Content(plain(plan.shown))]
        if plan.changes:
            body += [
                Content(""),
                Content.styled("against the process that runs now", "$foreground-muted"),
                *difference_rows(plan.changes),
            ]
        self.query_one("#command-text", Static).update(Content("\n").join(body))

    def _draw_timeline(self) -> None:
        timeline = self.cockpit.timeline
        if timeline.started:
            panel = self.query_one("#timeline")
            steps = self.query_one(Steps)
            steps.timeline = timeline
            steps.refresh(layout=True)
            panel.set_class(bool(timeline.error), "bad")
            panel.set_class(timeline.ended is not None and not timeline.error, "good")
            panel.scroll_end(animate=False)

    def _flags(self) -> dict[str, Any]:
        assert self.session is not None
        merged: dict[str, Any] = {**self.session.deployment.server.args, **self.cockpit.overrides}
        environment = {f"env {key}": value for key, value in self.session.deployment.server.env.items()}
        return {**merged, **environment}

    @property
    def current(self) -> str | None:
        """The flag under the cursor, when it can be changed here."""
        table = self.query_one("#flags", DataTable)
        if not table.row_count:
            return None
        key = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value or ""
        return None if key.startswith((" ", "env ")) else key

    def copyable(self) -> str:
        """The exact command, secrets masked."""
        return self.session.plan(self.cockpit.overrides).shown if self.session else ""

    # -- keys ---------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Grey what cannot be done now."""
        free = self.session is not None and not self.console_app.read_only and not self.cockpit.timeline.busy
        possible = {"edit": free, "undo": bool(self.cockpit.overrides), "last_good": free}
        return True if possible.get(action, True) else None

    def on_data_table_row_selected(self) -> None:
        """Enter on a row changes that flag, where flags can be changed."""
        if self.check_action("edit", ()):
            self.action_edit()

    @work(exclusive=True, group="flag")
    async def action_edit(self) -> None:
        """Stage another value for the flag under the cursor; an empty line drops the flag."""
        key = self.current
        if key is None:
            return
        value = await self.app.push_screen_wait(Line(f"--{key} (empty drops it)", _shown(self._flags().get(key))))
        if value is not None:
            self.cockpit.overrides[key] = read_value(value)
            self.console_app.publish(Topic.STATUS)

    def action_undo(self) -> None:
        """Take back what is staged for the flag under the cursor, or else all of it."""
        key = self.current
        if key in self.cockpit.overrides:
            del self.cockpit.overrides[key]
        else:
            self.cockpit.overrides.clear()
        self.console_app.publish(Topic.STATUS)

    def action_last_good(self) -> None:
        """Go back to the last configuration that served well."""
        self.console_app.action_restart(True)


def read_value(text: str) -> Any:
    """A flag's value as typed: `true` is a bare flag, empty drops it, numbers are numbers."""
    text = text.strip()
    if not text or text == "false":
        return None
    if text == "true":
        return True
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def timeline_content(timeline: Timeline, width: int) -> Content:
    """The phases of a restart, each with the second it began, one row of `width` cells a phase."""
    g = glyphs()
    rows = [Content.styled(f"{timeline.reason}", "$foreground-muted")]
    for index, step in enumerate(timeline.steps):
        last = index == len(timeline.steps) - 1
        state = g.running if last and timeline.busy else g.bad if last and timeline.error else g.ok
        style = "$accent" if last and timeline.busy else "$error" if last and timeline.error else "$success"
        detail = fit(_STAMP.sub("", one_line(step.detail)), width - 23)
        head = Content.assemble(
            (f"{state} ", style), (f"{step.at:6.1f}s ", "$foreground-muted"), (f"{step.name:<12} ", "bold")
        )
        rows.append(head + Content(detail))
    if timeline.error:
        rows += [
            Content(""),
            Content.styled(plain(timeline.error), "bold $error"),
            Content.styled("b goes back to the last configuration that served well", "$warning"),
        ]
    return Content("\n").join(rows)


def _shown(value: Any) -> str:
    value = mask_json(value)
    if value is True:
        return "true"
    if value is None:
        return "(dropped)"
    if isinstance(value, (list, tuple)):
        return " ".join(one_line(str(item)) for item in value)
    return one_line(str(value))
