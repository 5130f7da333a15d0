"""The editor's colours under every theme: of that theme, and legible on its background."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from textual.app import App, ComposeResult
from textual.color import Color
from textual.theme import Theme

from console import theming
from console.screens.draft import ConfigText
from console.widgets.syntax import syntax_theme
from tests.console.driving import LIMIT

THEMES = dict(theming.read_themes())
LEGIBLE = 4.5  # contrast of small text, WCAG 2.1, 1.4.3


def contrast_of(one: Color, other: Color) -> float:
    """The contrast ratio of two colours, 1 … 21, after WCAG 2.1."""
    dark, light = sorted(luminance(colour) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: Color) -> float:
    """Relative luminance of an sRGB colour, 0 … 1."""
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("name", THEMES)
def test_what_is_edited_can_be_read(name: str) -> None:
    theme = Theme(name=name, **THEMES[name])
    assert theme.background is not None
    for word, style in syntax_theme(theme).syntax_styles.items():
        assert style.color is not None
        contrast = contrast_of(Color.from_rich_color(style.color), Color.parse(theme.background))
        assert contrast >= LEGIBLE, (word, contrast)


class Editor(App[None]):
    """An editor and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        for name, values in THEMES.items():
            self.register_theme(Theme(name=name, **values))
        self.theme = theming.DEFAULT

    def compose(self) -> ComposeResult:
        yield ConfigText('{"a": 1}', language="json")


async def test_the_editor_follows_the_theme() -> None:
    app = Editor()
    async with app.run_test():
        text = app.query_one(ConfigText)
        for name in THEMES:
            app.theme = name
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LIMIT):
                    while text.theme != name:
                        await asyncio.sleep(0.02)
            assert text.theme == name
