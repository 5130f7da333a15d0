"""The life of one server process: load, bind, warm up, serve, drain, exit; every milestone logged as SGLang logs it."""

from __future__ import annotations

import http.client
import json
import os
import platform
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, urlsplit

import numpy as np

from console.demo.engine.engine import Engine
from console.demo.engine.errors import ArgumentError
from console.demo.engine.log import Log
from console.demo.engine.routes import Response, Service
from console.demo.engine.scheduler import Scheduler
from console.demo.engine.server_args import ServerArgs, parse, resolve
from console.demo.engine.version import ENGINE, __version__

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_BIND = 0, 1, 2, 3  # 3 is uvicorn's own code for a failed start-up
DRAIN_SECONDS = 3.0
BODY_LIMIT = 16 * 1024 * 1024
WARMUP = {"text": "The capital city of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}


class HTTPServer(ThreadingHTTPServer):
    """Sockets and threads; knows the Service only to hand requests to it."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, port: int, service: Service, log: Log) -> None:
        """Bind and listen; raises OSError when the address is taken."""
        self.service = service
        self.log = log
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), RequestHandler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A broken connection is the client's business; anything else is logged."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            self.log.write(f"Exception in HTTP handler: {traceback.format_exc()}", level="error")


class RequestHandler(BaseHTTPRequestHandler):
    """One connection: reads requests, answers through the Service, writes access lines."""

    protocol_version = "HTTP/1.1"
    server_version = "sglang-compatible-demo"
    sys_version = ""
    wbufsize = -1  # one packet for headers and body: unbuffered, a keep-alive client waits 40 ms for the second
    timeout = 120
    error_content_type = "application/json"
    error_message_format = '{"detail": "%(message)s"}'
    server: HTTPServer

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer("GET")

    def do_POST(self) -> None:
        """Answer a POST."""
        self._answer("POST")

    def _answer(self, method: str) -> None:
        body = self._read_body()
        if body is None:
            self.close_connection = True
            self._send(Response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b'{"detail": "Content Too Large"}'))
            return
        path = urlsplit(self.path).path
        self._send(self.server.service.handle(method, path, body, self.headers.get("Authorization", "")))

    def _read_body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > BODY_LIMIT or "Transfer-Encoding" in self.headers:
            return None
        return self.rfile.read(int(length))

    def _send(self, response: Response) -> None:
        self.send_response_only(response.status)
        self.send_header("Server", self.server_version)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        self.wfile.write(response.body)
        client = f"{self.client_address[0]}:{self.client_address[1]}"
        shown = quote(self.path, safe="/?&=%:,+-_.~")
        self.server.log.access(
            client, f"{self.command} {shown} HTTP/1.1", response.status.value, response.status.phrase
        )

    def log_message(self, format: str, *args: object) -> None:
        """Silence the standard library's own lines: `_send` has written the access line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a server until SIGTERM; the exit code says how it ended (0 drained, 1 failed, 2 usage, 3 address taken)."""
    given = parse(sys.argv[1:], sys.orig_argv[: -len(sys.argv[1:]) or None]) if argv is None else parse(argv)
    log = Log(given.log_level)
    try:
        args, notices = resolve(given)
    except ArgumentError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    log.write(f"demo engine {__version__} ({ENGINE}), python {platform.python_version()}, numpy {np.__version__}")
    for notice in notices:
        log.write(notice, level="warning")
    log.write(f"server_args={args.shown()}")
    return Server(args, log).run()


class Server:
    """One process from load to exit."""

    def __init__(self, args: ServerArgs, log: Log) -> None:
        self.args = args
        self.log = log
        self._began = time.perf_counter()
        self._startup_seconds = 0.0
        self._stop = threading.Event()

    def run(self) -> int:
        """Everything, in SGLang's order; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            engine = Engine.load(self.args, self.log.load)
        except Exception:  # noqa: BLE001 - the edge of start-up: whatever stops loading is logged as SGLang logs it
            self.log.write(f"Scheduler hit an exception: {traceback.format_exc()}", level="error")
            self.log.write("Received sigquit from a child process. It usually means the child failed.", level="error")
            return EXIT_FAILED
        self.log.capacity(engine.context_len)
        loaded = time.perf_counter() - self._began
        self.log.write(f"Engine startup timings (s): load_weight={loaded:.2f}, scheduler_e2e={loaded:.2f}")
        scheduler = Scheduler(engine, self.log, self._die)
        service = Service(scheduler, self.log, lambda: self._startup_seconds)
        for line in (f"Started server process [{os.getpid()}]", "Waiting for application startup."):
            self.log.write(f"INFO:     {line}")
        self.log.write("INFO:     Application startup complete.")
        try:
            httpd = HTTPServer(self.args.host, self.args.port, service, self.log)
        except OSError as error:
            return self._bind_failed(error)
        scheduler.start()
        threading.Thread(target=httpd.serve_forever, name="http", daemon=True).start()
        host = f"[{self.args.host}]" if ":" in self.args.host else self.args.host
        self.log.write(f"INFO:     Uvicorn running on http://{host}:{self.args.port} (Press CTRL+C to quit)")
        threading.Thread(target=self._warm_up, args=(service,), name="warm-up", daemon=True).start()
        self._stop.wait()
        return self._drain(httpd, service)

    def _on_signal(self, number: int, frame: object) -> None:
        self._stop.set()

    def _bind_failed(self, error: OSError) -> int:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        address = (self.args.host, self.args.port)
        self.log.write(
            f"ERROR:    [Errno {error.errno}] error while attempting to bind on address {address}: {reason}",
            level="error",
        )
        for line in ("Waiting for application shutdown.", "Application shutdown complete."):
            self.log.write(f"INFO:     {line}")
        return EXIT_BIND

    def _warm_up(self, service: Service) -> None:
        """The two requests SGLang sends to itself; the server counts as healthy only when both are answered."""
        try:
            if not self.args.skip_server_warmup:
                self._request("GET", "/model_info", None)
                self._request("POST", "/generate", json.dumps(WARMUP))
        except (OSError, http.client.HTTPException, RuntimeError):
            if self._stop.is_set():
                return
            self.log.write(f"Initialization failed. warmup error: {traceback.format_exc()}", level="error")
            self._die()
            return
        self._startup_seconds = time.perf_counter() - self._began
        service.up.set()
        self.log.write("The server is fired up and ready to roll!")

    def _request(self, method: str, path: str, body: str | None) -> None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.args.host, self.args.host)
        connection = http.client.HTTPConnection(host, self.args.port, timeout=60)
        headers = {"Authorization": f"Bearer {self.args.api_key}"} if self.args.api_key else {}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status != HTTPStatus.OK:
            raise RuntimeError(f"{method} {path} answered {response.status}: {text[:500].decode('utf-8', 'replace')}")

    def _die(self) -> None:
        """What SGLang's parent does when a child fails; os._exit, because this is not the main thread."""
        self.log.write("SIGQUIT received. signum=None, frame=None. It usually means one child failed.", level="error")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_FAILED)

    def _drain(self, httpd: HTTPServer, service: Service) -> int:
        service.draining.set()
        scheduler = service.scheduler
        self.log.write(
            "SIGTERM received. signum=None frame=None. Draining requests and shutting down...", level="warning"
        )
        scheduler.stop(DRAIN_SECONDS)
        left = scheduler.remaining()
        self.log.write(
            f"Gracefully exiting... Remaining number of requests {left}. Remaining requests remaining_rids=[]."
        )
        self.log.write("INFO:     Shutting down")
        httpd.shutdown()
        httpd.server_close()
        for line in ("Waiting for application shutdown.", "Application shutdown complete."):
            self.log.write(f"INFO:     {line}")
        self.log.write(f"INFO:     Finished server process [{os.getpid()}]")
        return EXIT_OK
