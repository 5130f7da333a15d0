"""The colours of JSON in the editor, out of the app's theme: those of a dark editor cannot be read on a light one."""

from __future__ import annotations

from rich.style import Style
from textual.color import Color
from textual.theme import Theme
from textual.widgets.text_area import TextAreaTheme


def syntax_theme(theme: Theme) -> TextAreaTheme:
    """The editor's theme under a theme of the app, by its name; all but the syntax comes from the stylesheet."""
    keyword = theme.secondary or theme.primary
    colours = {
        "json.label": theme.primary,
        "string": theme.success or theme.primary,
        "string.escape": theme.accent or theme.primary,
        "number": theme.warning or theme.primary,
        "boolean": keyword,
        "json.null": keyword,
        "json.error": theme.error or theme.primary,
    }
    styles = {
        name: Style(color=Color.parse(colour).rich_color, bold=name == "json.label") for name, colour in colours.items()
    }
    return TextAreaTheme(name=theme.name, syntax_styles=styles)
