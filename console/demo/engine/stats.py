"""Counters of the verify loop and of requests: windows for decode lines, lifetime values, Prometheus text."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from console.demo.engine.decoding import Step
from console.demo.engine.log import DecodeWindow, Log

GAUGE_LIFETIME_S = 30.0
"""SGLang 0.5.20 and newer let the throughput gauge fall to 0 after this long without decoding."""


class Stats:
    """One set of counters per server; written by the scheduler's thread, read by HTTP threads."""

    def __init__(self, log: Log, interval: int, steps: int | None, capacity: int, waiting: Callable[[], int]) -> None:
        """`interval` is --decode-log-interval; `steps` None means no speculation; `waiting` counts queued requests."""
        self._log = log
        self._interval = interval
        self._steps = steps
        self._capacity = capacity
        self._waiting = waiting
        self._lock = threading.Lock()
        self._prefill_tic = self._decode_tic = time.perf_counter()
        self._decode_iterations = 0
        self._window_tokens = 0
        self.running = 0
        self.used_tokens = 0
        self.accept_length = 0.0
        self.accept_rate = 0.0
        self.throughput = 0.0
        self.counters = dict.fromkeys(
            ("prompt_tokens", "generation_tokens", "requests", "verify_calls", "prefill_compute", "decode"), 0
        )
        self._reset_speculation()

    def _reset_speculation(self) -> None:
        self._window_rounds = self._window_correct = 0
        self._total_rounds = self._total_accepted = 0

    def reset(self) -> None:
        """Forget what was accepted so far, as /flush_cache does."""
        with self._lock:
            self._reset_speculation()

    def prefill(self, new_tokens: int, step: Step) -> None:
        """Count one prefilled prompt and log its line."""
        with self._lock:
            now = time.perf_counter()
            gap, self._prefill_tic = now - self._prefill_tic, now
            self.counters["prefill_compute"] += new_tokens
            self.used_tokens = step.cached_tokens
        self._log.prefill(new_tokens, 0.0, self._waiting(), new_tokens / gap if gap > 0 else 0.0)

    def decode(self, step: Step) -> None:
        """Count one decode iteration; every `interval` of them, log a line and move the gauges."""
        with self._lock:
            self._decode_iterations += 1
            self._window_tokens += len(step.emitted)
            self.counters["decode"] += len(step.emitted)
            self.used_tokens = step.cached_tokens
            if step.correct_drafts is not None:
                self._window_rounds += 1
                self._window_correct += step.correct_drafts
            if self._decode_iterations % self._interval:
                return
            window = self._close_window()
        self._log.decode(window)

    def _close_window(self) -> DecodeWindow:
        now = time.perf_counter()
        gap, self._decode_tic = now - self._decode_tic, now
        self.throughput = self._window_tokens / gap if gap > 0 else 0.0
        self._window_tokens = 0
        if self._window_rounds:
            accepted = self._window_correct + self._window_rounds
            proposed = self._window_rounds * (self._steps or 0)
            self.accept_length = accepted / self._window_rounds
            self.accept_rate = self._window_correct / proposed if proposed else 0.0
            self._total_rounds += self._window_rounds
            self._total_accepted += accepted
            self._window_rounds = self._window_correct = 0
        return DecodeWindow(
            running=self.running,
            used_tokens=self.used_tokens,
            token_usage=self.used_tokens / self._capacity,
            speculative=self._steps is not None,
            accept_length=self.accept_length,
            accept_rate=self.accept_rate,
            throughput=self.throughput,
            queued=self._waiting(),
        )

    def finished(self, prompt_tokens: int, completion_tokens: int, verify_rounds: int) -> None:
        """Count one finished request."""
        with self._lock:
            self.counters["requests"] += 1
            self.counters["prompt_tokens"] += prompt_tokens
            self.counters["generation_tokens"] += completion_tokens
            self.counters["verify_calls"] += verify_rounds
            self.used_tokens = 0

    def internal_state(self) -> dict[str, Any]:
        """The speculative part of `internal_states[0]`; the average comes with the first decode line."""
        with self._lock:
            state: dict[str, Any] = {"last_gen_throughput": round(self.throughput, 2)}
            if self._total_rounds:
                state["avg_spec_accept_length"] = self._total_accepted / self._total_rounds
            return state

    def prometheus(self, model_name: str, startup_seconds: float) -> str:
        """The metrics as Prometheus text, under SGLang's names."""
        with self._lock:
            idle = time.perf_counter() - self._decode_tic > GAUGE_LIFETIME_S
            count = dict(self.counters)
            gauges: dict[str, float] = {
                "num_running_reqs": self.running,
                "num_queue_reqs": self._waiting(),
                "num_used_tokens": self.used_tokens,
                "token_usage": self.used_tokens / self._capacity,
                "gen_throughput": 0.0 if idle else self.throughput,
                "cache_hit_rate": 0.0,
                "startup_time_seconds": startup_seconds,
            }
            if self._steps is not None:
                gauges |= {
                    "spec_accept_length": self.accept_length,
                    "spec_accept_rate": self.accept_rate,
                    "spec_num_steps": self._steps,
                    "spec_num_draft_tokens": self._steps + 1,
                }
        name = model_name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        short = f'engine_type="unified",model_name="{name}"'
        full = f'{short},pp_rank="0",tp_rank="0"'
        lines: list[str] = []
        for key, value in gauges.items():
            lines += [f"# TYPE sglang:{key} gauge", f"sglang:{key}{{{full}}} {float(value)}"]
        totals = {"prompt_tokens": "prompt_tokens_total", "generation_tokens": "generation_tokens_total",
                  "requests": "num_requests_total"}  # fmt: skip
        if self._steps is not None:
            totals["verify_calls"] = "spec_verify_calls_total"
        for key, metric in totals.items():
            lines += [f"# TYPE sglang:{metric} counter", f"sglang:{metric}{{{short}}} {float(count[key])}"]
        lines.append("# TYPE sglang:realtime_tokens_total counter")
        for mode in ("prefill_compute", "decode"):
            lines.append(f'sglang:realtime_tokens_total{{{full},mode="{mode}"}} {float(count[mode])}')
        return "\n".join(lines) + "\n"
