"""The dialogs: a question with its consequences, a text to read, a line to type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static


class Question(ModalScreen[bool]):
    """Asks before something changes: what it is, what it will do. `y` or Enter does it, `n` or Esc does not."""

    CSS_PATH = "dialogs.tcss"
    BINDINGS = [
        Binding("y,enter", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
        Binding("down,j", "scroll(1)", "Down", show=False),
        Binding("up,k", "scroll(-1)", "Up", show=False),
    ]

    def __init__(self, title: str, body: Content, yes: str, no: str = "leave it") -> None:
        super().__init__()
        self._title, self._body, self._yes, self._no = title, body, yes, no

    def compose(self) -> ComposeResult:
        """Title, body that scrolls, and the two keys."""
        keys = Content.assemble((" y ", "reverse"), f" {self._yes}   ", (" n ", "reverse"), f" {self._no}")
        with Vertical(classes="dialog"):
            yield Static(Content.styled(self._title, "bold $warning"), classes="title")
            with VerticalScroll(classes="text"):
                yield Static(self._body)
            yield Static(keys, classes="keys")

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)

    def action_scroll(self, rows: int) -> None:
        """Scroll the body."""
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)


class Reading(ModalScreen[None]):
    """A text to read: help, the command log, an error with what to do next."""

    CSS_PATH = "dialogs.tcss"
    BINDINGS = [
        Binding("escape,q,enter", "dismiss", "Back"),
        Binding("y", "copy", "Copy"),
        Binding("down,j", "scroll(1)", "Down", show=False),
        Binding("up,k", "scroll(-1)", "Up", show=False),
        Binding("pagedown,space", "scroll(15)", "Page down", show=False),
        Binding("pageup", "scroll(-15)", "Page up", show=False),
    ]

    def __init__(self, title: str, body: Content) -> None:
        super().__init__()
        self._title, self._body = title, body

    def compose(self) -> ComposeResult:
        """Title, text, keys."""
        with Vertical(classes="dialog wide"):
            yield Static(Content.styled(self._title, "bold $primary"), classes="title")
            with VerticalScroll(classes="text"):
                yield Static(self._body)
            yield Static(
                Content.assemble((" Esc ", "reverse"), " back   ", (" y ", "reverse"), " copy"), classes="keys"
            )

    @staticmethod
    def room(width: int) -> int:
        """Cells of a row of its text on a terminal of this width, as its stylesheet has it: 90 %, at most 120."""
        return min(120, width * 9 // 10) - 5

    def action_scroll(self, rows: int) -> None:
        """Scroll the text."""
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)

    def action_copy(self) -> None:
        """Copy the whole text (OSC 52)."""
        self.app.copy_to_clipboard(self._body.plain)
        self.notify("copied")


class Line(ModalScreen[str | None]):
    """Asks for one line of text; Esc gives None.

    `judge` says what is wrong with a line as it is typed. Enter then says it once more; a second Enter takes the line
    as it is, for whoever knows better. The right arrow completes to one of `offered`.
    """

    CSS_PATH = "dialogs.tcss"
    BINDINGS = [Binding("escape", "cancel", "Back")]

    def __init__(
        self,
        title: str,
        value: str = "",
        placeholder: str = "",
        below: Content | None = None,
        judge: Callable[[str], str] | None = None,
        offered: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._title, self._value, self._placeholder = title, value, placeholder
        self._below, self._judge, self._offered = below, judge, offered
        self._warned: str | None = None

    def compose(self) -> ComposeResult:
        """Title, input, what is wrong with it, and what is known of it."""
        suggester = SuggestFromList(self._offered, case_sensitive=False) if self._offered else None
        with Vertical(classes="dialog"):
            yield Static(Content.styled(self._title, "bold $primary"), classes="title")
            yield Input(self._value, placeholder=self._placeholder, suggester=suggester)
            if self._judge is not None:
                yield Static(id="judged")
            if self._below is not None:
                with VerticalScroll(classes="text", can_focus=False):
                    yield Static(self._below)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Say what is wrong with what is typed so far."""
        if self._judge is not None:
            self.query_one("#judged", Static).update(Content.styled(self._judge(event.value), "$error"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter gives the line."""
        wrong = self._judge(event.value) if self._judge is not None else ""
        if wrong and self._warned != event.value:
            self._warned = event.value
            said = Content.assemble((wrong, "$error"), ("  Enter again takes it all the same", "bold $warning"))
            self.query_one("#judged", Static).update(said)
            return
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Esc gives None."""
        self.dismiss(None)
