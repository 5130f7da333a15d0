"""The evidence of one run: each piece opened once, lazily, and shared by every check."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cached_property
from typing import Any, Optional, TypeVar

from checks.caches import Cache, open_cache
from checks.capture import Capture, live_captures, open_capture
from checks.draft import Draft, open_draft
from checks.engines import Engine, engines_for
from checks.request import Request, given_path
from checks.target import Target, open_target

T = TypeVar("T")
Progress = Callable[[str, int, int, str], None]


class Need(str, Enum):
    """A piece of evidence a check cannot do without."""

    DRAFT = "draft"
    DRAFT_WEIGHTS = "draft weights"
    TARGET = "target"
    TARGET_WEIGHTS = "target weights"
    CACHE = "cache"
    CAPTURE = "capture"
    ENGINE = "engine"
    LOG = "log"


# What to say when a piece is absent: what it is, and how to give it.
_HOW = {
    Need.DRAFT: "the draft's folder with config.json (--draft DIR)",
    Need.DRAFT_WEIGHTS: "the draft's weights (model.safetensors beside its config.json)",
    Need.TARGET: "the target's folder with config.json (--target DIR)",
    Need.TARGET_WEIGHTS: "the target's weights (safetensors beside its config.json)",
    Need.CACHE: "the hidden states it was trained on (--cache DIR)",
    Need.CAPTURE: "states captured from the engine for the same tokens (a running server, or --capture DIR)",
    Need.ENGINE: "the engine that serves it (--engine NAME==VERSION, or a running server)",
    Need.LOG: "the server's log (--log FILE)",
}


class Evidence:
    """What a run may look at. Opening is lazy; a piece that cannot be opened raises a CheckError where it is used."""

    def __init__(self, request: Request, progress: Optional[Progress] = None) -> None:
        self.request = request
        self._progress = progress
        self._check = ""
        self._memo: dict[object, Any] = {}
        # Given paths are proven to exist before any check runs: a missing one is exit 3, not a finding.
        given_path(request.parent, "--parent")
        given_path(request.engine_source, "--engine-source")
        given_path(request.log, "--log")
        self._draft_path = given_path(request.draft, "--draft")
        self._target_path = given_path(request.target, "--target")
        self._cache_paths = [(given_path(item.path, "--cache"), item) for item in request.caches]
        self._capture_paths = [given_path(item, "--capture") for item in request.captures]

    # -- pieces ------------------------------------------------------------------------------------------------

    @cached_property
    def draft(self) -> Optional[Draft]:
        """The draft checkpoint, or None when not given."""
        return open_draft(self._draft_path) if self._draft_path else None

    @cached_property
    def target(self) -> Optional[Target]:
        """The target's config and weights, or None when not given."""
        return open_target(self._target_path) if self._target_path else None

    @cached_property
    def caches(self) -> tuple[Cache, ...]:
        """Every cache given, recognised. Raises UnknownLayout or NeedsLibrary."""
        return tuple(open_cache(path, item.layout, item.states) for path, item in self._cache_paths if path)

    @cached_property
    def captures(self) -> tuple[Capture, ...]:
        """Captures given as folders; when none are, states asked of the running server for cached tokens."""
        given = tuple(open_capture(path) for path in self._capture_paths if path)
        return given or live_captures(self)

    @cached_property
    def engines(self) -> tuple[Engine, ...]:
        """The engines to judge for: those given, else the one that runs or is installed."""
        return engines_for(self)

    # -- services for checks -----------------------------------------------------------------------------------

    def missing(self, need: Need) -> Optional[str]:
        """None when the piece is there, else the sentence that says what is needed."""
        return None if self._has(need) else f"needs {_HOW[need]}"

    def memo(self, key: object, make: Callable[[], T]) -> T:
        """The value for `key`, made once a run: for results that several checks share."""
        if key not in self._memo:
            self._memo[key] = make()
        result: T = self._memo[key]
        return result

    def begin(self, check: str) -> None:
        """Say which check runs now; its progress is reported under this id."""
        self._check = check
        self.progress(0, 0, "")

    def progress(self, done: int, total: int, note: str) -> None:
        """Report progress of the running check: `done` of `total` (0 = unknown)."""
        if self._progress is not None:
            self._progress(self._check, done, total, note)

    def _has(self, need: Need) -> bool:
        if need is Need.DRAFT:
            return self.draft is not None
        if need is Need.DRAFT_WEIGHTS:
            return self.draft is not None and self.draft.weights is not None
        if need is Need.TARGET:
            return self.target is not None
        if need is Need.TARGET_WEIGHTS:
            return self.target is not None and self.target.weights is not None
        if need is Need.CACHE:
            return bool(self.caches)
        if need is Need.CAPTURE:
            return bool(self.captures)
        if need is Need.ENGINE:
            return bool(self.engines)
        return bool(self.request.log)
