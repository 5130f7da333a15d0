"""vLLM's log: how it dies, and what it says on the way."""

from __future__ import annotations

import pytest

from checks.engines.events import Decode, Error, Other, Phase
from checks.engines.vllm import log

CORE = "(EngineCore pid=7) "
SERVER = "(APIServer pid=5) "
UP = (
    f"{SERVER}INFO 11-29 21:54:30 [api_utils.py:286] non-default args: {{'model': '/models/target'}}",
    "(Worker pid=9) INFO 11-29 21:56:50 [cpu_model_runner.py:68] Starting to load model /models/target...",
    "INFO:     Started server process [5]",
    "INFO:     Application startup complete.",
)
LEAVING = (
    "INFO:     Shutting down",
    "INFO:     Waiting for application shutdown.",
    "INFO:     Application shutdown complete.",
    "INFO:     Finished server process [5]",
)


def phases(*lines: str) -> list[str]:
    return list(dict.fromkeys(event.phase for event in log.parse_lines(lines) if isinstance(event, Phase)))


def error(line: str) -> Error:
    (event,) = log.parse(line)
    assert isinstance(event, Error), event
    return event


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("OSError: [Errno 98] Address already in use", "port-taken"),
        ("  Value error, Invalid repository ID or local directory specified: '/models/elsewhere'.", "path-missing"),
        (
            f"{CORE}ERROR 11-29 22:02:07 [core.py:1510] ValueError: To serve at least one request with the model's "
            "max seq len (512), (0.02 GiB KV cache is needed, which is larger than the available KV cache memory",
            "out-of-memory",
        ),
        (
            "ValueError: Available memory on node 0 (18.0/21.46 GiB) on kv cache allocation is less than requested "
            "memory for kv (100.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory",
            "out-of-memory",
        ),
        (
            "(Worker pid=9) ERROR 11-29 21:58:35 [multiproc_executor.py:1063]     hidden_states, aux_hidden_states = "
            "model_output",
            "aux-width",
        ),
        (
            f"{SERVER}WARNING 11-29 22:00:05 [core_client.py:817] [shutdown] MPClient: engine core exited "
            "unexpectedly; starting cleanup",
            "child-died",
        ),
        ("(Worker pid=9) ERROR 11-29 21:58:35 [multiproc_executor.py:1063] WorkerProc hit an exception.", "exception"),
    ],
)
def test_the_causes_of_forced_ends(line: str, kind: str) -> None:
    found = error(line)
    assert (found.kind, found.fatal) == (kind, True)
    assert found.advice


@pytest.mark.parametrize("words", ["auxiliary layers from speculative config", "Eagle3 auxiliary layers from config"])
def test_ids_as_text_are_warned_about_at_start_and_numbers_are_not(words: str) -> None:
    found = error(f"(Worker pid=9) INFO 11-29 21:56:53 [gpu_model_runner.py:5243] Using {words}: ('3', '7', '10')")
    assert (found.kind, found.fatal) == ("aux-ids-type", False)
    (other,) = log.parse(f"(Worker pid=9) INFO 11-29 21:56:53 [gpu_model_runner.py:5243] Using {words}: (3, 7, 10)")
    assert isinstance(other, Other)


def test_a_server_whose_engine_died_takes_its_leave_and_stays_crashed() -> None:
    died = f"{CORE}ERROR 11-29 21:58:35 [core.py:1512] EngineCore encountered a fatal error."
    assert phases(*UP, died, *LEAVING) == ["starting", "loading", "warming", "ready", "crashed"]
    reader = log.Reader()
    for line in (*UP, died, *LEAVING, *UP):
        list(reader.feed(line))
    assert reader.phase == "ready"  # a second life in the same file


def test_a_server_that_is_told_to_end_stops() -> None:
    told = f"{SERVER}INFO 11-29 21:55:49 [launcher.py:254] [shutdown] API server: shutdown triggered"
    assert phases(*UP, told, *LEAVING[:3]) == ["starting", "loading", "warming", "ready", "draining", "stopped"]


@pytest.mark.parametrize("device", ["GPU", "CPU", "XPU"])
def test_the_cache_in_use_is_read_whatever_the_device(device: str) -> None:
    (event,) = log.parse(
        f"{SERVER}INFO 11-29 21:55:49 [loggers.py:335] Engine 000: Avg prompt throughput: 4.1 tokens/s, Avg generation "
        f"throughput: 8.2 tokens/s, Running: 1 reqs, Waiting: 2 reqs, {device} KV cache usage: 12.5%, "
        "Prefix cache hit rate: 0.0%"
    )
    assert isinstance(event, Decode)
    assert (event.token_usage, event.running, event.queue) == (0.125, 1, 2)
