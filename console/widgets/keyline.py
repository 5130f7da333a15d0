"""The bottom line: the keys that work here and now; what does not fit is left out whole, never cut in a word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.keys import key_to_character
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import TextArea

from console.keys import HELP, QUIT, key_words


@dataclass(frozen=True, slots=True)
class Key:
    """A key as the line shows it; `screen` is the mode it goes to, for those that only go somewhere."""

    key: str
    words: str
    enabled: bool = True
    screen: str = ""
    action: str = ""

    @property
    def width(self) -> int:
        """Cells of the key and its words."""
        return len(key_words(self.key)) + (len(self.words) + 1 if self.words else 0)


@dataclass(frozen=True, slots=True)
class KeyRow:
    """What fits: the keys, and the cells between two of them."""

    keys: tuple[Key, ...]
    gap: int

    @property
    def begin(self) -> int:
        """Cells in front of the first key."""
        return self.gap - 1

    @property
    def width(self) -> int:
        """Cells it takes."""
        return self.begin + sum(key.width for key in self.keys) + sum(self.between(key) for key in self.keys[1:])

    def between(self, key: Key) -> int:
        """Cells in front of a key that is not the first: those that go to screens stand together."""
        return self.gap if not key.screen or key == self.gone_to[0] else 1 if key.words else 0

    @property
    def gone_to(self) -> tuple[Key, ...]:
        """Those that go to screens."""
        return tuple(key for key in self.keys if key.screen)


class KeyLine(Widget):
    """One row. A click on a key presses it."""

    DEFAULT_CSS = "KeyLine { dock: bottom; height: 1; background: $panel; }"
    ALLOW_SELECT = False

    def on_mount(self) -> None:
        """Draw anew when another widget has the focus, or something else can be done."""
        self.screen.bindings_updated_signal.subscribe(self, self._on_bindings)

    def _on_bindings(self, screen: Screen[object]) -> None:
        if screen is self.screen:
            self.refresh()

    def render(self) -> Content:
        """The line at the widget's present width."""
        return keyline_content(self._line(), self.app.current_mode)

    def on_click(self, event: events.Click) -> None:
        """Press what was clicked."""
        for key, begin in places(self._line()):
            if begin <= event.x < begin + key.width and key.enabled:
                self.app.simulate_key(key.key)

    def _line(self) -> KeyRow:
        focused = self.screen.focused
        typing = isinstance(focused, TextArea) and not focused.read_only
        keys: dict[str, Key] = {}
        for _, binding, enabled, _ in self.screen.active_bindings.values():
            if binding.show and binding.action not in keys:
                # While a text is typed into, what prints is typed.
                able = enabled and not (typing and key_to_character(binding.key) is not None)
                name = binding.description.lower() if binding.group is not None else ""
                keys[binding.action] = Key(binding.key, binding.description, able, name, binding.action)
        return fitting(tuple(keys.values()), self.size.width)


def fitting(keys: Sequence[Key], width: int) -> KeyRow:
    """The fullest line of at most `width` cells.

    Given up one after the other: room between keys; the names of the screens, then the way out; keys that do nothing
    now; the keys of screens; the last keys. Help stays: it says all of them.
    """
    bare = [Key(key.key, "", key.enabled, key.screen, key.action) if key.screen else key for key in keys]
    for shown in (keys, bare):
        for gap in (2, 1):
            if (line := KeyRow(tuple(shown), gap)).width <= width:
                return line
    given_up = [
        [key for key in bare if key.action == QUIT],
        *([key] for key in reversed(bare) if not key.enabled),
        [key for key in bare if key.screen],
        *([key] for key in reversed(bare) if key.action != HELP),
    ]
    for gone in given_up:
        bare = [key for key in bare if key not in gone]
        if (line := KeyRow(tuple(bare), 1)).width <= width:
            return line
    return KeyRow(tuple(bare), 1)


def places(line: KeyRow) -> Iterator[tuple[Key, int]]:
    """Each key with the cell it begins at."""
    at = line.begin
    for number, key in enumerate(line.keys):
        at += line.between(key) if number else 0
        yield key, at
        at += key.width


def keyline_content(line: KeyRow, mode: str) -> Content:
    """Draw the line; the screen in front is marked among those that can be gone to."""
    row = Content("")
    for key, begin in places(line):
        row = row + Content(" " * (begin - row.cell_length))
        here = key.screen == mode
        style = "bold reverse $accent" if here else "bold $accent" if key.enabled else "$foreground-muted dim"
        words = "bold $foreground" if here else "$foreground" if key.enabled and not key.screen else "$foreground-muted"
        row = row + Content.styled(key_words(key.key), style)
        if key.words:
            row = row + Content.styled(f" {key.words}", words if key.enabled else "$foreground-muted dim")
    return row
