"""Real engines as processes of a test: started on a free loopback port, waited for, stopped, the log kept on failure.

The engines live in environments of their own (`make test-engines` makes them). Start one at a time: two cores carry no
more, and a server that shares them is slow enough to be mistaken for a hanging one.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from console.demo.setup import STEPS

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".pytest_cache" / "engine-logs"
"""Where the log of a server whose test failed is left."""

START_S = 300.0
"""A start takes 15 to 75 s on two cores, as much as the others leave."""
STOP_S = 30.0
ANSWER_S = 120.0

_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",  # otherwise the first request compiles C++ for a minute
}
SGLANG_VARIABLES = {**_VARIABLES, "SGLANG_USE_CPU_ENGINE": "1"}
VLLM_VARIABLES = {**_VARIABLES, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}

SGLANG_ARGS: dict[str, Any] = {
    "device": "cpu",
    "attention-backend": "intel_amx",  # the only backend that drafts on a CPU
    "dtype": "float32",  # in bf16 near ties fall differently from engine to engine, and texts part
    "max-total-tokens": 16384,  # the default takes most of the machine's memory
    "max-running-requests": 8,
    "mem-fraction-static": 0.5,
    "speculative-algorithm": "EAGLE3",
    "speculative-num-steps": STEPS,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": STEPS + 1,
    "enable-return-hidden-states": True,
    "enable-metrics": True,
    "decode-log-interval": 10,
}
"""Launch flags of a deployment: SGLang serving the demo's pair in fp32 on a CPU."""


class EngineEnded(AssertionError):
    """The server ended, or did not come up; the end of its log follows."""


def python_of(engine: str) -> str:
    """The interpreter of an engine's environment: of SGLANG_PYTHON or VLLM_PYTHON, else the one that make made."""
    path = os.environ.get(f"{engine.upper()}_PYTHON") or str(ROOT / f".venv-{engine}" / "bin" / "python")
    if not os.access(path, os.X_OK):
        raise AssertionError(f"no {path}: `make test-engines` makes it, or {engine.upper()}_PYTHON names another one")
    return path


@dataclass
class EngineServer:
    """One server process, in a process group of its own."""

    process: subprocess.Popen[bytes]
    log_path: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        """Everything written so far, stdout and stderr together."""
        return self.log_path.read_text("utf-8", "replace")

    def await_healthy(self) -> None:
        """Wait until it serves. Raises EngineEnded."""
        deadline = time.monotonic() + START_S
        while not self._healthy():
            if self.process.poll() is not None:
                raise EngineEnded(f"it ended with {self.process.returncode}:\n{self.log()[-4000:]}")
            if time.monotonic() > deadline:
                raise EngineEnded(f"not healthy within {START_S:.0f} s:\n{self.log()[-4000:]}")
            time.sleep(0.5)

    def await_end(self) -> int:
        """Wait until it ends by itself; its exit code. Raises EngineEnded when it does not."""
        try:
            return self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            raise EngineEnded(f"still there after {START_S:.0f} s:\n{self.log()[-4000:]}") from None

    def stop(self) -> None:
        """End the process group: SIGTERM to the server, then SIGKILL to what is left of the group."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _healthy(self) -> bool:
        try:
            return self.get("/health")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a GET."""
        status, body = _call(urllib.request.Request(self.url + path))
        return status, body.decode()

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON answer to a POST. Raises AssertionError for any status but 200."""
        headers = {"Content-Type": "application/json"}
        status, content = _call(urllib.request.Request(self.url + path, json.dumps(body).encode(), headers))
        assert status == 200, f"{path} answered {status}: {content[:500]!r}"
        answer: dict[str, Any] = json.loads(content)
        return answer

    def generate(self, ids: Sequence[int], max_new_tokens: int) -> dict[str, Any]:
        """SGLang's greedy continuation of a prompt of token ids, past end-of-text."""
        params = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True}
        return self.post("/generate", {"input_ids": list(ids), "sampling_params": params})


def unused_port() -> int:
    """A loopback port that nothing listens on, below those that the system gives out by itself.

    An engine binds its port at the end of its start, tens of seconds after it was chosen.
    """
    for port in random.sample(range(20000, 30000), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port among a hundred tried")


@contextlib.contextmanager
def running_sglang(
    folder: Path, target: Path, draft: Path | None, port: int | None = None, args: Mapping[str, Any] | None = None
) -> Iterator[EngineServer]:
    """SGLang serving the pair with SGLANG_ARGS, `args` on top of them (None leaves a flag out). Not waited for."""
    port = port or unused_port()
    flags = {"model-path": target, "speculative-draft-model-path": draft, "host": "127.0.0.1", "port": port}
    argv = [python_of("sglang"), "-m", "sglang.launch_server", *_words({**flags, **SGLANG_ARGS, **(args or {})})]
    with _running(folder, argv, SGLANG_VARIABLES, port) as server:
        yield server


@contextlib.contextmanager
def running_vllm(
    folder: Path, target: Path, draft: Path, port: int | None = None, args: Mapping[str, Any] | None = None
) -> Iterator[EngineServer]:
    """vLLM serving the pair in fp32, with chains as long as SGLang's; `args` on top of its flags. Not waited for."""
    port = port or unused_port()
    speculation = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": STEPS}
    flags = {
        "model": target,
        "dtype": "float32",  # the bf16 attention of this build needs instructions that few machines have
        "max-model-len": 512,
        "max-num-seqs": 4,
        "enforce-eager": True,
        "host": "127.0.0.1",
        "port": port,
        "speculative-config": json.dumps(speculation),
    }
    argv = [python_of("vllm"), "-m", "vllm.entrypoints.openai.api_server", *_words({**flags, **(args or {})})]
    with _running(folder, argv, VLLM_VARIABLES, port) as server:
        yield server


@contextlib.contextmanager
def _running(folder: Path, argv: list[str], variables: Mapping[str, str], port: int) -> Iterator[EngineServer]:
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / f"server-{port}.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **variables},
            start_new_session=True,
        )
    server = EngineServer(process, log_path, port)
    try:
        yield server
    except BaseException:
        KEPT.mkdir(parents=True, exist_ok=True)
        shutil.copy(log_path, KEPT)
        raise
    finally:
        server.stop()


def _words(flags: Mapping[str, Any]) -> Iterator[str]:
    for name, value in flags.items():
        if value is not None:
            yield f"--{name}"
            if value is not True:
                yield str(value)


def _call(request: urllib.request.Request) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
