"""The command palette: what the keys do, by its words; only what is possible now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.css.query import NoMatches
from textual.screen import Screen

from console import keys
from console.screens.words import about_action

if TYPE_CHECKING:
    from console.app import ConsoleApp

Command = tuple[str, str, Callable[[], Awaitable[None]]]


class KeyCommands(Provider):
    """The keys that work everywhere, those of this screen, and those of other screens that need no cursor there."""

    async def discover(self) -> Hits:
        """All of them."""
        for words, about, run in self.commands():
            yield DiscoveryHit(words, run, help=about)

    async def search(self, query: str) -> Hits:
        """Those whose words match."""
        matcher = self.matcher(query)
        for words, about, run in self.commands():
            if (score := matcher.match(words)) > 0:
                yield Hit(score, matcher.highlight(words), run, help=about)

    def commands(self) -> Iterator[Command]:
        """Words, what it does, and the doing."""
        app = cast("ConsoleApp", self.app)
        here = app.current_mode
        for binding in _bindings(keys.APP):
            if binding.action not in ("command_palette", f"go('{here}')") and _possible(app, app, binding.action):
                yield binding.description, about_action(app, binding.action), self._doing("", binding.action)
        for mode in sorted(keys.TABLES, key=lambda mode: mode != here):
            screen = _screen_of(app, mode)
            for binding in _bindings(keys.TABLES[mode]):
                if (mode == here or binding.id in keys.ELSEWHERE) and _possible(app, screen, binding.action):
                    words = f"{mode.capitalize()}: {binding.description}"
                    yield words, about_action(screen, binding.action), self._doing(mode, binding.action)

    def _doing(self, mode: str, action: str) -> Callable[[], Awaitable[None]]:
        app = cast("ConsoleApp", self.app)

        async def run() -> None:
            if mode:
                await app.switch_mode(mode)
            await app.run_action(action, app.screen if mode else app)

        return run


def _bindings(table: list[Any]) -> Iterator[Binding]:
    return (item for item in table if isinstance(item, Binding))


def _screen_of(app: ConsoleApp, mode: str) -> Screen[Any]:
    """The screen of a mode; one that was never shown is made to be asked, and dropped."""
    return app.get_screen_stack(mode)[0] if mode in app._screen_stacks else app.MODES[mode]()


def _possible(app: ConsoleApp, where: ConsoleApp | Screen[Any], action: str) -> bool:
    name, _, given = action.partition("(")
    try:
        return bool(where.check_action(name, (given.strip("')"),) if given else ()))
    except NoMatches:
        # A screen that was never shown; it judges once more when it is.
        return app.session is not None
