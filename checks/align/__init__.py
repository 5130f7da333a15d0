"""The checks of alignment: which states a cache holds, which the engine feeds, slot by slot."""

from __future__ import annotations

from checks.align import embedding, engine_pair, final, slot_count, states

__all__ = ["embedding", "engine_pair", "final", "slot_count", "states"]
