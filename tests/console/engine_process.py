"""The embedded engine as a real process on a free loopback port, and plain HTTP calls to it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60.0
READY = "The server is fired up and ready to roll!"


@dataclass
class EngineProcess:
    """One server process, its log file and its URL."""

    process: subprocess.Popen[bytes]
    log_path: Path
    url: str
    port: int

    def log(self) -> str:
        """Everything written so far, stdout and stderr together."""
        return self.log_path.read_text(encoding="utf-8")

    def wait_for(self, text: str) -> None:
        """Wait until the log holds `text`; fails when the process ends first."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while text not in self.log():
            if self.process.poll() is not None and text not in self.log():
                raise AssertionError(f"the engine ended with {self.process.returncode} before {text!r}:\n{self.log()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {text!r} within {START_TIMEOUT_S} s:\n{self.log()}")
            time.sleep(0.02)

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        """Status and body of a GET."""
        return _call(urllib.request.Request(self.url + path, headers=headers))

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and parsed JSON of a POST; `body` is sent as it is when bytes, else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, content = _call(urllib.request.Request(self.url + path, data, headers))
        return status, json.loads(content)


def _call(request: urllib.request.Request) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def free_port() -> int:
    """A loopback port that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def speculative_flags(draft: Path, steps: int = 5) -> list[str]:
    """Launch flags for a chain of `steps` drafts."""
    return [
        *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft)),
        *("--speculative-num-steps", str(steps), "--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", str(steps + 1)),
    ]


@contextlib.contextmanager
def running_engine(folder: Path, target: Path, *flags: str, port: int | None = None) -> Iterator[EngineProcess]:
    """Start an engine with its log in `folder`; it is killed at the end if it still runs. Does not wait for it."""
    port = port or free_port()
    log_path = folder / f"engine-{port}.log"
    argv = [sys.executable, "-m", "console.demo.engine", "--model-path", str(target), "--port", str(port), *flags]
    with log_path.open("ab") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        yield EngineProcess(process, log_path, f"http://127.0.0.1:{port}", port)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
