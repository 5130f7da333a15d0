"""Checks of the draft's checkpoint: its files, its tensors against its config, and what engines make of both."""

from __future__ import annotations

from checks.ckpt import container, names, numbers, parent, shapes, shared, vocab_map

__all__ = ["container", "names", "numbers", "parent", "shapes", "shared", "vocab_map"]
