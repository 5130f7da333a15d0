"""What every screen shares: the top line, the bottom line, and redrawing when a topic changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer

from console.topics import Topic
from console.widgets.topline import TopLine

if TYPE_CHECKING:
    from console.app import ConsoleApp
    from console.session import Session
    from console.state import Cockpit


class ConsoleScreen(Screen[None]):
    """A screen of the cockpit. Subclasses give `body` and say in `redraw` what a changed topic means to them."""

    AUTO_FOCUS = "*"

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

    def compose(self) -> ComposeResult:
        """Top line, body, bottom line."""
        yield TopLine()
        yield from self.body()
        yield Footer(show_command_palette=False)

    def body(self) -> Iterable[Widget]:
        """The widgets between the two lines."""
        return ()

    def redraw(self, topic: Topic) -> None:
        """A part of the cockpit changed."""

    def on_mount(self) -> None:
        """Listen for changes, and draw what is known already."""
        self.console_app.changed.subscribe(self, self._on_changed, immediate=True)
        self.set_interval(1.0, self._show_topline)
        self._redraw_all()

    def on_screen_resume(self) -> None:
        """Draw what changed while another screen was in front."""
        self._redraw_all()

    def _redraw_all(self) -> None:
        self._show_topline()
        for topic in Topic:
            if topic is not Topic.LOG:
                self.redraw(topic)
        self.refresh_bindings()

    def _on_changed(self, topic: Topic) -> None:
        if not self.is_mounted:
            return
        if self.is_current or topic is Topic.LOG:
            self.redraw(topic)
        if topic is not Topic.LOG:
            self._show_topline()
            self.refresh_bindings()

    def _show_topline(self) -> None:
        line = self.query(TopLine)
        if line:
            line.first().value = self.console_app.topline()
