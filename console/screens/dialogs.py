"""The dialogs: a question with its consequences, a text to read, a line to type."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
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

    def action_scroll(self, rows: int) -> None:
        """Scroll the text."""
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)

    def action_copy(self) -> None:
        """Copy the whole text (OSC 52)."""
        self.app.copy_to_clipboard(self._body.plain)
        self.notify("copied")


class Line(ModalScreen[str | None]):
    """Asks for one line of text; Esc gives None."""

    CSS_PATH = "dialogs.tcss"
    BINDINGS = [Binding("escape", "cancel", "Back")]

    def __init__(self, title: str, value: str = "", placeholder: str = "") -> None:
        super().__init__()
        self._title, self._value, self._placeholder = title, value, placeholder

    def compose(self) -> ComposeResult:
        """Title and input."""
        with Vertical(classes="dialog"):
            yield Static(Content.styled(self._title, "bold $primary"), classes="title")
            yield Input(self._value, placeholder=self._placeholder)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter gives the line."""
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Esc gives None."""
        self.dismiss(None)
