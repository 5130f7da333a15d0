"""The top line of every screen: is it up, is it accepting, how fast, and is the link alive."""

from __future__ import annotations

import time
from dataclasses import dataclass

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from console.glyphs import glyphs

_PHASES = {
    "ready": "$success",
    "serving": "$success",
    "crashed": "$error",
    "foreign": "$error",
    "stopped": "$foreground-muted",
    "connecting": "$foreground-muted",
    "looking": "$foreground-muted",
}


@dataclass(frozen=True, slots=True)
class TopLineValue:
    """What the top line says; empty parts are left out."""

    deployment: str = ""
    host: str = ""
    linked: bool = False
    silence: float | None = None
    """Seconds since the last byte from the host."""
    engine: str = ""
    phase: str = ""
    since: float | None = None
    """When the phase began, in epoch seconds."""
    accept_len: float | None = None
    ceiling: int | None = None
    tokens_per_s: float | None = None
    baseline: float | None = None
    read_only: bool = False
    stale: bool = False
    """Whether what was measured is older than its period, or of a server that is gone."""


class TopLine(Widget):
    """One row, most important first; what does not fit is dropped whole, never cut in the middle of a number."""

    DEFAULT_CSS = "TopLine { height: 1; background: $panel; }"

    value: reactive[TopLineValue] = reactive(TopLineValue())

    def render(self) -> Content:
        """The line at the widget's present width."""
        return topline(self.value, self.size.width)


def topline(value: TopLineValue, width: int) -> Content:
    """Draw the top line `width` cells wide."""
    g = glyphs()
    link = f"{g.up if value.linked else g.down} {value.host}"
    if value.silence is not None and value.silence >= 10:
        link += f" {value.silence:.0f}s"
    parts: list[tuple[str, str]] = [(f" {value.deployment}", "bold $primary")]
    parts.append((link, "$success" if value.linked else "bold $error"))
    # Acceptance comes before throughput: at 80 columns it must survive.
    if value.phase:
        elapsed = f" {elapsed_words(time.time() - value.since)}" if value.since else ""
        parts.append((value.phase + elapsed, _PHASES.get(value.phase, "$warning")))
    if value.accept_len is not None:
        out_of = f"/{value.ceiling}" if value.ceiling else ""
        parts.append(
            (f"accept {value.accept_len:.2f}{out_of}", "$foreground-muted" if value.stale else "bold $foreground")
        )
    if value.tokens_per_s is not None:
        against = f" {100 * (value.tokens_per_s / value.baseline - 1):+.1f}%" if value.baseline else ""
        parts.append(
            (f"{value.tokens_per_s:.1f} tok/s{against}", "$foreground-muted" if value.stale else "$foreground")
        )
    if value.engine:
        parts.append((value.engine, "$foreground-muted"))
    if value.read_only:
        parts.append(("read-only", "bold $warning"))
    row = Content("")
    for text, style in parts:
        joint = f" {g.dot} " if row.cell_length else ""
        if row.cell_length + len(joint) + len(text) > width:
            continue
        row = row + Content.styled(joint, "$foreground-muted") + Content.styled(text, style)
    return row


def elapsed_words(seconds: float) -> str:
    """A duration as a person reads it: `42s`, `3m05`, `2h07`, `5d03h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
