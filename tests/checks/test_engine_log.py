"""Log lines of SGLang and vLLM as events: real lines of many releases, and lines that must not be misread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checks.engines.events import PHASES, Decode, Error, Event, Other, Phase, Prefill
from checks.engines.lines import MAX_LINE
from checks.engines.sglang import log
from checks.engines.vllm import log as vllm_log

LINES = [
    json.loads(line)
    for line in (Path(__file__).parent / "loglines" / "sglang_decode.jsonl").read_text("utf-8").splitlines()
]
DECODE = "Decode batch, #running-req: 1, #token: 108, token usage: 0.01, accept len: 2.17, accept rate: 0.54, "
STAMP = "[2026-08-10 09:20:45 TP0] "


def only(line: str) -> Event:
    (event,) = log.parse(line, 1)
    return event


def phases(*lines: str) -> list[str]:
    return [event.phase for event in log.parse_lines(lines) if isinstance(event, Phase)]


@pytest.mark.parametrize("case", LINES, ids=[str(number) for number in range(len(LINES))])
def test_decode_lines_of_all_releases(case: dict[str, Any]) -> None:
    event = only(case["text"])
    assert isinstance(event, Decode)
    shown = event.as_json()
    keys = ("running", "accept_len", "accept_rate_printed", "graph", "throughput")
    assert {key: shown[key] for key in keys if key in shown} == case["expect"]


@pytest.mark.parametrize("case", [case for case in LINES if "accept_rate_printed" in case["expect"]])
def test_the_printed_rate_fits_the_formulas_it_is_known_to_fit(case: dict[str, Any]) -> None:
    length, rate = case["expect"]["accept_len"], case["expect"]["accept_rate_printed"]
    fitting = {
        f"{'(len-1)/(n-1)' if meaning.strict else 'len/n'} n={tokens}"
        for tokens in range(2, 9)
        for meaning in log.rates_that_fit(length, rate, tokens)
    }
    expected = {fit for fit in case["fits"] if fit.startswith(("len/n", "(len-1)"))}
    assert expected <= fitting
    if not expected:
        assert not fitting & {"len/n n=4", "(len-1)/(n-1) n=4"}


@pytest.mark.parametrize(
    ("version", "formula"),
    [
        ("0.5.3", None),
        ("0.5.4", "accept len / (steps + 1)"),
        ("0.5.10", "accept len / draft tokens"),
        ("0.5.11", "(accept len - 1) / (draft tokens - 1)"),
        ("0.5.23", "(accept len - 1) / (draft tokens - 1)"),
        ("", None),
    ],
)
def test_the_meaning_of_the_printed_rate_by_version(version: str, formula: str | None) -> None:
    meaning = log.rate_meaning(version)
    assert (meaning.formula if meaning else None) == formula


def test_the_same_acceptance_prints_two_rates_across_the_change() -> None:
    older, newer = log.rate_meaning("0.5.10"), log.rate_meaning("0.5.11")
    assert older is not None and newer is not None
    assert (older.rate(2.5, 4), newer.rate(2.5, 4)) == (0.625, 0.5)
    assert log.per_step(2.5, 3) == 0.5


def test_a_field_the_line_does_not_carry_is_absent() -> None:
    event = only(
        f"{STAMP}Decode batch. #running-req: 1, #token: 9322, token usage: 0.00, gen throughput (token/s): 97.52"
    )
    shown = event.as_json()
    assert shown["event"] == "decode"
    assert not {"accept_len", "accept_rate_printed", "queue", "graph"} & set(shown)


def test_a_line_cut_in_the_middle_keeps_what_is_whole() -> None:
    event = only("[2026-04-05 20:02:52] Decode batch, #running-req: 29, #token: 10096, token usage:")
    assert isinstance(event, Decode)
    assert (event.running, event.tokens, event.token_usage) == (29, 10096, None)


def test_a_prefill_line() -> None:
    event = only(
        f"{STAMP}Prefill batch, #new-seq: 1, #new-token: 128, #cached-token: 3, full token usage: "
        f"0.25, swa token usage: 0.04, "
        "#running-req: 0, #queue-req: 0, #pending-token: 0, npu graph: False, input throughput (token/s): 2.16"
    )
    assert isinstance(event, Prefill)
    assert (event.new_tokens, event.cached_tokens, event.token_usage, event.graph) == (128, 3, 0.25, False)
    assert event.throughput == 2.16


@pytest.mark.parametrize(
    ("counts", "probe"),
    [
        ("#new-seq: 1, #new-token: 1, #cached-token: 0", True),
        ("#new-seq: 1, #new-token: 1, #cached-token: 9", False),
        ("#new-seq: 2, #new-token: 1, #cached-token: 0", False),
        ("#new-seq: 1, #new-token: 2, #cached-token: 0", False),
    ],
)
def test_the_prefill_of_a_health_probe_is_told_apart(counts: str, probe: bool) -> None:
    event = only(f"{STAMP}Prefill batch, {counts}, token usage: 0.00, #running-req: 0, #queue-req: 0")
    assert isinstance(event, Prefill)
    assert event.probe is probe
    assert event.as_json().get("probe", False) is probe


@pytest.mark.parametrize("tags", ["DP1 TP2", "TP2 DP1", "DP1 PP0 ATTN_CP0 MOE_DP0 TP2 EP3"])
def test_rank_tags_in_any_order(tags: str) -> None:
    event = only(f"[2026-08-10 09:20:45.123 {tags}] {DECODE}")
    assert event.rank["dp"] == 1
    assert event.rank["tp"] == 2
    assert event.time == "2026-08-10 09:20:45.123"


@pytest.mark.parametrize(
    "front",
    [
        "engine-1  | ",
        "sglang_server_1 | ",
        "2026-08-10T09:20:45.123456789Z ",
        "2026-08-10T09:20:45.123456789Z stderr F ",
        "Aug 10 09:20:45 gpu-box sglang[812]: ",
        "[pod/serve-0/engine] ",
        "0: ",
        "\x1b[1;36mengine-1  | \x1b[0m",
    ],
)
def test_what_a_collector_puts_in_front_is_no_part_of_the_line(front: str) -> None:
    event = only(f"{front}{STAMP}{DECODE}")
    assert isinstance(event, Decode)
    assert event.accept_len == 2.17
    assert event.rank == {"tp": 0}


@pytest.mark.parametrize("glue", ["\r", ""])
def test_a_progress_bar_in_front_of_a_line(glue: str) -> None:
    bar = "Multi-thread loading shards: 100% Completed | 64/64 [02:30<00:00,  1.88s/it]"
    first, second = log.parse(f"{bar}{glue}[2026-02-02 10:00:00 TP0] Load weight end. type=ToyForCausalLM, x=1", 7)
    assert isinstance(first, Phase) and isinstance(second, Phase)
    assert (first.progress, first.line) == (1.0, 7)
    assert (second.detail, second.line) == ("ToyForCausalLM", 7)


def test_carriage_returns_part_bars_on_one_physical_line() -> None:
    bars = "\r".join(
        f"Loading safetensors checkpoint shards: {n:3d}% Completed | 1/4 [00:01<00:01]" for n in (0, 25, 100)
    )
    assert [event.progress for event in log.parse(bars) if isinstance(event, Phase)] == [0.0, 0.25, 1.0]


@pytest.mark.parametrize(
    "line",
    [
        f"{STAMP}Receive: obj=GenerateReqInput(text='Decode batch, accept len: 9.00, x: 1')",
        f"{STAMP}Receive: obj=GenerateReqInput(text='CUDA out of memory')",
        f'{STAMP}INFO:     127.0.0.1:1 - "GET /address already in use HTTP/1.1" 404 Not Found',
        "he said: Decode batch, accept len: 9.00, and left",
        "[/pytorch/aten/x] Decode batch",
        f"{STAMP}Finish: obj=..., out={{'text': 'The server is fired up and ready to roll!'}}",
        f"{STAMP}Ignore import error when loading sglang.srt.models.x: address already in use",
    ],
)
def test_text_that_a_client_sent_is_not_the_servers_word(line: str) -> None:
    assert isinstance(only(line), Other)


def test_secrets_do_not_pass() -> None:
    event = only(f"{STAMP}server_args=ServerArgs(model_path='/m', api_key='s3cret', admin_api_key=\"t0ken\")")
    assert "s3cret" not in event.text
    assert "t0ken" not in event.text
    assert "s3cret" not in only(f"{STAMP}server_args={{'api_key': 's3cret'}}").text


def test_terminal_escapes_do_not_pass() -> None:
    event = only("\x1b]0;title\x07\x1b[31m[2026-08-10 09:20:45]\x1b[0m \x9b1mhello\x1b[2J\x00 world")
    assert event.text == "[2026-08-10 09:20:45] hello world"


START = (
    "[2026-11-29 16:50:00] server_args={'model_path': '/m'}",
    "[2026-11-29 16:50:01] Init parallel begin.",
    "[2026-11-29 16:50:02] Load weight begin. avail mem=10.00 GB",
    "Multi-thread loading shards:  50% Completed | 1/2 [00:01<00:01]",
    "[2026-11-29 16:50:04] Load weight end. elapsed=2.00 s, type=LlamaForCausalLM, avail mem=9.00 "
    "GB, mem usage=1.00 GB.",
    "[2026-11-29 16:50:05] Capture target verify CUDA graph begin. backend=full, "
    "num_tokens_per_req=4, avail mem=8.00 GB",
    "[2026-11-29 16:50:06] Load weight end. elapsed=0.10 s, type=LlamaForCausalLMEagle3, avail mem=8.00 GB.",
    "[2026-11-29 16:50:07] Capture draft decode CUDA graph begin.",
    "[2026-11-29 16:50:08] INFO:     Started server process [12]",
    "[2026-11-29 16:50:08] INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)",
    "[2026-11-29 16:50:09] The server is fired up and ready to roll!",
)
RUN = (f"{STAMP}{DECODE}", f"{STAMP}{DECODE}")
END = (
    "[2026-11-29 16:55:00] SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
    "[2026-11-29 16:55:01] Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].",
    "[2026-11-29 16:55:02] INFO:     Finished server process [12]",
)


def test_the_phases_of_a_life_in_order() -> None:
    seen = list(dict.fromkeys(phases(*START, *RUN, *END)))
    assert seen == ["starting", "loading", "capturing", "warming", "ready", "serving", "draining", "stopped"]
    assert set(seen) < set(PHASES)
    assert log.phase_of(log.parse_lines([*START, *RUN])) == "serving"
    assert log.phase_of([]) is None


def test_a_second_life_in_the_same_file_starts_again() -> None:
    seen = phases(*START, *RUN, *END, *START)
    assert seen[-1] == "ready"
    assert seen.count("serving") == 1


def test_a_log_begun_in_the_middle_is_serving_from_its_first_decode_line() -> None:
    assert phases(*RUN) == ["serving"]


def test_lines_are_numbered_by_physical_line() -> None:
    events = list(log.parse_lines(["", "a\rb", RUN[0]], start=10))
    assert [event.line for event in events] == [11, 11, 12, 12]


def test_ready_after_a_taken_port_is_another_servers() -> None:
    taken = (
        "[2026-11-29 16:50:08] ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): "
        "address already in use"
    )
    assert phases(*START[:-1], taken, START[-1])[-1] == "crashed"


def test_a_failure_before_ready_is_the_end() -> None:
    reader = log.Reader()
    lines = (*START[:4], "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    events = [event for line in lines for event in reader.feed(line)]
    errors = [event for event in events if isinstance(event, Error)]
    assert [event.kind for event in errors] == ["out-of-memory"]
    assert errors[0].advice
    assert reader.phase == "crashed"


def test_a_warning_while_serving_is_not_the_end() -> None:
    reader = log.Reader()
    full = f"{STAMP}KV cache pool is full. Retract requests. #retracted_reqs: 1"
    events = [event for line in (*START, *RUN, full) for event in reader.feed(line)]
    assert isinstance(events[-1], Error)
    assert reader.phase == "serving"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (24x256 and 384x128)", "aux-width"),
        ("RuntimeError: captured 2 of 3 aux hidden states", "aux-width"),
        (
            "RuntimeError: The size of tensor a (8640) must match the size of tensor b (5760) at "
            "non-singleton dimension 1",
            "aux-width",
        ),
        ('TypeError: can only concatenate str (not "int") to str', "aux-ids-type"),
        ("AttributeError: 'X' object has no attribute 'set_eagle3_layers_to_capture'", "target-unsupported"),
        (f"{STAMP}Scheduler hit an exception: Traceback (most recent call last):", "exception"),
        (
            "[2025-04-16 14:22:53] Received sigquit from a child process. It usually means the child failed.",
            "child-died",
        ),
        ("KeyError: 'midlayer.self_attn.qkv_proj.weight'", "weight-names"),
        ("ValueError: Cannot find the config file for awq", "draft-quantization"),
        ("ValueError: trtllm_mla backend can only be used with MLA models.", "draft-backend"),
        ("Capture cuda graph failed: mat1 and mat2 must have the same dtype, but got Float and Half", "dtype"),
        (f"{STAMP}Capture cuda graph failed: CUDA error", "graph-capture"),
        ("launch_server.py: error: unrecognized arguments: --speculative-foo 3", "launch-flags"),
        (
            f"{STAMP}Subprocess scheduler_0 (pid=12) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
            "child-died",
        ),
        (f"{STAMP}Watchdog timeout (self.watchdog_timeout=300)", "watchdog"),
    ],
)
def test_failures_are_told_by_their_text(line: str, kind: str) -> None:
    event = only(line)
    assert isinstance(event, Error)
    assert event.kind == kind
    assert event.advice


@pytest.mark.parametrize("parse", [log.parse, vllm_log.parse])
@given(text=st.text(max_size=300))
@example(text="[" * 5000)
@example(text="Decode batch, " + "accept len: " * 2000)
@example(text="[2026-08-10 09:20:45" + " TP0" * 4000 + "] Decode batch, #running-req: " + "9" * 5000)
@example(text="\x1b[" + "0;" * 9000)
@example(text="(" * 3000 + "SpecDecoding metrics: Per-position acceptance rate: " + "1, " * 3000)
def test_any_text_gives_events_that_are_json(parse: Any, text: str) -> None:
    for event in parse(text, 3):
        assert len(event.text) <= MAX_LINE
        json.dumps(event.as_json(), allow_nan=False)


def test_vllm_metrics_lines() -> None:
    (event,) = vllm_log.parse(
        "(APIServer pid=347228) INFO 08-04 20:51:08 [metrics.py:120] SpecDecoding metrics: Mean "
        "acceptance length: 3.49, "
        "Accepted throughput: 0.12 tokens/s, Drafted throughput: 0.34 tokens/s, Accepted: 92 tokens, "
        "Drafted: 259 tokens, "
        "Per-position acceptance rate: 0.757, 0.622, 0.432, 0.324, 0.189, 0.108, 0.054, Avg Draft "
        "acceptance rate: 35.5%",
        2,
    )
    assert isinstance(event, Decode)
    assert (event.accept_len, event.accepted, event.drafted, event.time) == (3.49, 92, 259, "08-04 20:51:08")
    assert event.positions == (0.757, 0.622, 0.432, 0.324, 0.189, 0.108, 0.054)
    assert event.accept_rate_printed == pytest.approx(0.355)
    assert event.accept_len == pytest.approx(1 + sum(event.positions), abs=0.01)


def test_vllm_throughput_lines_and_ansi_names() -> None:
    (event,) = vllm_log.parse(
        "\x1b[1;36m(APIServer_DP1 pid=3)\x1b[0;0m INFO 08-04 20:51:08 [loggers.py:310] Engine 001: "
        "Avg prompt throughput: "
        "93.9 tokens/s, Avg generation throughput: 13.0 tokens/s, Running: 1 reqs, Waiting: 2 reqs, "
        "GPU KV cache usage: 5.0%, "
        "Prefix cache hit rate: 0.0%"
    )
    assert isinstance(event, Decode)
    assert (event.running, event.queue, event.throughput, event.rank) == (1, 2, 13.0, {"dp": 1})
    assert event.accept_len is None


def test_vllm_lines_are_not_sglangs() -> None:
    assert isinstance(only("SpecDecoding metrics: Mean acceptance length: 3.49, Accepted: 92 tokens"), Other)
    assert isinstance(vllm_log.parse(f"{STAMP}{DECODE}")[0], Other)


SIZES = "RuntimeError: The size of tensor a ({}) must match the size of tensor b ({}) at non-singleton dimension 1"
MATRICES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (24x{} and {}x7168)"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (SIZES.format(8640, 5760), "aux-width"),
        (SIZES.format(12288, 4096), "aux-width"),
        (MATRICES.format(14336, 21504), "aux-width"),
        (SIZES.format(32000, 151936), "vocabulary"),
        (SIZES.format(151936, 152064), "vocabulary"),
        # One to four, but no state is 32768 wide.
        (SIZES.format(32768, 131072), "vocabulary"),
        (SIZES.format(4000, 8000) + " (lm_head.weight)", "vocabulary"),
        # Three states of the widest target against two, or vocabularies: a size alone does not tell.
        (SIZES.format(49152, 32768), "sizes"),
        (SIZES.format(2880, 4096), "sizes"),
        (SIZES.format(0, 0), "sizes"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied", "aux-width"),
    ],
)
def test_two_sizes_that_differ_are_told_apart(line: str, kind: str) -> None:
    event = only(line)
    assert isinstance(event, Error)
    assert event.kind == kind
    assert ("layer ids" in str(event.advice)) == (kind != "vocabulary")
    assert ("ckpt.vocab_map" in str(event.advice)) == (kind != "aux-width")
