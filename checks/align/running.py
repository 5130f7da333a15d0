"""What the running server feeds where it has another config than the one on disk: by a capture, else by that config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.draft import IN_EAGLE_CONFIG, KEY, TOP_LEVEL
from checks.errors import CheckError
from checks.evidence import Evidence
from checks.naming import engine_capture, name_served, name_slots
from checks.wiring import served_in_capture

if TYPE_CHECKING:
    from checks.ops.loaded import Earlier

RESTART = "a restart, or a capture from the running server"
"""What decides where the running server has another config than the one on disk."""


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
    earlier = _earlier(evidence)
    if earlier is None:
        return None
    capture = engine_capture(evidence)
    if capture is not None and captured_since(evidence, capture):
        measured = name_served(evidence).states
        if measured is not None:
            return Running(earlier, measured, measured=True)
        if capture.ids is not None and (named := served_in_capture(evidence)) is not None:
            return Running(earlier, named)
    return Running(earlier, _fed_before(evidence, earlier, engine) if engine is not None else None)


def nameless(evidence: Evidence, cache: Any) -> bool:
    """Whether the cache is named only by what the server feeds, and the config on disk does not say what that is."""
    if _earlier(evidence) is None or name_slots(evidence, cache).how != "engine":
        return False
    capture = engine_capture(evidence)
    return capture is not None and capture.ids is None


def captured_since(evidence: Evidence, capture: Any) -> bool:
    """Whether a capture was written in this life of the server, whose config is another one than that on disk."""
    earlier = _earlier(evidence)
    if earlier is None:
        return False
    try:
        return bool((Path(capture.path) / "manifest.json").stat().st_mtime > earlier.started)
    except OSError:
        return False


def _earlier(evidence: Evidence) -> Earlier | None:
    """The earlier config of the running server; None where nothing says that it has another one, or none is known."""
    if evidence.request.snapshot is None and not evidence.request.server.pid:
        return None
    # Here, because only a run that knows of a server needs what reads its life.
    from checks.ops.loaded import earlier_config

    return earlier_config(evidence)


def _fed_before(evidence: Evidence, earlier: Earlier, engine: Any) -> tuple[int, ...] | None:
    """The states that the running server feeds under its earlier config, by the engine's rule; None if not known."""
    if not earlier.surely or earlier.config is None or evidence.target is None or engine.rule is None:
        return None
    nested = earlier.config.get("eagle_config")
    inner = nested.get(KEY) if isinstance(nested, Mapping) else None
    ids = {TOP_LEVEL: earlier.config.get(KEY), IN_EAGLE_CONFIG: inner}.get(engine.pointer)
    if ids is not None and not isinstance(ids, list):
        return None
    try:
        served = engine.rule.served(ids, evidence.target.n)
    except CheckError:
        return None
    # One that is said to break and runs all the same was patched, and feeds what it was asked for.
    return tuple(served.states) or None
