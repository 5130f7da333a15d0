"""What every screen shares: the top line, the bottom line, and redrawing when a topic changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from textual.app import ComposeResult
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widget import Widget
from textual.worker import Worker, WorkType

from console.plain import one_line
from console.screens.saying import Saying
from console.topics import Topic
from console.widgets.keyline import KeyLine
from console.widgets.topline import TopLine, TopLineValue

if TYPE_CHECKING:
    from console.app import ConsoleApp
    from console.session import Session
    from console.state import Cockpit


class ConsoleScreen(Saying, Screen[None]):
    """A screen of the cockpit. Subclasses give `body` and say in `redraw` what a changed topic means to them."""

    AUTO_FOCUS = "*"
    _possible: tuple[bool, ...] = ()

    @property
    def console_app(self) -> ConsoleApp:
        """The app, with its own type."""
        return cast("ConsoleApp", self.app)

    @property
    def session(self) -> Session | None:
        """The open session; None until the host is connected."""
        return self.console_app.session

    @property
    def cockpit(self) -> Cockpit:
        """What is shown that is not the session's own."""
        return self.console_app.cockpit

    def run_worker(self, work: WorkType[object], *args: Any, **options: Any) -> Worker[Any]:
        """Run work that ends with the app: Textual takes a screen's parts away before it cancels the screen's work."""

        async def while_running() -> None:
            try:
                await (work() if callable(work) else work)  # type: ignore[misc]
            except NoMatches:
                if self.app.is_running:
                    raise

        return super().run_worker(while_running, *args, **options)

    def compose(self) -> ComposeResult:
        """Top line, body, bottom line."""
        yield TopLine()
        yield from self.body()
        yield KeyLine()

    def body(self) -> Iterable[Widget]:
        """The widgets between the two lines."""
        return ()

    def redraw(self, topic: Topic) -> None:
        """A part of the cockpit changed."""

    def on_mount(self) -> None:
        """Listen for changes, and draw what is known already."""
        self.console_app.changed.subscribe(self, self._on_changed)
        self.set_interval(1.0, self._show_topline)
        self._on_changed(frozenset(Topic))

    def on_screen_resume(self) -> None:
        """Draw what changed while another screen was in front."""
        self._on_changed(frozenset(Topic))

    def _on_changed(self, topics: frozenset[Topic]) -> None:
        if not self.is_current or not self.query(TopLine):
            return
        for topic in sorted(topics, key=list(Topic).index):
            self.redraw(topic)
        self._show_topline()
        self.show_keys()

    def show_keys(self) -> None:
        """Draw the bottom line anew, but only when what can be done has changed: it is costly."""
        possible = tuple(binding.enabled for binding in self.active_bindings.values())
        if possible != self._possible:
            self._possible = possible
            self.refresh_bindings()

    def _show_topline(self) -> None:
        line = self.query(TopLine)
        if line:
            line.first().value = topline_value(self.console_app)


def topline_value(app: ConsoleApp) -> TopLineValue:
    """The values of the top line now."""
    session, where = app.session, app.deployment.host.ssh or "local"
    if session is None:
        phase = "" if app.cockpit.error else "connecting"
        return TopLineValue(app.deployment.name, where, phase=phase, read_only=app.read_only)
    status, serving, link = session.last_status, session.serving, session.host.state
    return TopLineValue(
        deployment=app.deployment.name,
        host=where,
        linked=link.connected,
        silence=link.silent_seconds,
        engine=one_line(status.engine),
        phase=status.phase or "looking",
        since=status.since,
        accept_len=serving.accept_len,
        ceiling=serving.ceiling,
        tokens_per_s=serving.usual_tokens_per_s,
        baseline=serving.baseline,
        read_only=app.read_only,
        stale=serving.stale or not status.up,
    )
