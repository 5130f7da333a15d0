"""The HTTP surface, independent of sockets: a table of routes over one Service."""

from __future__ import annotations

import hmac
import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from console.demo.engine.api import generate_job, generation_body, read_body, states_body, states_job
from console.demo.engine.errors import RequestError
from console.demo.engine.log import Log
from console.demo.engine.scheduler import GenerateJob, Scheduler
from console.demo.engine.version import ENGINE, __version__

HEALTH_TIMEOUT_S = 20.0
_OPEN_PATHS = frozenset({"/health", "/health_generate", "/metrics", "/ready"})


@dataclass(frozen=True, slots=True)
class Response:
    """Status, content type and body of one answer."""

    status: HTTPStatus
    body: bytes = b""
    content_type: str = "application/json"


def _json(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(status, json.dumps(value).encode("utf-8"))


def _error(message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> Response:
    return _json({"error": {"message": message}}, status)


class Service:
    """What the routes answer from. `up` is set when warm-up is through, `draining` when the server is to end."""

    def __init__(self, scheduler: Scheduler, log: Log, startup_seconds: Callable[[], float]) -> None:
        self.scheduler = scheduler
        self.log = log
        self.up = threading.Event()
        self.draining = threading.Event()
        self._startup_seconds = startup_seconds

    def handle(self, method: str, path: str, body: bytes, authorization: str) -> Response:
        """Answer one request; `path` is without its query."""
        args = self.scheduler.engine.args
        if args.api_key and path not in _OPEN_PATHS:
            expected = f"Bearer {args.api_key}".encode()
            if not hmac.compare_digest(authorization.encode("utf-8", "replace"), expected):
                return _json({"error": "Unauthorized"}, HTTPStatus.UNAUTHORIZED)
        methods = {verb for verb, known in ROUTES if known == path}
        if not methods or (path == "/metrics" and not args.enable_metrics):
            return _json({"detail": "Not Found"}, HTTPStatus.NOT_FOUND)
        if method not in methods:
            return _json({"detail": "Method Not Allowed"}, HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            return ROUTES[method, path](self, body)
        except RequestError as error:
            return _error(str(error))

    def health(self, _: bytes) -> Response:
        """One real token on an idle server; on a busy one, proof that the running request moves."""
        if not self.up.is_set() or self.draining.is_set():
            return Response(HTTPStatus.SERVICE_UNAVAILABLE)
        scheduler, before = self.scheduler, self.scheduler.progress
        if not scheduler.remaining():
            scheduler.generate(GenerateJob(ids=(0,), max_new_tokens=1))
            return Response(HTTPStatus.OK)
        deadline = time.monotonic() + HEALTH_TIMEOUT_S
        while time.monotonic() < deadline:
            if scheduler.progress != before or not scheduler.remaining():
                return Response(HTTPStatus.OK)
            time.sleep(0.02)
        return Response(HTTPStatus.SERVICE_UNAVAILABLE)

    def ready(self, _: bytes) -> Response:
        """Readiness without a generation."""
        ready = self.up.is_set() and not self.draining.is_set()
        return Response(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    def model_info(self, _: bytes) -> Response:
        """What is served."""
        args = self.scheduler.engine.args
        return _json(
            {
                "model_path": args.model_path,
                "served_model_name": args.served_model_name,
                "tokenizer_path": args.model_path,
                "is_generation": True,
                "weight_version": "default",
                "load_format": "auto",
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "engine": ENGINE,
            }
        )

    def server_info(self, _: bytes) -> Response:
        """Resolved flags, identity, and the live state of the one rank."""
        scheduler = self.scheduler
        engine, shown = scheduler.engine, scheduler.engine.args.shown()
        memory = {"kvcache": round(2 * engine.cache.nbytes / 1024**3, 4), "token_capacity": engine.context_len}
        state = {**shown, **scheduler.stats.internal_state(), "memory_usage": memory}
        state["effective_max_running_requests_per_dp"] = 1
        return _json(
            {
                **shown,
                "max_total_num_tokens": engine.context_len,
                "max_req_input_len": engine.context_len - 1,
                "startup_time": self._startup_seconds(),
                "status": "ready" if self.up.is_set() else "starting",
                "pid": os.getpid(),
                "internal_states": [state],
                "version": __version__,
                "engine": ENGINE,
            }
        )

    def models(self, _: bytes) -> Response:
        """The served model in OpenAI's list form."""
        engine = self.scheduler.engine
        card = {"id": engine.args.served_model_name, "object": "model", "owned_by": "demo"}
        return _json({"object": "list", "data": [{**card, "max_model_len": engine.context_len}]})

    def metrics(self, _: bytes) -> Response:
        """Prometheus text."""
        name = self.scheduler.engine.args.served_model_name or ""
        text = self.scheduler.stats.prometheus(name, self._startup_seconds())
        return Response(HTTPStatus.OK, text.encode("utf-8"), "text/plain; version=0.0.4; charset=utf-8")

    def flush_cache(self, _: bytes) -> Response:
        """Reset the acceptance counters; refused while requests run, as there is nothing else to flush."""
        if self.scheduler.remaining():
            text = "Flush cache failed.\n"
            return Response(HTTPStatus.BAD_REQUEST, text.encode(), "text/plain; charset=utf-8")
        self.scheduler.stats.reset()
        self.log.write("Cache flushed successfully!")
        text = (
            "Cache flushed.\nPlease check backend logs for more details. "
            "(When there are running or waiting requests, the operation will not be performed.)\n"
        )
        return Response(HTTPStatus.OK, text.encode(), "text/plain; charset=utf-8")

    def generate(self, body: bytes) -> Response:
        """Greedy generation."""
        began = time.perf_counter()
        parsed = read_body(body)
        job = generate_job(parsed, self.scheduler.engine)
        generation = self.scheduler.generate(job)
        rid = parsed.get("rid")
        rid = rid if isinstance(rid, str) else uuid.uuid4().hex
        return _json(generation_body(generation, self.scheduler.engine, rid, time.perf_counter() - began))

    def states(self, body: bytes) -> Response:
        """Demo only: every R_k of the ids sent, run without cache."""
        return _json(states_body(self.scheduler.states(states_job(read_body(body), self.scheduler.engine))))


ROUTES: dict[tuple[str, str], Callable[[Service, bytes], Response]] = {
    ("GET", "/health"): Service.health,
    ("GET", "/health_generate"): Service.health,
    ("GET", "/ready"): Service.ready,
    ("GET", "/model_info"): Service.model_info,
    ("GET", "/get_model_info"): Service.model_info,
    ("GET", "/server_info"): Service.server_info,
    ("GET", "/get_server_info"): Service.server_info,
    ("GET", "/v1/models"): Service.models,
    ("GET", "/metrics"): Service.metrics,
    ("GET", "/flush_cache"): Service.flush_cache,
    ("POST", "/flush_cache"): Service.flush_cache,
    ("POST", "/generate"): Service.generate,
    ("POST", "/demo/states"): Service.states,
}
