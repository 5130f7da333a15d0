"""The app: opens the session, starts what feeds the cockpit, and owns the keys that work everywhere."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

from textual import work
from textual.filter import LineFilter
from textual.signal import Signal
from textual.theme import Theme

from console import feeds, keys, paths, theming
from console.crash import secrets_of
from console.deployment import Deployment
from console.errors import ConsoleError
from console.glyphs import ASCII, glyphs
from console.screens.checks import ChecksScreen
from console.screens.dialogs import Question, Reading
from console.screens.draft import DraftScreen
from console.screens.launch import LaunchScreen
from console.screens.live import LiveScreen
from console.screens.palette import KeyCommands
from console.screens.runs import RunsScreen
from console.screens.saying import SayingApp, why_not_server
from console.screens.words import command_log, failure, help_text, restart_question, stop_question, trust_question
from console.session import Session
from console.state import Cockpit
from console.topics import Topic
from console.widgets.ascii import AsciiFilter
from remote.errors import HostKeyUnknown

REDRAW_PERIOD = 0.1  # seconds; what the screens show changes at most ten times a second


class ConsoleApp(SayingApp):
    """The cockpit of one deployment."""

    CSS_PATH = "screens/app.tcss"
    TITLE = "console"
    BINDINGS = keys.APP
    MODES: ClassVar[dict[str, Callable[[], Any]]] = {  # type: ignore[assignment]
        "live": LiveScreen,
        "draft": DraftScreen,
        "checks": ChecksScreen,
        "launch": LaunchScreen,
        "runs": RunsScreen,
    }
    DEFAULT_MODE = "live"
    COMMANDS = SayingApp.COMMANDS | {KeyCommands}
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]

    def __init__(self, deployment: Deployment, *, read_only: bool = False) -> None:
        super().__init__()
        self.deployment = deployment
        self.read_only = read_only
        self.session: Session | None = None
        self.cockpit = Cockpit()
        self.changed: Signal[frozenset[Topic]] = Signal(self, "changed")
        self._changes: set[Topic] = set()
        themes = list(theming.read_themes(paths.config_dir() / "themes"))
        self._themes = [name for name, _ in themes]
        for name, values in themes:
            self.register_theme(Theme(name=name, **values))
        self.theme = theming.DEFAULT
        self._ascii = [AsciiFilter()] if glyphs() is ASCII else []

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Where the locale is not UTF-8, the last filter leaves ASCII only."""
        return [*super().get_line_filters(), *self._ascii]

    def on_mount(self) -> None:
        """Connect at once; the screen is there before the host answers."""
        self.connect()

    def secrets(self) -> tuple[str, ...]:
        """What a crash must not show."""
        return secrets_of(self.deployment, self.session.last_status.argv if self.session else ())

    async def on_unmount(self) -> None:
        """Close the link, once no screen is left whose work could want it."""
        if self.session is not None:
            await self.session.close()

    # -- workers -----------------------------------------------------------------------------------------------

    @work(exclusive=True, group="connect")
    async def connect(self) -> None:
        """Open the session, asking about an unknown host key, then start what feeds the screens."""
        try:
            self.session = await Session.open(self.deployment, trust=self._trust, read_only=self.read_only)
        except feeds.OPERATIONAL as error:
            self.fail("the host could not be opened", error)
            return
        try:
            await self.session.draft.load()
        except feeds.OPERATIONAL as error:
            self.fail("the draft's config could not be read", error)
        self.cockpit.connected = True
        gc.freeze()  # what is there now stays: looking through it again and again would stop the screen for 70 ms
        self._follow(self.session)
        self._watch(self.session)
        self._watch_gpus(self.session)
        self._watch_positions(self.session)
        self.look()
        for topic in (Topic.DRAFT, Topic.RUNS):
            self.publish(topic)

    @work(exclusive=True, group="follow")
    async def _follow(self, session: Session) -> None:
        await feeds.follow_log(session, self.cockpit, self.live.add_events, self.publish, self.fail)

    @work(exclusive=True, group="watch")
    async def _watch(self, session: Session) -> None:
        await feeds.watch_server(session, self.cockpit, self.publish)

    @work(exclusive=True, group="gpus")
    async def _watch_gpus(self, session: Session) -> None:
        await feeds.watch_gpus(session, self.cockpit, self.publish)

    @work(exclusive=True, group="positions")
    async def _watch_positions(self, session: Session) -> None:
        await feeds.watch_positions(session, self.publish)

    @work(exclusive=True, group="check")
    async def look(self) -> None:
        """Learn the wiring without being asked."""
        await feeds.first_look(self.open_session, self.cockpit, self.publish)

    @work(exclusive=True, group="check")
    async def run_checks(self, only: tuple[str, ...] = ()) -> None:
        """Run the checks on the host; cancelling the worker kills the run there."""
        if self.session:
            await feeds.run_checks(self.session, self.cockpit, only, self.publish, self.fail)

    @work(exclusive=True, group="server")
    async def run_restart(self, reason: str, last_good: bool = False) -> None:
        """Stop, start, and show each phase as it passes."""
        if self.session:
            await feeds.restart(self.session, self.cockpit, reason, last_good, self.publish, self.fail)

    @work(exclusive=True, group="server")
    async def run_stop(self) -> None:
        """Stop the server, with proof that it is ours."""
        try:
            await self.open_session.stop("by hand")
        except feeds.OPERATIONAL as error:
            self.fail("the server was not stopped", error)
        self.publish(Topic.STATUS)

    # -- keys that work everywhere ------------------------------------------------------------------------------

    def why_not(self, action: str) -> str:
        """What cannot be done to the server now, and why."""
        return why_not_server(action, self.session, self.cockpit) if action in ("restart", "stop") else ""

    def action_go(self, mode: str) -> None:
        """Show a screen."""
        self.switch_mode(mode)

    @work(exclusive=True, group="ask")
    async def action_restart(self, last_good: bool = False) -> None:
        """Ask, say what will change, and restart."""
        session = self.open_session
        try:
            await session.status()
            body = restart_question(session, self.cockpit, last_good=last_good)
        except feeds.OPERATIONAL as error:
            self.fail("the restart cannot be planned", error)
            return
        does = "restart" if session.last_status.up else "start"
        if await self.push_screen_wait(Question(f"{does.capitalize()} the server?", body, does)):
            self.switch_mode("launch")
            causing = self.cockpit.causing
            reason = "last good" if last_good else f"fix of {causing['check']}" if causing else "by hand"
            self.run_restart(reason, last_good)

    @work(exclusive=True, group="ask")
    async def action_stop(self) -> None:
        """Ask, and stop."""
        if await self.push_screen_wait(Question("Stop the server?", stop_question(self.open_session), "stop")):
            self.run_stop()

    def action_help(self) -> None:
        """The keys of this screen, in words."""
        self.push_screen(Reading("help", help_text(self.screen, keys.APP, Reading.room(self.size.width))))

    def action_commands(self) -> None:
        """Every command the console ran on the host."""
        self.push_screen(Reading("commands run on the host", command_log(self.session)))

    def action_next_theme(self) -> None:
        """The next theme."""
        at = self._themes.index(self.theme) if self.theme in self._themes else -1
        self.theme = self._themes[(at + 1) % len(self._themes)]

    def action_copy(self) -> None:
        """Copy what the screen says is worth copying (OSC 52)."""
        if text := self.screen.copyable() if hasattr(self.screen, "copyable") else "":
            self.copy_to_clipboard(text)
            self.notify("copied")

    def action_leave(self) -> None:
        """Quit; the server keeps running."""
        self.exit()

    # -- what screens ask of the app ----------------------------------------------------------------------------

    def publish(self, topic: Topic) -> None:
        """Tell every screen that a part of the cockpit changed; many changes in a moment are told once."""
        if not self._changes:
            self.set_timer(REDRAW_PERIOD, self._tell)
        self._changes.add(topic)

    def _tell(self) -> None:
        changes, self._changes = self._changes, set()
        self.changed.publish(frozenset(changes))

    def fail(self, what: str, error: BaseException) -> None:
        """Show what could not be done, why, and what to do next."""
        self.cockpit.error = str(error)
        self.push_screen(Reading(what, failure(error)))

    @property
    def live(self) -> LiveScreen:
        """The live screen: there from the start, it keeps the log."""
        return cast(LiveScreen, self._screen_stacks["live"][0])

    @property
    def open_session(self) -> Session:
        """The session. Raises ConsoleError before the host is connected."""
        if self.session is None:
            raise ConsoleError("not connected yet: wait for the link")
        return self.session

    async def _trust(self, unknown: HostKeyUnknown) -> bool:
        question = Question("Unknown host key", trust_question(unknown), "trust it", "refuse")
        return await self.push_screen_wait(question) is True


def run(deployment: Deployment, *, read_only: bool = False) -> int:
    """Open the app and return the exit code."""
    app = ConsoleApp(deployment, read_only=read_only)
    app.run()
    return app.return_code or 0
