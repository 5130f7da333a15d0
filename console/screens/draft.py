"""Draft: the config.json on the host, what is staged to replace it, and what that would rewire."""

from __future__ import annotations

import time
from collections.abc import Iterable

from textual import work
from textual.binding import Binding
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.theme import Theme
from textual.widget import Widget
from textual.widgets import Static, TextArea

from console import keys
from console.errors import ChangedMeanwhile, DraftError
from console.feeds import OPERATIONAL
from console.plain import one_line
from console.screens.base import ConsoleScreen
from console.screens.dialogs import Line, Question
from console.screens.saying import READ_ONLY
from console.screens.words import failure, versions_content
from console.topics import Topic
from console.widgets.diff import DiffView, diff_content
from console.widgets.syntax import syntax_theme
from console.widgets.wiring import WiringStrip


class ConfigText(TextArea):
    """The config as text. In view mode single letters go to the screen; in the editor every key types, Esc leaves."""

    BINDINGS = [Binding("escape", "leave", "Done editing", show=True)]

    class Left(Message):
        """The editor was left."""

    def on_mount(self) -> None:
        """The colours of the app's theme, whichever it is."""
        self.app.theme_changed_signal.subscribe(self, self._take_colours)
        self._take_colours(self.app.current_theme)

    def _take_colours(self, theme: Theme) -> None:
        self.register_theme(syntax_theme(theme))
        self.theme = theme.name

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Esc means something only while editing."""
        return not self.read_only if action == "leave" else True

    def on_resize(self) -> None:
        """In a terminal of another size the line at hand stays in sight."""
        self.call_after_refresh(self.scroll_cursor_visible, center=True)

    def action_leave(self) -> None:
        """Back to view mode; what was typed stays staged."""
        self.read_only = True
        self.refresh_bindings()
        self.post_message(self.Left())


class DraftScreen(ConsoleScreen):
    """Edits the draft's config.json. e enters the editor, Esc leaves it; w shows the diff, asks, and writes.

    A write is atomic and keeps the previous version; u takes back the last staged edit, x all that is
    staged, z brings back a version.
    """

    CSS_PATH = "draft.tcss"
    BINDINGS = keys.DRAFT
    AUTO_FOCUS = "ConfigText"
    _judged = ""

    def body(self) -> Iterable[Widget]:
        """Config on the left; diff, wiring and history on the right."""
        with Container(id="split"):
            text = ConfigText("", language="json", read_only=True, show_line_numbers=True, id="config", classes="panel")
            text.border_title = "config.json"
            yield text
            with Vertical(id="side"):
                with VerticalScroll(id="diff", classes="panel") as panel:
                    panel.border_title = "staged against the host"
                    yield DiffView()
                    yield Static(id="remarks")
                with VerticalScroll(id="would", classes="panel", can_focus=False) as panel:
                    panel.border_title = "wiring as it would become"
                    yield WiringStrip()
                with VerticalScroll(id="versions", classes="panel") as panel:
                    panel.border_title = "history"
                    yield Static(id="history")

    def redraw(self, topic: Topic) -> None:
        """Everything on DRAFT, the wiring on CHECKS."""
        if self.session is None or not self.session.draft.loaded:
            return
        if topic in (Topic.DRAFT, Topic.CHECKS):
            self._draw()

    def _draw(self) -> None:
        session = self.session
        assert session is not None
        draft, text = session.draft, self.query_one(ConfigText)
        if text.text != draft.staged and text.read_only:
            line = first_difference(draft.base if draft.dirty else text.text, draft.staged)
            text.text = draft.staged
            text.move_cursor((line, 0))
            # Only once it is laid out is it known where its middle is.
            self.call_after_refresh(text.scroll_cursor_visible, center=True)
        text.border_title = Content(one_line(draft.path))
        text.border_subtitle = (
            "editing: Esc ends" if not text.read_only else "staged, not written" if draft.dirty else "as on the host"
        )
        changes = [one_line(change.words) for change in draft.changes()]
        self.query_one(DiffView).show(draft.base, draft.staged, names=("on the host", "staged"), changes=changes)
        self.query_one("#would WiringStrip", WiringStrip).wiring = session.wiring_of(draft.staged)
        self.query_one("#diff").set_class(draft.dirty, "good")
        self.set_class(not draft.dirty, "-clean")
        self._diagnose()
        self._history()

    @work(exclusive=True, group="diagnose")
    async def _diagnose(self) -> None:
        assert self.session is not None
        if self._judged != self.session.draft.staged:
            self._judged = self.session.draft.staged
            self.query_one("#remarks", Static).update("")
        try:
            remarks = await self.session.draft.diagnose()
        except OPERATIONAL as error:
            remarks = []
            self.query_one("#remarks", Static).update(failure(error))
            return
        rows = [
            Content.assemble(
                (f"line {item.line} ", "$foreground-muted"),
                (one_line(item.text), "$error" if item.verdict == "FAIL" else "$warning"),
            )
            for item in remarks
        ]
        self.query_one("#remarks", Static).update(Content("\n").join(rows))

    @work(exclusive=True, group="history")
    async def _history(self) -> None:
        assert self.session is not None
        versions = await self.session.draft.history()
        self.query_one("#history", Static).update(versions_content(versions, self.session.draft.base_sha, time.time()))

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Typing stages; mistakes are said at once."""
        if self.session is None or event.text_area.read_only:
            return
        self.session.draft.edit(event.text_area.text)
        self.console_app.publish(Topic.DRAFT)

    def on_config_text_left(self) -> None:
        """Say again how what is staged stands to the host."""
        self._draw()

    def copyable(self) -> str:
        """The staged config."""
        return self.session.draft.staged if self.session else ""

    # -- keys ---------------------------------------------------------------------------------------------------

    def why_not(self, action: str) -> str:
        """What needs a config that was read, the right to change it, or something staged."""
        if action not in ("edit", "restore", "write", "undo", "discard"):
            return ""
        draft = self.session.draft if self.session else None
        if self.console_app.read_only:
            return READ_ONLY
        if draft is None or not draft.loaded:
            return "the draft's config.json is not read yet"
        return "" if draft.dirty or action in ("edit", "restore") else "nothing is staged"

    def action_edit(self) -> None:
        """Enter the editor."""
        text = self.query_one(ConfigText)
        text.read_only = False
        text.focus()
        self.refresh_bindings()
        self._draw()

    def action_undo(self) -> None:
        """Take back the last staged edit."""
        assert self.session is not None
        self.session.draft.undo()
        self.query_one(ConfigText).text = self.session.draft.staged
        self.console_app.publish(Topic.DRAFT)

    @work(exclusive=True, group="write")
    async def action_discard(self) -> None:
        """Ask, and drop everything staged."""
        assert self.session is not None
        draft = self.session.draft
        body = diff_content(draft.base, draft.staged, names=("on the host", "staged"))
        if await self.app.push_screen_wait(Question("Discard what is staged?", body, "discard it")):
            draft.discard()
            self.query_one(ConfigText).text = draft.staged
            self.console_app.publish(Topic.DRAFT)

    @work(exclusive=True, group="write")
    async def action_write(self) -> None:
        """Show the diff, ask, and write atomically; the previous version is kept."""
        assert self.session is not None
        draft = self.session.draft
        body = diff_content(
            draft.base,
            draft.staged,
            names=("on the host", "staged"),
            changes=[one_line(change.words) for change in draft.changes()],
        )
        if not await self.app.push_screen_wait(Question(f"Write {one_line(draft.path)}?", body, "write it")):
            return
        causing = draft.finding
        try:
            written = await draft.write("fix" if causing else "by hand")
        except ChangedMeanwhile as error:
            await self._merge(error)
            return
        except OPERATIONAL as error:
            self.console_app.fail("nothing was written", error)
            return
        self.cockpit.causing = dict(causing) if causing else self.cockpit.causing
        self.notify(
            f"written; the previous version is {one_line(written.backup_path)}. R restarts the server with it",
            markup=False,
        )
        self.console_app.publish(Topic.DRAFT)

    async def _merge(self, error: ChangedMeanwhile) -> None:
        """The file changed on the host: theirs with our changes on top, or theirs alone; never overwritten silently."""
        assert self.session is not None
        draft = self.session.draft
        three_way = draft.three_way
        if three_way is not None and three_way.merged is not None:
            body = diff_content(three_way.theirs, three_way.merged, names=("on the host now", "merged"))
            title = "It changed on the host meanwhile. Stage your changes on top of theirs?"
            if await self.app.push_screen_wait(
                Question(title, body, "stage the merge", "keep mine staged, write nothing")
            ):
                draft.take_merged()
        else:
            body = Content(
                f"{error}\n\nBoth sides changed: {', '.join(three_way.conflicts) if three_way else 'unknown'}"
            )
            if await self.app.push_screen_wait(
                Question("Conflict: take theirs, and edit again?", body, "take theirs", "keep mine staged")
            ):
                draft.take_theirs()
        self.console_app.publish(Topic.DRAFT)

    @work(exclusive=True, group="restore")
    async def action_restore(self) -> None:
        """Stage an earlier version by its number."""
        assert self.session is not None
        # Where the terminal is small the history is not on the screen: it stands below the question.
        draft = self.session.draft
        versions = versions_content(await draft.history(), draft.base_sha, time.time())
        number = await self.app.push_screen_wait(Line("restore which version? (its number)", below=versions))
        if not number:
            return
        try:
            await self.session.draft.restore(number.strip())
        except DraftError as error:
            self.notify(str(error), severity="error", markup=False)
        self.console_app.publish(Topic.DRAFT)

    @work(exclusive=True, group="write")
    async def action_reload(self) -> None:
        """Look at the host again; nothing staged is lost."""
        assert self.session is not None
        try:
            changed = await self.session.draft.refresh()
            self.notify("it had changed on the host" if changed else "unchanged on the host")
        except OPERATIONAL as error:
            self.console_app.fail("the config could not be read", error)
        self.console_app.publish(Topic.DRAFT)


def first_difference(before: str, after: str) -> int:
    """The first line, counted from 0, on which two texts differ; 0 when one is empty or they do not."""
    if not before:
        return 0
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    return next((number for number, (old, new) in enumerate(pairs) if old != new), 0)
