"""The evidence of one run: each piece opened once, lazily, and shared by every check."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, TypeVar

from checks.caches import Cache, Hints, open_cache
from checks.capture_folder import Capture, open_capture
from checks.draft import Draft, open_draft
from checks.engines import Engine, engines_for
from checks.errors import CheckError, NotRunnable, UnknownLayout
from checks.request import Request, given_path
from checks.target import Target, open_target
from checks.weights import pickled

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
    HOST = "host"


# What to say when a piece is absent: what it is, and how to give it.
_HOW = {
    Need.DRAFT: "the draft's folder with config.json (--draft DIR)",
    Need.DRAFT_WEIGHTS: "the draft's weights (model.safetensors beside its config.json)",
    Need.TARGET: "the target's folder with config.json (--target DIR)",
    Need.TARGET_WEIGHTS: "the target's weights (safetensors beside its config.json)",
    Need.CACHE: "the hidden states it was trained on (--cache DIR)",
    Need.CAPTURE: "states captured for the same tokens (a running server, or --capture DIR; console capture "
    "--reference makes one of the target alone, without a server or a GPU)",
    Need.ENGINE: "the engine that serves it (--engine NAME==VERSION, or a running server)",
    Need.LOG: "the server's log (--log FILE)",
    Need.HOST: "a look at the host and its processes (a deployment: console check NAME)",
}


class Evidence:
    """What a run may look at. Opening is lazy; a piece that cannot be opened raises a CheckError where it is used."""

    def __init__(self, request: Request, progress: Progress | None = None) -> None:
        self.request = request
        self._progress = progress
        self._check = ""
        self._memo: dict[object, tuple[Any, CheckError | None]] = {}
        self._closing: list[Callable[[], None]] = []
        # Given paths are proven to exist before any check runs: a missing one is exit 3, not a finding.
        given_path(request.parent, "--parent")
        given_path(request.engine_source, "--engine-source")
        given_path(request.log, "--log")
        self._draft_path = given_path(request.draft, "--draft")
        self._target_path = given_path(request.target, "--target")
        self._cache_paths = [(given_path(item.path, "--cache"), item) for item in request.caches]
        self._capture_paths = [given_path(item, "--capture") for item in request.captures]

    # -- pieces ------------------------------------------------------------------------------------------------

    @property
    def draft(self) -> Draft | None:
        """The draft checkpoint, or None when not given."""
        path = self._draft_path
        return self.memo("draft", lambda: open_draft(path)) if path else None

    @property
    def target(self) -> Target | None:
        """The target's config and weights, or None when not given."""
        path = self._target_path
        return self.memo("target", lambda: open_target(path)) if path else None

    @property
    def caches(self) -> tuple[Cache, ...]:
        """The caches given that could be recognised. Raises the first one's CheckError when none of them could."""
        opened = [self.cache_at(index) for index in range(len(self._cache_paths))]
        caches = tuple(item for item in opened if isinstance(item, Cache))
        failures = [item for item in opened if isinstance(item, CheckError)]
        if failures and not caches:
            raise failures[0]
        return caches

    @property
    def captures(self) -> tuple[Capture, ...]:
        """Captures given as folders; when none are, states asked of the running server for cached tokens."""
        return self.memo("captures", self._open_captures)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines to judge for: those given, else the one that runs or is installed."""
        return self.memo("engines", lambda: engines_for(self))

    def cache_at(self, index: int) -> Cache | CheckError:
        """The cache given as the `index`-th, or why it cannot be opened. Raises NotRunnable."""

        def open_one() -> Cache | CheckError:
            path, item = self._cache_paths[index]
            if path is None:
                return UnknownLayout("a cache without a path was given")
            try:
                return open_cache(path, item.layout, item.states, hints=self._hints())
            except NotRunnable:
                raise
            except CheckError as error:
                return error

        return self.memo(("cache", index), open_one)

    # -- services for checks -----------------------------------------------------------------------------------

    def missing(self, need: Need) -> str | None:
        """None when the piece is there, else the sentence that says what is needed.

        Raises the CheckError of a piece that was given and cannot be opened.
        """
        if need is Need.HOST and self.request.snapshot is not None and not self._has(need):
            return f"the host could not be looked at{self._unseen()}"
        if need is Need.LOG and self.request.log_failed:
            return f"the log {self.request.log_of} could not be read: {self.request.log_failed}"
        if self._has(need):
            return None
        return f"needs {_HOW[need]}{self._as_pickle(need)}"

    def memo(self, key: object, make: Callable[[], T]) -> T:
        """The value for `key`, made once a run: for what several checks share. A failure is remembered as well."""
        if key not in self._memo:
            try:
                self._memo[key] = (make(), None)
            except CheckError as error:
                self._memo[key] = (None, error)
        value, failure = self._memo[key]
        if failure is not None:
            raise failure
        result: T = value
        return result

    def at_end(self, close: Callable[[], None]) -> None:
        """Have this called when every check has said its part."""
        self._closing.append(close)

    def close(self) -> None:
        """Every check has said its part."""
        while self._closing:
            self._closing.pop()()

    def begin(self, check: str) -> None:
        """Say which check runs now; its progress is reported under this id."""
        self._check = check
        self.progress(0, 0, "")

    def progress(self, done: int, total: int, note: str) -> None:
        """Report progress of the running check: `done` of `total` (0 = unknown)."""
        if self._progress is not None:
            self._progress(self._check, done, total, note)

    def _hints(self) -> Hints:
        """What draft and target say that helps to take a cache apart; a damaged one says nothing."""
        slots = hidden = vocab = layers = 0
        with suppress(CheckError):
            slots = self.draft.slots if self.draft is not None else 0
        with suppress(CheckError):
            if self.target is not None:
                hidden, vocab, layers = self.target.hidden, self.target.vocab, self.target.n
        return Hints(slots=slots, hidden=hidden, vocab=vocab, layers=layers)

    def _open_captures(self) -> tuple[Capture, ...]:
        given = tuple(open_capture(path) for path in self._capture_paths if path)
        if given or not self.request.server.url:
            return given
        # Here, because only a run with a server to ask needs what speaks HTTP.
        from checks.capture import live_captures

        return live_captures(self)

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
        if need is Need.HOST:
            seen = self.request.snapshot
            return isinstance(seen, dict) and bool(seen) and not seen.get("error")
        return bool(self.request.log)

    def _as_pickle(self, need: Need) -> str:
        """How weights that are there, and are not read, come to be, as the end of a sentence."""
        path = {Need.DRAFT_WEIGHTS: self._draft_path, Need.TARGET_WEIGHTS: self._target_path}.get(need)
        name = pickled(path) if path is not None else ""
        return (
            f"; {name[:80]} beside it is a pickle, which may run code when it is loaded and is not read: write it once "
            "as safetensors (torch.load with weights_only=True, then safetensors.torch.save_file)"
            if name
            else ""
        )

    def _unseen(self) -> str:
        """Why there is a snapshot that shows nothing, as the end of a sentence."""
        seen = self.request.snapshot
        why = seen.get("error") if isinstance(seen, dict) else None
        return f": {why[:500]}" if isinstance(why, str) and why else ""
