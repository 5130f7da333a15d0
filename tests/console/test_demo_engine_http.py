"""The embedded engine as a process: its HTTP surface, its log, its ways to start and to end."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from console.demo.engine.engine import Engine
from console.demo.engine.server_args import ServerArgs
from tests.console.engine_process import READY, ROOT, EngineProcess, running_engine, speculative_flags
from tests.console.random_pair import write_draft_config, write_random_pair

TEXT = "def hello(self):"
DECODE_LINE = re.compile(
    r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] Decode batch, #running-req: 1, #token: \d+, token usage: \d\.\d\d, "
    r"accept len: (\d\.\d\d), accept rate: (\d\.\d\d), cpu graph: False, "
    r"gen throughput \(token/s\): \d+\.\d\d, #queue-req: 0$",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_random_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> Iterator[EngineProcess]:
    target, draft = pair
    flags = [
        *speculative_flags(draft),
        "--enable-return-hidden-states",
        "--enable-metrics",
        "--decode-log-interval",
        "1",
    ]
    with running_engine(tmp_path_factory.mktemp("log"), target, *flags) as process:
        process.wait_for(READY)
        yield process


def generate(engine: EngineProcess, **body: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "ignore_eos": True, **body.pop("sampling_params", {})}
    status, answer = engine.post("/generate", {**body, "sampling_params": sampling})
    assert status == 200, answer
    assert isinstance(answer, dict)
    return answer


def test_start_up_milestones_come_in_order(engine: EngineProcess) -> None:
    milestones = [
        "demo, sglang-compatible",
        "server_args={",
        "Load weight begin. avail mem=",
        "type=LlamaForCausalLM,",
        "type=LlamaForCausalLMEagle3,",
        "KV Cache is allocated. dtype: ",
        "max_total_num_tokens=512,",
        "Started server process [",
        f"Uvicorn running on {engine.url} (Press CTRL+C to quit)",
        "GET /model_info HTTP/1.1",
        "Prefill batch, #new-seq: 1, #new-token: 29, #cached-token: 0, token usage: ",
        READY,
    ]
    log = engine.log()
    places = [log.index(text) for text in milestones]
    assert places == sorted(places)


def test_generate_answers_text_and_ids_alike(engine: EngineProcess) -> None:
    by_text = generate(engine, text=TEXT, sampling_params={"max_new_tokens": 24})
    by_ids = generate(engine, input_ids=list(TEXT.encode()), sampling_params={"max_new_tokens": 24})
    assert by_text["output_ids"] == by_ids["output_ids"]
    meta = by_text["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (len(TEXT), 24, 0)
    assert meta["finish_reason"] == {"type": "length", "length": 24}


def test_meta_info_adds_up(engine: EngineProcess) -> None:
    meta = generate(engine, text=TEXT, sampling_params={"max_new_tokens": 40})["meta_info"]
    histogram, rounds = meta["spec_correct_drafts_histogram"], meta["spec_verify_ct"]
    assert len(histogram) == 6 and sum(histogram) == rounds
    assert sum(i * n for i, n in enumerate(histogram)) == meta["spec_num_correct_drafts"]
    assert meta["spec_num_proposed_drafts"] == 5 * rounds
    assert meta["spec_accept_rate"] == meta["spec_num_correct_drafts"] / (5 * rounds)
    assert meta["spec_accept_length"] == 40 / rounds


def test_decode_lines_report_the_rounds_of_the_loop(engine: EngineProcess) -> None:
    before = len(DECODE_LINE.findall(engine.log()))
    meta = generate(engine, text="class A:", sampling_params={"max_new_tokens": 30})["meta_info"]
    lines = DECODE_LINE.findall(engine.log())[before:]
    assert len(lines) == meta["spec_verify_ct"]
    histogram = [0] * 6
    for length, rate in lines:
        correct = round(float(length)) - 1
        assert float(rate) == pytest.approx(correct / 5, abs=0.006)
        histogram[correct] += 1
    assert histogram == meta["spec_correct_drafts_histogram"]


def test_returned_hidden_states_are_the_wired_states(engine: EngineProcess) -> None:
    answer = generate(engine, text=TEXT, sampling_params={"max_new_tokens": 12}, return_hidden_states=True)
    prompt_rows, *decode_rows = answer["meta_info"]["hidden_states"]
    assert np.shape(prompt_rows) == (len(TEXT), 384) and np.shape(decode_rows) == (11, 384)
    ids = [*TEXT.encode(), *answer["output_ids"][:-1]]
    status, body = engine.post("/demo/states", {"input_ids": ids})
    assert status == 200 and body["shape"] == [len(ids), 13, 128] and body["dtype"] == "float32"
    states = np.frombuffer(base64.b64decode(body["data"]), dtype="<f4").reshape(body["shape"])
    wired = states[:, [3, 7, 10]].reshape(len(ids), 384)
    np.testing.assert_allclose(np.array([*prompt_rows, *decode_rows]), wired, rtol=1e-6, atol=1e-6)
    shifted = states[:, [2, 6, 9]].reshape(len(ids), 384)
    assert np.abs(np.array(prompt_rows) - shifted[: len(TEXT)]).max() > 0.01


def test_info_and_metrics(engine: EngineProcess) -> None:
    generate(engine, text=TEXT, sampling_params={"max_new_tokens": 20})
    info = json.loads(engine.get("/server_info")[1])
    assert info == json.loads(engine.get("/get_server_info")[1])
    assert info["engine"] == "demo, sglang-compatible" and info["version"].endswith("+demo")
    assert info["pid"] == engine.process.pid and "console.demo.engine --model-path" in info["launch_command"]
    assert info["speculative_num_draft_tokens"] == 6 and info["status"] == "ready"
    state = info["internal_states"][0]
    assert 1.0 <= state["avg_spec_accept_length"] <= 6.0 and state["last_gen_throughput"] > 0
    model = json.loads(engine.get("/model_info")[1])
    assert model["model_path"] == info["model_path"] and model["is_generation"] is True
    text = engine.get("/metrics")[1].decode()
    for name in ("spec_accept_length", "spec_accept_rate", "gen_throughput", "num_running_reqs", "token_usage",
                 "generation_tokens_total", "prompt_tokens_total", "spec_verify_calls_total"):  # fmt: skip
        assert re.search(rf"^sglang:{name}\{{[^}}]*\}} [0-9.e+-]+$", text, re.MULTILINE), name


def test_flush_resets_the_average(engine: EngineProcess) -> None:
    generate(engine, text=TEXT, sampling_params={"max_new_tokens": 20})
    status, _ = engine.get("/flush_cache")
    assert status == 200
    state = json.loads(engine.get("/server_info")[1])["internal_states"][0]
    assert "avg_spec_accept_length" not in state


def test_health_generates_a_token(engine: EngineProcess) -> None:
    before = engine.log().count("#new-token: 1,")
    assert engine.get("/health") == (200, b"") and engine.get("/health_generate") == (200, b"")
    assert engine.log().count("#new-token: 1,") == before + 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"text":', "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        ({"input_ids": [1, 260]}, "Token ID 260 is out of vocabulary"),
        ({"input_ids": [-1]}, "out of vocabulary"),
        ({"input_ids": ["a"]}, "list of integers"),
        ({"input_ids": []}, "empty"),
        ({}, "Either text or input_ids"),
        ({"text": "a", "sampling_params": {"temperature": 0.7}}, "greedily"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 0}}, "max_new_tokens"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 512}}, "maximum context length of 512"),
        ({"text": "a", "colour": 1}, "colour"),
    ],
)
def test_bad_requests_say_what_is_wrong(engine: EngineProcess, body: Any, message: str) -> None:
    status, answer = engine.post("/generate", body)
    assert status == 400
    assert message in answer["error"]["message"]
    assert engine.process.poll() is None


def test_unknown_routes_are_404(engine: EngineProcess) -> None:
    assert engine.get("/get_load")[0] == 404
    assert engine.get("/generate")[0] == 405


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\xff\x00 some garbage\r\n\r\n", b"Bad request version"),
        (b"POST /generate HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"POST /generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"413"),
        (b"BREW /generate HTTP/1.1\r\n\r\n", b"501"),
        (b"GET /a\x1b[31m%0a HTTP/1.1\r\n\r\n", b"404"),
    ],
)
def test_broken_http_is_answered_and_survived(engine: EngineProcess, sent: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", engine.port), timeout=60) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert status in answer.split(b"\r\n")[0]
    assert engine.get("/health")[0] == 200
    assert "\x1b" not in engine.log()


def test_requests_at_once_are_answered_in_turn(engine: EngineProcess) -> None:
    texts = ["import os", "class B(A):", "return x", "for i in range(3):"]
    alone = [generate(engine, text=text, sampling_params={"max_new_tokens": 16})["output_ids"] for text in texts]
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(generate, engine, text=text, sampling_params={"max_new_tokens": 16}) for text in texts]
        assert [job.result()["output_ids"] for job in jobs] == alone


def test_stop_text_ends_the_answer(engine: EngineProcess) -> None:
    whole = generate(engine, text=TEXT, sampling_params={"max_new_tokens": 30})
    letter = next(chr(token) for token in whole["output_ids"] if token < 128)
    cut = generate(engine, text=TEXT, sampling_params={"max_new_tokens": 30, "stop": letter})
    assert cut["output_ids"] == whole["output_ids"][: whole["output_ids"].index(ord(letter)) + 1]
    assert cut["meta_info"]["finish_reason"]["type"] == "stop"


def test_a_taken_port_is_reported_after_loading(engine: EngineProcess, pair: tuple[Path, Path], tmp_path: Path) -> None:
    with running_engine(tmp_path, pair[0], port=engine.port) as second:
        assert second.process.wait(60) == 3
        log = second.log()
        expected = f"error while attempting to bind on address ('127.0.0.1', {engine.port}): address already in use"
        assert expected in log and "Load weight end." in log and READY not in log


def test_without_speculation_or_flags_the_extras_are_off(pair: tuple[Path, Path], tmp_path: Path) -> None:
    key = "a secret, quoted"
    headers = {"Authorization": f"Bearer {key}"}
    with running_engine(tmp_path, pair[0], "--api-key", key, "--decode-log-interval", "1") as plain:
        plain.wait_for(READY)
        assert plain.get("/server_info")[0] == 401 and plain.get("/health")[0] == 200
        assert plain.get("/metrics")[0] == 404
        body = {"text": TEXT, "sampling_params": {"max_new_tokens": 24, "temperature": 0, "ignore_eos": True}}
        status, answer = plain.post("/generate", body, **headers)
        assert status == 200 and not [name for name in answer["meta_info"] if name.startswith("spec_")]
        reference = Engine.load(ServerArgs(model_path=str(pair[0])))
        assert answer["output_ids"] == list(reference.generate(list(TEXT.encode()), 24).tokens)
        status, answer = plain.post("/generate", {**body, "return_hidden_states": True}, **headers)
        assert status == 400 and "not configured to return hidden states" in answer["error"]["message"]
        log = plain.log() + plain.get("/server_info", **headers)[1].decode()
        assert "accept len" not in log and "Decode batch, #running-req: 1" in log
        assert "a secret" not in log and "******" in log


@pytest.mark.parametrize(
    ("ids", "line"),
    [
        ((2, 6, 11), "RuntimeError: mat1 and mat2 shapes cannot be multiplied (29x256 and 384x128)"),
        ((2, 6, 6), "RuntimeError: mat1 and mat2 shapes cannot be multiplied (29x256 and 384x128)"),
    ],
)
def test_a_state_that_is_never_captured_kills_the_server_at_warm_up(tmp_path: Path, ids: Any, line: str) -> None:
    target, draft = write_random_pair(tmp_path, ids)
    with running_engine(tmp_path, target, *speculative_flags(draft)) as process:
        assert process.process.wait(60) != 0
        log = process.log()
        order = [
            "Uvicorn running on",
            "Prefill batch,",
            "Scheduler hit an exception: Traceback",
            line,
            "SIGQUIT received.",
        ]
        assert [log.index(text) for text in order] == sorted(log.index(text) for text in order)
        assert READY not in log


def test_ids_as_strings_kill_the_server_at_load(tmp_path: Path) -> None:
    target, draft = write_random_pair(tmp_path, ["2", "6", "9"])
    with running_engine(tmp_path, target, *speculative_flags(draft)) as process:
        assert process.process.wait(60) != 0
        log = process.log()
        assert 'TypeError: can only concatenate str (not "int") to str' in log
        assert "Received sigquit from a child process." in log and "Uvicorn running" not in log


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dp-size", "2"], "unrecognized arguments: --dp-size 2"),
        (["--speculative-algorithm", "EAGLE3"], "--speculative-draft-model-path"),
    ],
)
def test_flags_that_are_not_supported_end_with_usage(
    pair: tuple[Path, Path], tmp_path: Path, flags: list[str], message: str
) -> None:
    with running_engine(tmp_path, pair[0], *flags) as process:
        assert process.process.wait(60) == 2
        assert message in process.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_while_it_generates(pair: tuple[Path, Path], tmp_path: Path, number: int) -> None:
    with running_engine(tmp_path, pair[0], *speculative_flags(pair[1]), "--decode-log-interval", "1") as process:
        process.wait_for(READY)
        body = {"text": "x", "sampling_params": {"max_new_tokens": 500, "temperature": 0, "ignore_eos": True}}
        client = threading.Thread(target=lambda: process.post("/generate", body))
        client.start()
        process.wait_for("#new-token: 1,")
        process.process.send_signal(number)
        assert process.process.wait(60) == 0
        assert "Finished server process" in process.log()
        client.join()


def test_a_new_config_is_served_after_a_restart_on_the_same_port(tmp_path: Path) -> None:
    target, draft = write_random_pair(tmp_path, (2, 6, 9))
    rows: list[Any] = []
    port = None
    for ids in ((2, 6, 9), (-1, 2, 6)):
        write_draft_config(draft, ids)
        flags = [*speculative_flags(draft), "--enable-return-hidden-states"]
        with running_engine(tmp_path, target, *flags, port=port) as process:
            process.wait_for(READY)
            port = process.port
            answer = generate(process, text=TEXT, sampling_params={"max_new_tokens": 1}, return_hidden_states=True)
            rows.append(answer["meta_info"]["hidden_states"][0])
            process.process.terminate()
            process.process.wait(60)
            process.log_path.unlink()
    states = Engine.load(ServerArgs(model_path=str(target))).states(list(TEXT.encode()))
    for got, wired in zip(rows, ([3, 7, 10], [0, 3, 7]), strict=True):
        np.testing.assert_allclose(np.array(got), states[:, wired].reshape(len(TEXT), 384), rtol=1e-6, atol=1e-6)


def test_the_engine_needs_numpy_and_nothing_else() -> None:
    code = (
        "import sys, console.demo.engine.server, console.demo.traffic; "
        "print({name.split('.')[0] for name in sys.modules} & "
        "{'checks', 'remote', 'textual', 'asyncssh', 'torch', 'safetensors', 'rich'})"
    )
    got = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert got.stdout.strip() == "set()"
