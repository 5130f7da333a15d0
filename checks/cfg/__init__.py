"""Checks of the draft's config.json: what engines read from it, and what they would make of it."""

from __future__ import annotations

from checks.cfg import aux_ids, format, forward, keys, model, serving, shape

__all__ = ["aux_ids", "format", "forward", "keys", "model", "serving", "shape"]
