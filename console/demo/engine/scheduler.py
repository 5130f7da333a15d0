"""The one thread that computes: requests in order of arrival, log lines as they are served, a loud death on a bug."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from console.demo.engine import tokenizer
from console.demo.engine.decoding import Generation, Step
from console.demo.engine.engine import Engine
from console.demo.engine.errors import RequestError
from console.demo.engine.log import Log
from console.demo.engine.models.layers import Floats
from console.demo.engine.stats import Stats


@dataclass(frozen=True, slots=True)
class GenerateJob:
    """One generation to run; ids and limits are already checked."""

    ids: tuple[int, ...]
    max_new_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()
    keep_hidden: bool = False


@dataclass(frozen=True, slots=True)
class StatesJob:
    """All states of some ids, for the demo-only route."""

    ids: tuple[int, ...]


@dataclass(slots=True)
class Ticket:
    """What a caller waits on."""

    job: GenerateJob | StatesJob
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: RequestError | None = None


class Scheduler:
    """Runs jobs one at a time, first come first served, on its own thread."""

    def __init__(self, engine: Engine, log: Log, on_crash: Callable[[], None]) -> None:
        """`on_crash` is called after an unexpected exception has been logged; it must end the process."""
        self.engine = engine
        self._log = log
        self._on_crash = on_crash
        self._queue: queue.Queue[Ticket | None] = queue.Queue()
        self._stopping = threading.Event()
        self._active: Ticket | None = None
        self.progress = 0
        """Counts every forward pass; a health check on a busy server watches it move."""
        steps = engine.steps if engine.drafter is not None else None
        self.stats = Stats(log, engine.args.decode_log_interval, steps, engine.context_len, self.waiting)
        self._thread = threading.Thread(target=self._loop, name="scheduler", daemon=True)

    def start(self) -> None:
        """Begin serving."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Let the running job end at its next step, refuse the rest, and wait up to `timeout` seconds."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(timeout)

    def waiting(self) -> int:
        """Jobs that have not started."""
        return self._queue.qsize()

    def remaining(self) -> int:
        """Jobs that have not ended."""
        return self.waiting() + (self._active is not None)

    def generate(self, job: GenerateJob) -> Generation:
        """Run a generation and wait for it; raises RequestError."""
        result: Generation = self._submit(job)
        return result

    def states(self, job: StatesJob) -> Floats:
        """All states, [S, n+1, H]; waits for its turn; raises RequestError."""
        result: Floats = self._submit(job)
        return result

    def _submit(self, job: GenerateJob | StatesJob) -> Any:
        ticket = Ticket(job)
        if self._stopping.is_set():
            raise RequestError("the server is shutting down")
        self._queue.put(ticket)
        while not ticket.done.wait(0.5):
            if self._stopping.is_set() and not self._thread.is_alive():
                raise RequestError("the server is shutting down")
        if ticket.error is not None:
            raise ticket.error
        return ticket.result

    def _loop(self) -> None:
        while (ticket := self._queue.get()) is not None:
            self._active = ticket
            try:
                if self._stopping.is_set():
                    raise RequestError("the server is shutting down")
                ticket.result = self._run(ticket.job)
            except RequestError as error:
                ticket.error = error
            except Exception:  # noqa: BLE001 - the worker boundary: a bug here must end the server, as in SGLang
                self._log.write(f"Scheduler hit an exception: {traceback.format_exc()}", level="error")
                self._on_crash()
                return
            self._active = None
            ticket.done.set()

    def _run(self, job: GenerateJob | StatesJob) -> Generation | Floats:
        if isinstance(job, StatesJob):
            return self.engine.states(job.ids)
        self.stats.running = 1
        try:
            generation = self.engine.generate(
                job.ids,
                job.max_new_tokens,
                stop_tokens=job.stop_tokens,
                stop_after=_text_stop(job.stop_texts),
                keep_hidden=job.keep_hidden,
                on_step=lambda step: self._on_step(len(job.ids), step),
                cancelled=self._stopping.is_set,
            )
        finally:
            self.stats.running = 0
        self.stats.finished(generation.prompt_tokens, len(generation.tokens), generation.verify_rounds)
        return generation

    def _on_step(self, prompt_tokens: int, step: Step) -> None:
        self.progress += 1
        if step.prefill:
            self.stats.prefill(prompt_tokens, step)
        else:
            self.stats.decode(step)


def _text_stop(texts: tuple[str, ...]) -> Callable[[Sequence[int]], bool] | None:
    if not texts:
        return None
    wanted = [text.encode("utf-8") for text in texts]
    return lambda tokens: any(tokenizer.to_bytes(tokens).endswith(text) for text in wanted)
