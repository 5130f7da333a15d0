"""Launch: every flag of the engine, what is planned against what runs, the exact command, and a restart going by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from textual import work
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from console import feeds, keys
from console.errors import ConsoleError
from console.flags import FlagRow, FlagSchema, KnownFlag, read_value, rows_of, shown_value
from console.launch import LaunchPlan
from console.masking import is_secret
from console.plain import one_line, plain
from console.screens.base import ConsoleScreen
from console.screens.dialogs import Line
from console.screens.flagwords import STYLES, about_content, findings_of, flag_findings
from console.screens.saying import READ_ONLY
from console.screens.words import difference_rows
from console.topics import Topic
from console.widgets.flagtable import FlagTable
from console.widgets.steps import Steps


class LaunchScreen(ConsoleScreen):
    """Every flag that the engine on the host has, read from its own source. Enter changes one, u takes that back.

    / finds flags by words of their names and help, o shows only what is set, Esc shows all again. What the engine
    would refuse is marked, and so is what a check of flags.* found. R restarts; the timeline shows each phase with its
    time, and where it stands if it fails. b goes back to the last configuration that served well.
    """

    CSS_PATH = "launch.tcss"
    BINDINGS = keys.LAUNCH
    AUTO_FOCUS = "FlagTable"

    def __init__(self) -> None:
        super().__init__()
        self._drawn: object = None
        self._asked: object = None
        self._words = ""
        self._only_set = False
        self._rows: list[FlagRow] = []

    def body(self) -> Iterable[Widget]:
        """Flags, what is known of the one under the cursor, timeline, command."""
        self.add_class("-idle")
        with Container(id="split"):
            with Vertical(id="flags-panel", classes="panel") as flags:
                flags.border_title = "flags and environment"
                yield FlagTable(id="flags")
            with Vertical(id="side"):
                with VerticalScroll(id="about", classes="panel", can_focus=False):
                    yield Static(id="about-text")
                with VerticalScroll(id="timeline", classes="panel") as panel:
                    panel.border_title = "restart"
                    yield Steps(id="steps")
        with VerticalScroll(id="command", classes="panel") as panel:
            panel.border_title = "the command that will run"
            yield Static(id="command-text")

    def redraw(self, topic: Topic) -> None:
        """Flags on STATUS, FLAGS and CHECKS, steps on TIMELINE."""
        if self.session is None:
            return
        if topic in (Topic.STATUS, Topic.FLAGS, Topic.CHECKS):
            self._draw_plan()
        if topic is Topic.STATUS:
            self._ask_for_flags()
        if topic is Topic.TIMELINE:
            self._draw_timeline()

    def _ask_for_flags(self) -> None:
        """Read the flags once for each life of the server: the engine may be another one after a restart."""
        assert self.session is not None
        now = (self.session.last_status.pid, self.session.python)
        if now != self._asked and not self.cockpit.timeline.busy and self.session.last_status.phase != "starting":
            self._asked = now
            self._read_flags()

    @work(exclusive=True, group="flags")
    async def _read_flags(self) -> None:
        await feeds.read_flags(self.console_app.open_session, self.cockpit, self.console_app.publish)

    def _draw_plan(self) -> None:
        assert self.session is not None
        try:
            plan = self.session.plan(self.cockpit.overrides)
        except ConsoleError as error:
            self._drawn = None
            self.query_one("#command-text", Static).update(Content.styled(plain(str(error)), "$error"))
            return
        found = flag_findings(self.cockpit.board.findings)
        state = (plan, dict(self.cockpit.overrides), self.cockpit.flags, found, self._words, self._only_set)
        if state == self._drawn:
            return
        self._drawn = state
        schema = self.cockpit.flags or FlagSchema()
        self._rows = rows_of(self.session.deployment, plan, self.cockpit.overrides, schema)
        self._draw_table(schema, found)
        self._draw_command(plan)
        self._draw_about()

    def _draw_table(self, schema: FlagSchema, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        words = self._words.split()
        shown = [row for row in self._rows if (row.given or not self._only_set) and row.found_by(words)]
        marks = {row.key: STYLES[findings_of(row, found)[0]["verdict"]] for row in shown if findings_of(row, found)}
        self.query_one(FlagTable).show(shown, marks)
        panel = self.query_one("#flags-panel")
        title = "flags and environment"
        if self._words:
            title += f" – /{self._words}/ finds {len(shown)} of {len(self._rows)}, Esc shows all"
        elif schema.flags:
            title += f" – {schema.label} has {len(schema.flags)}"
        panel.border_title = Content(one_line(title))
        refused = sum(bool(row.problem) for row in self._rows)
        notes = [
            f"{len(self.cockpit.overrides)} staged" if self.cockpit.overrides else "",
            f"{refused} would be refused" if refused else "",
            "only what is set is known" if schema.why else "",
            "reading the engine's flags" if self.cockpit.flags is None else "",
        ]
        panel.border_subtitle = Content(one_line(" – ".join(filter(None, notes))))
        panel.set_class(bool(refused), "bad")

    def _draw_command(self, plan: LaunchPlan) -> None:
        body = [Content(plain(plan.shown))]
        if changes := (*plan.changes, *plan.env_changes):
            body += [
                Content(""),
                Content.styled("against the process that runs now", "$foreground-muted"),
                *difference_rows(changes),
            ]
        self.query_one("#command-text", Static).update(Content("\n").join(body))

    def _draw_about(self) -> None:
        row = self.query_one(FlagTable).current
        panel = self.query_one("#about")
        panel.border_title = Content(one_line(row.key)) if row else "nothing found"
        found = findings_of(row, flag_findings(self.cockpit.board.findings)) if row else []
        why = self.cockpit.flags.why if self.cockpit.flags else ""
        text = about_content(row, found, why) if row else Content("Esc shows all")
        self.query_one("#about-text", Static).update(text)

    def on_data_table_row_highlighted(self) -> None:
        """Say what is known of the flag under the cursor."""
        self._draw_about()

    def _draw_timeline(self) -> None:
        timeline = self.cockpit.timeline
        self.set_class(not timeline.started, "-idle")
        # A small terminal has room for one of the two; Enter on a flag says of it what is hidden.
        self.query_one("#about").set_class(bool(timeline.started), "-covered")
        if timeline.started:
            panel = self.query_one("#timeline")
            steps = self.query_one(Steps)
            steps.timeline = timeline
            steps.refresh(layout=True)
            panel.set_class(bool(timeline.error), "bad")
            panel.set_class(timeline.ended is not None and not timeline.error, "good")
            panel.scroll_end(animate=False)

    def copyable(self) -> str:
        """The exact command, secrets masked."""
        return self.session.plan(self.cockpit.overrides).shown if self.session else ""

    # -- keys ---------------------------------------------------------------------------------------------------

    def why_not(self, action: str) -> str:
        """What stages or restarts needs a host, the right to change, and no restart under way."""
        if action in ("edit", "last_good"):
            if self.console_app.read_only:
                return READ_ONLY
            if self.session is None:
                return "not connected yet"
            return "a restart is under way" if self.cockpit.timeline.busy else ""
        if action == "undo":
            return "" if self.cockpit.overrides else "no flag is staged"
        return "every flag is shown" if action == "show_all" and not (self._words or self._only_set) else ""

    @work(exclusive=True, group="flag")
    async def action_edit(self) -> None:
        """Stage another value for the flag under the cursor; an empty line drops the flag."""
        row = self.query_one(FlagTable).current
        if row is None:
            return
        if not row.editable:
            self.notify(f"{row.key}: {row.source}", markup=False)
            return
        known = row.known or KnownFlag(row.key)
        many = known.many or isinstance(row.planned, (list, tuple))
        schema = self.cockpit.flags or FlagSchema()
        typed = await self.app.push_screen_wait(
            Line(
                f"--{one_line(row.key)} (empty drops it)",
                "" if is_secret(row.key) else shown_value(row.key, row.planned) or _first_guess(known),
                f"default: {one_line(known.default_words)}" if known.default_words else "",
                about_content(row, ()),
                lambda text: one_line(schema.problem(row.key, read_value(text, many))),
                ("true",) if known.type == "switch" else known.choices,
            )
        )
        if typed is not None:
            value = read_value(typed, many)
            if value is None and row.key not in self.session_args:
                self.cockpit.overrides.pop(row.key, None)
            else:
                self.cockpit.overrides[row.key] = value
            self.console_app.publish(Topic.STATUS)

    @property
    def session_args(self) -> Mapping[str, Any]:
        """The flags of the deployment."""
        return self.console_app.deployment.server.args

    def action_undo(self) -> None:
        """Take back what is staged for the flag under the cursor, or else all of it."""
        row = self.query_one(FlagTable).current
        if row is not None and row.key in self.cockpit.overrides:
            del self.cockpit.overrides[row.key]
        else:
            self.cockpit.overrides.clear()
        self.console_app.publish(Topic.STATUS)

    @work(exclusive=True, group="search")
    async def action_search(self) -> None:
        """Show only flags with these words in their names or help; an empty line shows all."""
        words = await self.app.push_screen_wait(Line("find flags by words (empty shows all)", self._words))
        if words is not None:
            self._words = words.strip()
            self._draw_plan()

    def action_only_set(self) -> None:
        """Show only what is set, or every flag."""
        self._only_set = not self._only_set
        self._draw_plan()

    def action_show_all(self) -> None:
        """Show every flag again."""
        self._words, self._only_set = "", False
        self._draw_plan()

    def action_last_good(self) -> None:
        """Go back to the last configuration that served well."""
        if why := self.console_app.why_not("restart"):
            self.notify(why, severity="warning", markup=False)
            return
        self.console_app.action_restart(True)


def _first_guess(known: KnownFlag) -> str:
    """What a switch that is not set most likely becomes."""
    return "true" if known.type == "switch" and known.default != "True" else ""
