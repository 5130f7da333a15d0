"""Imports every family of checks, which fills the catalog: a new family is one line here."""

from __future__ import annotations

from checks import align, cfg, ckpt, data, flags, log, ops, replay

__all__ = ["align", "cfg", "ckpt", "data", "flags", "log", "ops", "replay"]
