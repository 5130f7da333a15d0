"""The parts of the cockpit that change: screens redraw only what depends on one."""

from __future__ import annotations

from enum import Enum


class Topic(Enum):
    """A part of the cockpit."""

    STATUS = "status"
    SERVING = "serving"
    CHECKS = "checks"
    DRAFT = "draft"
    TIMELINE = "timeline"
    RUNS = "runs"
    FLAGS = "flags"
