"""The parts of the cockpit that change: screens redraw only what depends on one."""

from __future__ import annotations

from enum import Enum


class Topic(Enum):
    """A part of the cockpit that changed; screens redraw only what depends on it."""

    LINK = "link"
    STATUS = "status"
    SERVING = "serving"
    LOG = "log"
    CHECKS = "checks"
    DRAFT = "draft"
    TIMELINE = "timeline"
    RUNS = "runs"
