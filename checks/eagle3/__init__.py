"""The EAGLE-3 draft forward over several steps: grouped or latent attention, one layer or several, numpy or torch."""

from __future__ import annotations

from checks.eagle3.forward import Drafter
from checks.eagle3.layout import CannotReplay, draft_shape
from checks.eagle3.loading import load_drafter
from checks.eagle3.shape import DraftShape, Latent

__all__ = ["CannotReplay", "DraftShape", "Drafter", "Latent", "draft_shape", "load_drafter"]
