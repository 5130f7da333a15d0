"""`log.failure` and `log.graph_false`: what a server died of by its log, and steps that ran without a graph."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks.finding import Verdict
from tests.checks.files import CONFIG, write_draft
from tests.checks.test_log_accept import ARGS
from tests.checks.test_log_course import line, one

FAIL, WARN, INFO, PASS, UNKNOWN = Verdict.FAIL, Verdict.WARN, Verdict.INFO, Verdict.PASS, Verdict.UNKNOWN

START = [
    "[2025-08-11 12:58:40] server_args=ServerArgs(model_path='/m', speculative_algorithm='EAGLE3')",
    "[2025-08-11 12:58:44 TP0] Init torch distributed begin.",
    "[2025-08-11 12:58:46 TP0] Load weight begin. avail mem=78.58 GB",
]
READY = ["[2025-08-11 12:59:54] The server is fired up and ready to roll!"]
SIGQUIT = "[2025-08-11 12:59:57] Received sigquit from a child process. It usually means the child failed."


def died(*cause: str) -> list[str]:
    """SGLang's last lines: a scheduler's traceback, and what the launcher says of it."""
    return [
        "[2025-08-11 12:59:56 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/opt/sglang/srt/managers/scheduler.py", line 2534, in run_scheduler_process',
        "    scheduler = Scheduler(",
        "                ^^^^^^^^^^",
        *cause,
        "",
        SIGQUIT,
    ]


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (["KeyError: 'midlayer.self_attn.qkv_proj.weight'"], "midlayer"),
        (["AttributeError: 'Qwen2ForCausalLM' object has no attribute 'set_embed'"], "flags.algo_vs_arch"),
        (["AttributeError: 'LlamaForCausalLM' object has no attribute 'hot_token_id'"], "cfg.architectures"),
        (["    assert param_data.shape == loaded_weight.shape", "AssertionError"], "ckpt.shapes"),
        (["    assert loaded_weight.shape[output_dim] == (", "AssertionError"], "loaded_weight.shape[output_dim]"),
        (["RuntimeError: CUDA error: device-side assert triggered"], "ckpt.vocab_map"),
        (["    factor = scaling['factor']", "KeyError: 'factor'"], "cfg.rope_vs_target"),
        (["ValueError: trtllm_mla backend can only be used with MLA models."], "flags.draft_backend"),
        (["TypeError: cat() received an invalid combination of arguments - got (NoneType, dim=int)"], "NoneType"),
        (
            ["RuntimeError: The size of tensor a (8640) must match the size of tensor b (5760) at dimension 1"],
            "check the layer ids",
        ),
        (["    raise NotImplementedError", "NotImplementedError"], "`raise NotImplementedError`"),
    ],
)
def test_a_start_that_stops_names_its_cause(tmp_path: Path, cause: list[str], said: str) -> None:
    found = one(tmp_path, "log.failure", [*START, *died(*cause)])
    assert found.verdict is FAIL
    assert said in found.summary
    assert found.evidence["line"] == len(START) + 4 + len(cause)
    # What cannot be judged for it says where to look.
    assert "log.failure" in one(tmp_path, "log.accept", [*START, *died(*cause)]).summary


def test_a_size_that_is_the_drafts_vocabulary_is_its_map(tmp_path: Path) -> None:
    cause = "RuntimeError: The size of tensor a (10) must match the size of tensor b (7) at dimension 0"
    draft = write_draft(tmp_path / "d")
    assert CONFIG["draft_vocab_size"] == 10
    found = one(tmp_path, "log.failure", [*START, *died(cause)], draft=str(draft))
    assert "ckpt.vocab_map" in found.summary


def test_a_server_that_dies_while_it_serves_fails_whatever_it_accepted(tmp_path: Path) -> None:
    lines = [*START, *READY, *[line(2.1, at=at) for at in range(12)], *died("RuntimeError: CUDA error: out of memory")]
    assert one(tmp_path, "log.failure", lines).verdict is FAIL
    assert one(tmp_path, "log.accept", lines).verdict is INFO


VLLM = "(Worker_TP1 pid=530) ERROR 10-06 18:54:30 [v1/executor/multiproc_executor.py:597] "


def test_vllms_cause_stands_before_the_processes_that_tell_of_it(tmp_path: Path) -> None:
    lines = [
        "(APIServer pid=2) INFO 10-06 18:54:20 [api_server.py:1839] vLLM API server version 0.11.0",
        "(Worker_TP1 pid=530) INFO 10-06 18:54:29 [gpu_model_runner.py:2641] Loading drafter model...",
        f"{VLLM}WorkerProc failed to start.",
        f"{VLLM}Traceback (most recent call last):",
        f'{VLLM}  File "/usr/lib/vllm/v1/spec_decode/eagle.py", line 336, in propose',
        f"{VLLM}    assert hidden_states.shape[-1] == input_embeds.shape[-1]",
        f"{VLLM}AssertionError",
        "(EngineCore_DP0 pid=500) ERROR 10-06 18:54:34 [core.py:708] EngineCore failed to start.",
        "(EngineCore_DP0 pid=500) Exception: WorkerProc initialization failed due to an exception in a background "
        "process. See stack trace for root cause.",
        "(APIServer pid=2) RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    found = one(tmp_path, "log.failure", lines)
    assert found.verdict is FAIL
    assert found.evidence["engine"] == "vllm"
    assert found.evidence["line"] == 7
    assert "cfg.hidden_vs_target" in found.summary


def test_a_collectors_front_does_not_hide_the_cause(tmp_path: Path) -> None:
    lines = [
        "(APIServer pid=1) INFO 03-11 17:57:00 [api_server.py:1] vLLM API server version 0.16.0",
        f"{VLLM}WorkerProc failed to start.",
        f"{VLLM}Traceback (most recent call last):",
        f"{VLLM}RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
        "(EngineCore_DP0 pid=469) ERROR 03-11 17:57:12 [core.py:100] EngineCore failed to start.",
    ]
    found = one(tmp_path, "log.failure", [f"2026-03-11T17:57:10.855212259Z {text}" for text in lines])
    assert (found.verdict, found.evidence["line"]) == (FAIL, 4)
    assert ": RuntimeError: CUDA driver initialization failed" in found.summary


def test_a_request_that_is_refused_is_no_end(tmp_path: Path) -> None:
    refused = [
        '[2025-06-09 18:18:20] INFO:     127.0.0.1:4 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request',
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "ValueError: The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    ]
    told = one(tmp_path, "log.failure", [*START, *READY, *refused])
    assert told.verdict is INFO
    assert "ValueError: The input (9000 tokens)" in told.summary
    assert told.evidence["line"] == 8
    # Nor is one in the middle of a start, which goes on.
    assert one(tmp_path, "log.failure", [*START, *refused[1:], *["more of the start"] * 4]).verdict is INFO
    assert one(tmp_path, "log.failure", [*START, *refused[1:]]).verdict is FAIL


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (["Killed"], "the system ended"),
        (["./run.sh: line 12: 4711 Killed   python -m sglang.launch_server"], "the system ended"),
        (
            [
                "Traceback (most recent call last):",
                '  File "/opt/sglang/launch_server.py", line 11, in <module>',
                "    assert self.speculative_num_steps is None",
                "AssertionError",
            ],
            "flags.triple",
        ),
        (["launch_server.py: error: unrecognized arguments: --speculative-eagle-top-k 1"], "unrecognized arguments"),
    ],
    ids=["killed", "killed by a shell", "traceback", "arguments"],
)
def test_ends_that_no_process_of_the_server_tells(tmp_path: Path, last: list[str], said: str) -> None:
    found = one(tmp_path, "log.failure", ["INFO something of no matter", *last])
    assert found.verdict is FAIL
    assert said in found.summary


def test_what_a_server_outlives_is_told(tmp_path: Path) -> None:
    full = "[2025-08-11 13:00:00] KV cache pool is full. Retract requests. #retracted_reqs: 1"
    assert one(tmp_path, "log.failure", [*START, *READY, line(2.0), full, full, line(2.1)]).verdict is INFO
    handled = ["Traceback (most recent call last):", '  File "/x.py", line 1, in f', "ValueError: bad request"]
    assert one(tmp_path, "log.failure", [*START, *READY, *handled, line(2.1)]).verdict is PASS


def test_only_the_last_life_counts_and_earlier_ones_are_told(tmp_path: Path) -> None:
    again = [*START, *died("RuntimeError: x"), *START, *READY, line(2.0)]
    found = one(tmp_path, "log.failure", again)
    assert found.verdict is INFO
    assert "earlier life" in found.summary
    loop = [*START, *died("RuntimeError: x"), *START, *died("RuntimeError: y")]
    assert "1 starts before it" in one(tmp_path, "log.failure", loop).summary


def test_a_log_without_a_failure_and_one_without_a_line(tmp_path: Path) -> None:
    assert one(tmp_path, "log.failure", [*START, *READY, line(2.0)]).verdict is PASS
    assert one(tmp_path, "log.failure", [""]).verdict is UNKNOWN
    stopped = [*START, *READY, line(2.0), "[2025-08-11 13:00:00] Gracefully exiting... Remaining number of requests 0."]
    assert one(tmp_path, "log.failure", stopped).verdict is INFO


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=60) | st.sampled_from([*START, *READY, *died("KeyError: 'x'"), VLLM]), max_size=12))
def test_no_log_stops_the_check(tmp_path: Path, lines: list[str]) -> None:
    found = one(tmp_path, "log.failure", [text.replace("\x00", "") for text in lines])
    assert found.summary.isprintable()


def eager(count: int, running: int = 1) -> list[str]:
    return [line(2.1, at=at, running=running).replace("graph: True", "graph: False") for at in range(count)]


def test_steps_without_a_graph_warn_unless_the_flags_say_it(tmp_path: Path) -> None:
    assert one(tmp_path, "log.graph_false", eager(9, 70)).verdict is WARN
    assert "70 running requests" in one(tmp_path, "log.graph_false", eager(9, 70)).summary
    assert one(tmp_path, "log.graph_false", eager(7, 70)).verdict is INFO
    off = one(tmp_path, "log.graph_false", eager(9), args=(*ARGS, "--disable-cuda-graph"))
    assert (off.verdict, "flags.cuda_graph" in off.summary) == (INFO, True)
    few = one(tmp_path, "log.graph_false", eager(9, 70), args=(*ARGS, "--cuda-graph-max-bs", "64"))
    assert (few.verdict, "flags.graph_bs_vs_concurrency" in few.summary) == (INFO, True)
    enough = one(tmp_path, "log.graph_false", eager(9, 7), args=(*ARGS, "--cuda-graph-max-bs", "64"))
    assert enough.verdict is WARN


def test_steps_from_a_graph_and_a_server_on_the_cpu_are_well(tmp_path: Path) -> None:
    graphs = [line(2.1, at=at) for at in range(9)]
    assert one(tmp_path, "log.graph_false", graphs).verdict is PASS
    assert one(tmp_path, "log.graph_false", [*graphs, *eager(4, 70)]).verdict is PASS
    cpu = [text.replace("cuda graph", "cpu graph") for text in eager(9)]
    assert one(tmp_path, "log.graph_false", cpu).verdict is PASS


def test_the_log_of_a_server_that_has_ended_says_so(tmp_path: Path) -> None:
    noise = [line(1.0, at=index) for index in range(12)]
    lines = [*START, *READY, *noise]
    found = one(tmp_path, "log.accept", lines, args=ARGS, ended=True)
    # What was wrong with it need not be with the next start: its acceptance no longer fails, its end does.
    assert (found.verdict, found.evidence["ended"]) == (WARN, True)
    assert found.summary.startswith("of a server that has ended: accept length")
    assert one(tmp_path, "log.accept", lines, args=ARGS).verdict is FAIL
    silent = one(tmp_path, "log.failure", lines, ended=True)
    assert silent.verdict is INFO
    assert "of a server that has ended: its log does not say why" in silent.summary
    assert one(tmp_path, "log.failure", lines).verdict is PASS
    died_of = one(tmp_path, "log.failure", [*START, *died("RuntimeError: boom")], ended=True)
    assert died_of.verdict is FAIL
    assert "boom" in died_of.summary
