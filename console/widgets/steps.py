"""A restart as it passes by: one row a phase, with the second it began and what it said."""

from __future__ import annotations

import re

from textual.content import Content
from textual.widget import Widget

from console.glyphs import glyphs
from console.plain import one_line, plain
from console.state import Timeline
from console.widgets.trend import fit

_STAMP = re.compile(r"^\[[^\]]*\] *")  # the server's own clock; the timeline has one already


class Steps(Widget):
    """The restart as it passes by; what a phase said is cut to the width there is."""

    DEFAULT_CSS = "Steps { height: auto; }"

    timeline: Timeline | None = None

    def render(self) -> Content:
        """One row a phase."""
        if self.timeline is None or not self.timeline.started:
            return Content("")
        return timeline_content(self.timeline, max(self.size.width, 30))


def timeline_content(timeline: Timeline, width: int) -> Content:
    """The phases of a restart, each with the second it began, one row of `width` cells a phase."""
    g = glyphs()
    rows = [Content.styled(f"{timeline.reason}", "$foreground-muted")]
    # As wide from the first phase on as the last one needs; a phase that says nothing may reach into what follows.
    names = max(len(name) for name in ("accepting", *(step.name for step in timeline.steps if step.detail)))
    for index, step in enumerate(timeline.steps):
        last = index == len(timeline.steps) - 1
        state = g.running if last and timeline.busy else g.bad if last and timeline.error else g.ok
        style = "$accent" if last and timeline.busy else "$error" if last and timeline.error else "$success"
        head = Content.assemble(
            (f"{state} ", style),
            (f"{step.at:6.1f}s ", "$foreground-muted"),
            (f"{step.name:<{names}} ", "bold"),
        )
        detail = " ".join(_STAMP.sub("", one_line(step.detail)).split())
        rows.append(head + Content(fit(detail, width - head.cell_length)))
    if timeline.error:
        rows += [
            Content(""),
            Content.styled(plain(timeline.error), "bold $error"),
            Content.styled("b goes back to the last configuration that served well", "$warning"),
        ]
    return Content("\n").join(rows)
