"""What the running server feeds where it has another config than the one on disk: by a capture, else by that config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from checks.evidence import Evidence
from checks.naming import engine_capture, name_served, name_slots
from checks.ops.loaded import RESTART, Earlier, captured_since, earlier_config, fed_before
from checks.wiring import served_in_capture

__all__ = ["RESTART", "Running", "nameless", "running"]


@dataclass(frozen=True)
class Running:
    """The running server's earlier config, and the states it feeds; None where they are not known."""

    earlier: Earlier
    states: tuple[int, ...] | None
    measured: bool = False

    @property
    def words(self) -> str:
        """The clause of a summary that says so, without what it feeds."""
        return self.earlier.words

    def as_json(self) -> dict[str, Any]:
        """For evidence."""
        return self.earlier.as_json(self.states)


def running(evidence: Evidence, engine: Any) -> Running | None:
    """What is served instead of what the config on disk says; None where nothing says that it is another thing."""
    earlier = earlier_config(evidence)
    if earlier is None:
        return None
    capture = engine_capture(evidence)
    if capture is not None and captured_since(evidence, capture):
        measured = name_served(evidence).states
        if measured is not None:
            return Running(earlier, measured, measured=True)
        if capture.ids is not None and (named := served_in_capture(evidence)) is not None:
            return Running(earlier, named)
    return Running(earlier, fed_before(evidence, engine) if engine is not None else None)


def nameless(evidence: Evidence, cache: Any) -> bool:
    """Whether the cache is named only by what the server feeds, and the config on disk does not say what that is."""
    if earlier_config(evidence) is None or name_slots(evidence, cache).how != "engine":
        return False
    capture = engine_capture(evidence)
    return capture is not None and capture.ids is None
