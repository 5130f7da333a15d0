"""The log on stderr, in the line formats of SGLang 0.5.23, and access lines on stdout as uvicorn writes them.

The log reader of the console knows these formats from the real engine; nothing here is made up for it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from dataclasses import dataclass
from typing import TextIO

from console.demo.engine.engine import GIB, LoadEvent

_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class DecodeWindow:
    """What one decode line reports, over the window since the line before."""

    running: int
    used_tokens: int
    token_usage: float
    speculative: bool
    accept_length: float
    accept_rate: float
    throughput: float
    queued: int


class Log:
    """Writes whole lines with the prefix `[YYYY-mm-dd HH:MM:SS] ` in local time; safe from several threads."""

    def __init__(self, level: str = "info") -> None:
        self._threshold = _LEVELS.index(level)
        self._lock = threading.Lock()

    def write(self, message: str, level: str = "info") -> None:
        """One message on stderr; a message of several lines gets one prefix, as with logging."""
        if _LEVELS.index(level) >= self._threshold:
            self._put(sys.stderr, message)

    def access(self, client: str, request: str, status: int, phrase: str) -> None:
        """One uvicorn access line on stdout."""
        if self._threshold <= _LEVELS.index("info"):
            self._put(sys.stdout, f'INFO:     {client} - "{request}" {status} {phrase}')

    def _put(self, stream: TextIO, message: str) -> None:
        line = f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {message}"
        # A log that nobody reads any more must not stop the server.
        with self._lock, contextlib.suppress(OSError, ValueError):
            print(line, file=stream, flush=True)

    def load(self, event: LoadEvent) -> None:
        """A milestone of loading."""
        if event.kind == "begin":
            self.write(f"Load weight begin. avail mem={available_gib():.2f} GB")
        elif event.kind == "end":
            self.write(
                f"Load weight end. elapsed={event.seconds:.2f} s, type={event.model}, "
                f"avail mem={available_gib():.2f} GB, mem usage={event.weight_bytes / GIB:.2f} GB."
            )
        else:
            size = event.cache_bytes / GIB
            dtype = "torch.float64" if event.model == "LlamaForCausalLM" else "torch.float32"
            self.write(
                f"KV Cache is allocated. dtype: {dtype}, #tokens: {event.cache_tokens}, "
                f"K size: {size:.2f} GB, V size: {size:.2f} GB"
            )
            self.write(f"Memory pool end. avail mem={available_gib():.2f} GB")

    def capacity(self, context_len: int) -> None:
        """The line that says how many tokens fit."""
        self.write(
            f"max_total_num_tokens={context_len}, chunked_prefill_size=-1, max_prefill_tokens={context_len}, "
            f"max_running_requests=1, context_len={context_len}, available_cpu_mem={available_gib():.2f} GB"
        )

    def prefill(self, new_tokens: int, usage: float, queued: int, throughput: float) -> None:
        """One line per prefilled request."""
        self.write(
            f"Prefill batch, #new-seq: 1, #new-token: {new_tokens}, #cached-token: 0, token usage: {usage:.2f}, "
            f"#running-req: 0, #queue-req: {queued}, #pending-token: 0, cpu graph: False, "
            f"input throughput (token/s): {throughput:.2f}"
        )

    def decode(self, window: DecodeWindow) -> None:
        """One line per `--decode-log-interval` decode iterations."""
        accept = ""
        if window.speculative:
            accept = f"accept len: {window.accept_length:.2f}, accept rate: {window.accept_rate:.2f}, "
        self.write(
            f"Decode batch, #running-req: {window.running}, #token: {window.used_tokens}, "
            f"token usage: {window.token_usage:.2f}, {accept}cpu graph: False, "
            f"gen throughput (token/s): {window.throughput:.2f}, #queue-req: {window.queued}"
        )


def available_gib() -> float:
    """Memory the system could still give out, in GiB; 0.0 where /proc does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) / 1024**2
    except OSError:
        pass
    return 0.0
