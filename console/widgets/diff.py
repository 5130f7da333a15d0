"""A unified diff, added and removed lines coloured, with a first line that says what changed in meaning."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

_STYLES = {"+": "$success", "-": "$error", "@": "$accent"}


class DiffView(Widget):
    """Shows old against new; `changes` are the keys that changed, in words."""

    DEFAULT_CSS = "DiffView { height: auto; text-wrap: nowrap; }"

    content_shown: reactive[Content] = reactive(Content(""), layout=True)

    def show(self, old: str, new: str, *, names: tuple[str, str], changes: Sequence[str] = ()) -> None:
        """Show the difference of two texts; equal texts say so."""
        self.content_shown = diff_content(old, new, names=names, changes=changes)

    def render(self) -> Content:
        """The diff."""
        return self.content_shown


def diff_content(old: str, new: str, *, names: tuple[str, str], changes: Sequence[str] = ()) -> Content:
    """The unified diff of two texts as styled content."""
    if old == new:
        return Content.styled("no difference: what is staged is what is on the host", "$foreground-muted")
    rows = [Content.styled(change, "bold $warning") for change in changes]
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), *names, lineterm="", n=3)
    for line in lines:
        heading = line.startswith(("+++", "---"))
        style = "$foreground-muted" if heading else _STYLES.get(line[:1], "$foreground")
        rows.append(Content.styled(line, style))
    return Content("\n").join(rows)
