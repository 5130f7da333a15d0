"""The check that runs the draft over cached states."""

from __future__ import annotations

from checks.replay import accuracy

__all__ = ["accuracy"]
