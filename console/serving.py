"""What the server's log says of it, in rolling windows: the values on screen and what a run is remembered by."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

HISTORY = 240
_PERIODS = 12
"""Recent decode lines that the usual time between two is taken from."""
_STALE_PERIODS, _STALE_SECONDS = 4.0, 10.0

UP_PHASES = ("ready", "serving")
LOG = "the log's last line"
"""Where acceptance by position comes from when the engine prints it."""


class Serving:
    """Rolling values of one server. Times are monotonic seconds of this machine unless said otherwise."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.accept_history: deque[float] = deque(maxlen=HISTORY)
        """Accept length of each decode line, oldest first; goes on across restarts, so that a fix shows as a step."""
        self.throughput_history: deque[float] = deque(maxlen=HISTORY)
        self.ceiling: int | None = None
        """The most tokens one verify step can emit: min(steps + 1, draft tokens)."""
        self.baseline: float | None = None
        """Tokens per second of the run before, to compare with."""
        self.formula: str = ""
        """What the printed accept rate means for this engine version."""
        self.last_error: str = ""
        self.restarted()

    def restarted(self) -> None:
        """A new life of the server begins: what belongs to the last one is forgotten, the histories stay."""
        self.phase: str | None = None
        self.phase_since: float | None = None
        """When the phase began, in epoch seconds."""
        self.accept_len: float | None = None
        self.accept_rate: float | None = None
        self.tokens_per_s: float | None = None
        self.running: int | None = None
        self.queue: int | None = None
        self.kv_usage: float | None = None
        self._accepts: list[float] = []
        self._speeds: list[float] = []
        self._histogram: list[int] = []
        self.by_position: tuple[float, ...] | None = None
        """P(at least k drafts accepted) for k = 1, 2, …; None where nothing says it."""
        self.by_position_from: str = ""
        """What says it: the log's last line, /metrics, or requests of our own."""
        self._decoded_at: deque[float] = deque(maxlen=_PERIODS)
        self._idle = True

    # -- taking in ---------------------------------------------------------------------------------------------

    def feed(self, events: Iterable[Any], live: bool = True) -> None:
        """Take in a batch of the engine's events; `live` = they were written just now, not read from the past."""
        for event in events:
            # Another engine's line in this log, or totals since the start, are not this server's value now.
            if getattr(event, "engine", None) or getattr(event, "cumulative", False):
                continue
            take = self._TAKERS.get(getattr(event, "event", ""))
            if take is not None:
                take(self, event, live)

    def _decode(self, event: Any, live: bool) -> None:
        self.running, self.queue = _first(event, "running"), _first(event, "queue")
        self.kv_usage = _first(event, "token_usage")
        accept, speed = _first(event, "accept_len"), _first(event, "throughput")
        self.accept_rate = _first(event, "accept_rate_printed")
        if accept is not None:
            self.accept_len = accept
            self.accept_history.append(accept)
            self._accepts.append(accept)
        if speed is not None:
            self.tokens_per_s = speed
            self.throughput_history.append(speed)
            # The first line after a rest divides by the rest as well: far too low to remember a run by.
            if not self._idle:
                self._speeds.append(speed)
        self._idle = False
        if getattr(event, "positions", ()):
            self.take_positions(event.positions, LOG)
        if live:
            self._decoded_at.append(self._clock())

    def _prefill(self, event: Any, live: bool) -> None:
        if getattr(event, "probe", False):
            return
        self.queue = _first(event, "queue") if _first(event, "queue") is not None else self.queue
        if not _first(event, "running"):
            self._idle = True

    def _phase(self, event: Any, live: bool) -> None:
        phase = getattr(event, "phase", None)
        if not phase:
            return
        if phase == "starting" and self.phase not in (None, "starting"):
            self.restarted()
        if not (phase == "ready" and self.phase == "serving"):
            self._enter(str(phase))

    def _error(self, event: Any, live: bool) -> None:
        self.last_error = str(_first(event, "text") or "")

    _TAKERS: dict[str, Callable[[Serving, Any, bool], None]] = {
        "decode": _decode,
        "prefill": _prefill,
        "phase": _phase,
        "error": _error,
    }

    def _enter(self, phase: str) -> None:
        if phase != self.phase:
            self.phase, self.phase_since = phase, time.time()

    def add_histogram(self, counts: Sequence[int]) -> None:
        """Add a request of our own by its drafts histogram: counts[i] verify steps accepted i drafts.

        On a chain P(at least k accepted) is sum(h[k:]) / sum(h), over all such requests of this life of the server.
        """
        longer = max(len(self._histogram), len(counts))
        self._histogram = [
            (self._histogram[i] if i < len(self._histogram) else 0) + (counts[i] if i < len(counts) else 0)
            for i in range(longer)
        ]
        total = sum(self._histogram)
        if total:
            rates = tuple(sum(self._histogram[k:]) / total for k in range(1, longer))
            self.take_positions(rates, f"own requests, {total} steps")

    def take_positions(self, rates: Sequence[float], source: str) -> None:
        """Take what an engine says of each position itself; `source` says where."""
        self.by_position, self.by_position_from = tuple(rates), source

    # -- giving out --------------------------------------------------------------------------------------------

    @property
    def windows(self) -> int:
        """Decode lines with an accept length in this life of the server."""
        return len(self._accepts)

    @property
    def mean_accept_len(self) -> float | None:
        """Mean accept length over this life's decode lines."""
        return statistics.fmean(self._accepts) if self._accepts else None

    @property
    def usual_tokens_per_s(self) -> float | None:
        """Median throughput over this life's decode lines that follow another one; falls back on all there are."""
        return statistics.median(self._speeds) if self._speeds else self.tokens_per_s

    @property
    def accept_words(self) -> str:
        """The mean over this life, and how many decode lines it stands on."""
        mean = self.mean_accept_len
        return "" if mean is None else f"mean {mean:.2f} over {self.windows} lines"

    @property
    def age(self) -> float | None:
        """Seconds since the last decode line; None before the first that was seen as it came."""
        return self._clock() - self._decoded_at[-1] if self._decoded_at else None

    @property
    def stale(self) -> bool:
        """Whether the decode values are older than their usual period allows."""
        age = self.age
        if age is None:
            return self.accept_len is not None or self.tokens_per_s is not None
        gaps = [b - a for a, b in zip(self._decoded_at, list(self._decoded_at)[1:])]
        usual = statistics.median(gaps) if gaps else 0.0
        return age > max(_STALE_SECONDS, _STALE_PERIODS * usual)

    @property
    def age_words(self) -> str:
        """Empty while fresh, else how old the values are."""
        if not self.stale:
            return ""
        return "from before" if self.age is None else f"{_duration(self.age)} ago"


def _first(event: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(event, name, None)) is not None), None)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
