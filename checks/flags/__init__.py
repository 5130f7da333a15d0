"""Checks of the launch flags and the environment: what a server makes of them, by its release."""

from __future__ import annotations

from checks.flags import build, debug, placement, refused, speculation

__all__ = ["build", "debug", "placement", "refused", "speculation"]
