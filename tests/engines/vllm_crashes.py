"""Ways for vLLM to die that can be forced: how each is provoked, and what its log must be read as.

`python -m tests.engines.vllm_crashes NAME…` provokes them and keeps their logs as the recordings beside this file.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from checks.engines.vllm import log
from console.demo.setup import RIGHT, TRAINED_STATES
from tests.console.engine_process import READY, running_engine, speculative_flags
from tests.engines.crashes import RECORDINGS, Crash, Reading, child, neutral, read
from tests.engines.pair import Pair, copied_pair, prompts
from tests.engines.serving import EngineServer, running_vllm, unused_port

IDS = "eagle_aux_hidden_state_layer_ids"
PROMPT_TOKENS = 96


def _wired(folder: Path, *ids: object) -> Pair:
    """The shipped pair with these ids where vLLM reads them first; without any, the right ones."""
    pair = copied_pair(folder, RIGHT)
    pair.edit({IDS: list(ids or TRAINED_STATES)})
    return pair


def _complete(server: EngineServer, tokens: int) -> None:
    model = json.loads(server.get("/v1/models")[1])["data"][0]["id"]
    body = {"model": model, "prompt": prompts(1)[0], "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    server.post("/v1/completions", body)


def _start_only(*ids: object, args: Mapping[str, Any] | None = None) -> Callable[[Path], str]:
    """A start that fails by itself."""

    def provoke(folder: Path) -> str:
        pair = _wired(folder, *ids)
        with running_vllm(folder, pair.target, pair.draft, args=args) as server:
            server.await_end()
            return server.log()

    return provoke


def _missing_draft(folder: Path) -> str:
    pair = _wired(folder)
    with running_vllm(folder, pair.target, pair.draft.with_name("elsewhere")) as server:
        server.await_end()
        return server.log()


def _port_taken(folder: Path) -> str:
    """A server of another kind owns the port."""
    pair, port = _wired(folder), unused_port()
    with running_engine(folder, pair.target, *speculative_flags(pair.draft), port=port) as older:
        older.wait_for(READY)
        with running_vllm(folder, pair.target, pair.draft, port=port) as server:
            server.await_end()
            return server.log()


def _in_service(*ids: object) -> Callable[[Path], str]:
    """A server that answers, and is then asked to end."""

    def provoke(folder: Path) -> str:
        pair = _wired(folder, *ids)
        with running_vllm(folder, pair.target, pair.draft) as server:
            server.await_healthy()
            _complete(server, PROMPT_TOKENS)
            await_statistics(server)
            server.process.terminate()
            server.await_end()
            return server.log()

    return provoke


def _until_asked(*ids: object) -> Callable[[Path], str]:
    """A server that dies of its first request."""

    def provoke(folder: Path) -> str:
        pair = _wired(folder, *ids)
        with running_vllm(folder, pair.target, pair.draft) as server:
            server.await_healthy()
            with suppress(AssertionError, OSError, HTTPException):
                _complete(server, PROMPT_TOKENS)
            server.await_end()
            return server.log()

    return provoke


def _killed_core(folder: Path) -> str:
    """The engine's own process is killed in service, as the system does when memory runs out."""
    pair = _wired(folder)
    with running_vllm(folder, pair.target, pair.draft) as server:
        server.await_healthy()
        _complete(server, PROMPT_TOKENS)
        await_statistics(server)
        os.kill(child(server, b"VLLM::EngineCore"), signal.SIGKILL)
        server.await_end()
        return server.log()


def await_statistics(server: EngineServer) -> None:
    """Wait for the line with the acceptance, which is printed every ten seconds."""
    deadline = time.monotonic() + 30
    while "SpecDecoding metrics" not in server.log() and time.monotonic() < deadline:
        time.sleep(0.5)


def reading(text: str) -> Reading:
    """A whole log of vLLM through its parser."""
    return read(text, log)


def _expect(cause: str, *phases: str) -> Reading:
    return Reading(phases, cause)


CRASHES: dict[str, Crash] = {
    # The port is bound before anything is loaded.
    "vllm-port-taken": Crash(_port_taken, _expect("port-taken", "starting", "crashed")),
    "vllm-missing-draft": Crash(_missing_draft, _expect("path-missing", "starting", "crashed")),
    # The state after the last layer is one that vLLM has: nothing dies.
    "vllm-ids-at-last-layer": Crash(
        _in_service(3, 7, 12), _expect("", "starting", "loading", "warming", "ready", "serving", "draining", "stopped")
    ),
    # No layer's number equals a text: the target gives no states, which the first request finds out.
    "vllm-ids-as-strings": Crash(
        _until_asked("3", "7", "10"), _expect("aux-width", "starting", "loading", "warming", "ready", "crashed")
    ),
    "vllm-killed-core": Crash(
        _killed_core, _expect("child-died", "starting", "loading", "warming", "ready", "serving", "crashed")
    ),
    "vllm-too-little-memory": Crash(
        _start_only(args={"num-gpu-blocks-override": 2}), _expect("out-of-memory", "starting", "loading", "crashed")
    ),
}

LIVE = ("vllm-port-taken", "vllm-missing-draft", "vllm-killed-core")
"""Made anew by the tests; a start takes vLLM most of a minute, so that the others are read from their recordings."""


def main() -> None:
    """Record the crashes named, or all."""
    for name in sys.argv[1:] or CRASHES:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place).resolve()
            text = re.sub(r"/tmp/vllm_dist_\w+", "/run/vllm_dist", neutral(CRASHES[name].provoke(folder), folder))
        (RECORDINGS / f"{name}.log").write_text(text, "utf-8")
        print(f"{name}: {reading(text)} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
