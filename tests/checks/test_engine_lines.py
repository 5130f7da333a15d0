"""Every kind of line of the field by its written-down meaning: all engines, collectors' fronts, events and columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.engines.columns import NAMES, Columns, History
from checks.engines.events import Decode, Event, Other, Prefill
from checks.engines.lines import without_front
from checks.engines.sglang import log
from checks.engines.sglang.rates import PER_TOKEN, STRICT, Fit, fits
from checks.engines.vllm import log as vllm_log

FOLDER = Path(__file__).parent / "loglines"
OTHERS = [json.loads(line) for line in (FOLDER / "other_lines.jsonl").read_text("utf-8").splitlines()]
DECODES = [json.loads(line) for line in (FOLDER / "sglang_decode.jsonl").read_text("utf-8").splitlines()]
GRAMMARS: dict[str, Any] = {"sglang": log, "vllm": vllm_log}
ALL = [case["text"] for case in (*OTHERS, *DECODES)]

STAMP = "[2026-08-10 09:20:45 TP0] "
DECODE = "Decode batch, #running-req: 1, #token: 108, token usage: 0.01, accept len: 2.17, accept rate: 0.54, "
DECODE += "cuda graph: True, gen throughput (token/s): 178.86, #queue-req: 0"


def holds(shown: dict[str, Any], expected: dict[str, Any]) -> bool:
    for key, value in expected.items():
        if key == "fields":
            assert {name: shown["fields"][name] for name in value} == value
        elif key == "positions":
            assert list(shown[key]) == pytest.approx(value)
        else:
            assert shown[key] == (pytest.approx(value) if isinstance(value, float) else value), key
    carried = {
        "accept_len",
        "accept_rate_printed",
        "running",
        "throughput",
        "graph",
        "accepted",
        "drafted",
        "positions",
    }
    assert carried & set(shown) <= set(expected) | {"running", "throughput"}
    return True


@pytest.mark.parametrize("case", OTHERS, ids=[str(number) for number in range(len(OTHERS))])
def test_lines_without_a_printed_batch(case: dict[str, Any]) -> None:
    shown = [event.as_json() for event in GRAMMARS[case["engine"]].parse(case["text"], 5)]
    assert len(shown) == len(case["expect"])
    assert all(holds(one, expected) for one, expected in zip(shown, case["expect"]))


# -- fronts --------------------------------------------------------------------------------------------------------

FRONTS = [
    "engine-1  | ",
    "2026-08-10T09:20:45.123456789Z stdout F ",
    "2026-08-10T09:20:45+02:00 gpu-box serve[812]: ",
    "Aug 10 09:20:45.123456 gpu-box systemd-run[812]: ",
    "[pod/serve-0/engine] ",
    "(SGLangActor pid=4711) ",
    "(RayWorker pid=4711, ip=10.0.0.7) ",
    "\x1b[36m(SGLangActor pid=4711)\x1b[0m ",
    "[rank0]: ",
    "0: ",
    "2026-08-10 09:20:45.123 | INFO     | sglang.srt.metrics:report:754 - ",
    "2026-08-10 09:20:45,123 - sglang.srt.metrics - INFO - ",
    "[2026-08-10 09:20:45,123][sglang.srt.metrics][INFO] - ",
    "INFO:sglang.srt.managers.scheduler:",
    "I0810 09:20:45.123456  4711 metrics.py:754] ",
    "2026-08-10T09:20:45.123456Z  INFO metrics.log_decode_stats: ",
    "[2026-08-10T09:20:45+08:00] job-7-abcde >> (SGLangEngine pid=3111) ",
    "[1,0]<stderr>: ",
    "Multi-thread loading shards: 100% Completed | 64/64 [02:30<00:00,  1.88s/it]",
]


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("head", [STAMP, "[2026-08-10 09:20:45.123 DP1 TP3 EP3] ", "[TP0] ", ""])
def test_what_stands_in_front_changes_no_value(front: str, head: str) -> None:
    if front.startswith("Multi") and not head.startswith("[2026"):
        return  # a bar is told apart from a whole record only
    event = log.parse(f"{front}{head}{DECODE}", 3)[-1]
    assert isinstance(event, Decode)
    assert (event.accept_len, event.accept_rate_printed, event.running, event.throughput, event.graph) == (
        2.17,
        0.54,
        1,
        178.86,
        True,
    )
    assert event.rank == ({"dp": 1, "tp": 3, "ep": 3} if "DP1" in head else {"tp": 0} if "TP0" in head else {})


@pytest.mark.parametrize(
    "record",
    [
        {"log": "", "stream": "stderr", "time": "2026-08-10T09:20:45Z"},
        {"time": "2026-08-10T09:20:45Z", "level": "INFO", "logger": "metrics", "message": ""},
        {"asctime": "2026-08-10 09:20:45", "levelname": "INFO", "msg": ""},
        {"@timestamp": "2026-08-10T09:20:45Z", "kubernetes": {"pod": "serve-0"}, "log": ""},
    ],
    ids=str,
)
def test_a_line_inside_a_record_is_read_wherever_it_stands(record: dict[str, Any]) -> None:
    metrics = "SpecDecoding metrics: Mean acceptance length: 2.45, Accepted: 60 tokens, Drafted: 300 tokens"
    for engine, line, length in ((log, STAMP + DECODE, 2.17), (vllm_log, metrics, 2.45)):
        held = {key: line if value == "" else value for key, value in record.items()}
        (event,) = engine.parse(json.dumps(held))
        assert isinstance(event, Decode)
        assert event.accept_len == length


def test_a_record_without_a_line_stays_as_it_is() -> None:
    for line in (
        '{"model": "m", "messages": [{"role": "user"}]}',
        '{"a": 1}',
        '{"message": 3}',
        '{"time": "x", "log": ',
    ):
        assert [event.text for event in log.parse(line)] == [line.strip()]


def test_a_level_and_a_place_behind_the_head_are_passed_over() -> None:
    (event,) = log.parse(f"[2026-08-10 09:20:45 TP0] INFO scheduler.py:754: {DECODE}")
    assert isinstance(event, Decode)
    assert (event.accept_len, event.rank) == (2.17, {"tp": 0})
    (access,) = log.parse('[2026-08-10 09:20:45] INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK')
    assert access.as_json()["kind"] == "access"


def test_a_tracers_front_is_taken_off_for_either_engine() -> None:
    front = "2026-08-10T09:20:45.123456Z  INFO metrics.log: "
    (event,) = vllm_log.parse(f"{front}SpecDecoding metrics: Mean acceptance length: 2.45, Accepted: 6 tokens")
    assert isinstance(event, Decode)
    assert event.accept_len == 2.45


@pytest.mark.parametrize("engine", [log, vllm_log], ids=["sglang", "vllm"])
@pytest.mark.parametrize("front", ["", "engine-1  | "])
def test_the_rank_before_a_line_without_a_head_is_kept(engine: Any, front: str) -> None:
    for line in (
        "[rank0]: Traceback (most recent call last):",
        "[rank13]: RuntimeError: out",
        "[/pytorch/a] [#1] [@x]",
    ):
        assert [event.text for event in engine.parse(front + line)][-1] == line


def test_a_record_of_the_json_file_driver_is_its_line() -> None:
    line = json.dumps({"log": f"{STAMP}{DECODE}\n", "stream": "stderr", "time": "2026-08-10T09:20:45.1Z"})
    (event,) = log.parse(line)
    assert isinstance(event, Decode)
    assert event.accept_len == 2.17


def test_what_a_client_sent_behind_a_front_is_no_batch() -> None:
    for text in (
        f"logger: Receive: obj=GenerateReqInput(text='{STAMP}{DECODE}')",
        f"prompt: 'x' {DECODE}",
        f'{{"text": "{DECODE}"}}',
    ):
        assert not any(isinstance(event, Decode) for event in log.parse(text)), text


@pytest.mark.parametrize(
    ("usage", "tokens", "share"),
    [
        ("#full token: 128, full token usage: 0.25, #swa token: 64, swa token usage: 0.04, ", 128, 0.25),
        ("#full token: 128, full token usage: 0.25, mamba num: 3, mamba usage: 0.04, ", 128, 0.25),
        ("#gpu token: 128, gpu token usage: 0.25, #cpu token: 5, cpu token usage: 0.04, ", None, None),
        ("", None, None),
    ],
)
@pytest.mark.parametrize("start", ["Decode batch. ", "Decode batch, ", "Decode batch [40], "])
@pytest.mark.parametrize("graph", ["cuda", "cpu", "npu", "musa"])
def test_every_printed_form_of_a_decode_line(start: str, usage: str, tokens: int, share: float, graph: str) -> None:
    rest = "accept len: 2.40, accept rate: 0.47, cap len: 3.00, pre-allocated usage: 0.28, #prealloc-req: 5, "
    rest += f"#retracted-req: 0, {graph} graph: True, gen throughput (token/s): 25.18, #queue-req: 3, est. decode "
    rest += "TFLOPS/s (per GPU): 1.50, fwd occupancy: 87.10%, fwd+idle occupancy: 91.00%"
    (event,) = log.parse(f"{STAMP}{start}#running-req: 18, {usage}{rest}")
    assert isinstance(event, Decode)
    assert (event.running, event.queue, event.throughput, event.graph) == (18, 3, 25.18, True)
    assert (event.accept_len, event.accept_rate_printed, event.tokens, event.token_usage) == (2.4, 0.47, tokens, share)
    assert event.fields["fwd occupancy"] == pytest.approx(0.871)


# -- other engines -------------------------------------------------------------------------------------------------


def test_a_log_of_another_engine_given_to_the_wrong_reader_is_named_and_read() -> None:
    lines = [case["text"] for case in OTHERS if case["engine"] == "vllm"]
    told = [event for event in log.parse_lines(lines) if isinstance(event, Decode)]
    assert {event.engine for event in told} == {"vllm"}
    assert [event.accept_len for event in told if event.accept_len] == [3.49, 7.24, 7.5]
    assert told[-1].as_json()["engine"] == "vllm"


def test_lines_of_another_engine_never_join_a_series() -> None:
    other = next(case["text"] for case in OTHERS if "Mean acceptance length: 3.49" in case["text"])
    told = list(log.parse_lines([STAMP + DECODE, other, STAMP + DECODE]))
    assert [event.accept_len for event in told if isinstance(event, Decode)] == [2.17, 2.17]
    (named,) = [event for event in told if isinstance(event, Other)]
    assert named.engine == "vllm"
    (foreign,) = vllm_log.parse(STAMP + DECODE)
    assert isinstance(foreign, Other)
    assert foreign.engine == "sglang" or foreign.kind == ""


@pytest.mark.parametrize(
    ("line", "length", "rate", "accepted"),
    [
        (
            "SpecDecoding metrics: Draft acceptance rate: 62.1%, Accepted: 100 tokens, Drafted: 161 tokens",
            None,
            0.621,
            100,
        ),
        (
            "SpecDecoding metrics: Mean acceptance length: 2.24, Accepted: 1 tokens, Drafted: 9 tokens, Per-position "
            "acceptance rate: 0.8, 0.44, Avg Draft acceptance rate: 62.0%",
            2.24,
            0.62,
            1,
        ),
    ],
)
@pytest.mark.parametrize(
    "head",
    [
        "INFO 05-04 10:00:00 [loggers.py:78] ",
        "INFO 05-04 10:00:00 metrics.py:455] ",
        "(EngineCore_0 pid=12) INFO 05-04 10:00:00 [v1/spec_decode/metrics.py:86] ",
        "(RayWorkerWrapper pid=1, ip=10.0.0.1) (APIServer pid=2) INFO 05-04 10:00:00 [metrics.py:96] ",
        "",
    ],
)
def test_vllm_metrics_of_every_generation(head: str, line: str, length: float, rate: float, accepted: int) -> None:
    (event,) = vllm_log.parse(head + line)
    assert isinstance(event, Decode)
    assert (event.accept_len, event.accept_rate_printed, event.accepted) == (length, pytest.approx(rate), accepted)
    assert event.cumulative is None


def test_failures_of_vllm_end_it_before_it_is_up() -> None:
    lines = [
        "INFO 05-04 10:00:00 [api_server.py:1] vLLM API server version 0.24.0",
        "(EngineCore_0 pid=12) INFO 05-04 10:00:01 [gpu_model_runner.py:1] Starting to load model x...",
        "(EngineCore_0 pid=12) ERROR 05-04 10:00:02 [c.py:7] RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    ]
    reader = vllm_log.Reader()
    events = [event for line in lines for event in reader.feed(line)]
    assert [event.kind for event in events if event.event == "error"] == ["aux-width"]  # type: ignore[attr-defined]
    assert reader.phase == "crashed"


# -- the rate formula from the numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(2.17, 0.54), (1.95, 0.49), (1.80, 0.45), (2.05, 0.51)], Fit(PER_TOKEN, 4)),
        ([(3.05, 0.68), (3.00, 0.67), (3.17, 0.72)], Fit(STRICT, 4)),
        ([(2.83, 0.61), (3.52, 0.84)], Fit(STRICT, 4)),
        ([(4.40, 0.68), (2.83, 0.37)], Fit(STRICT, 6)),
        ([(1.52, 0.51), (1.42, 0.47), (2.20, 0.73)], Fit(PER_TOKEN, 3)),
        ([(1.00, 0.11), (1.00, 0.11)], Fit(PER_TOKEN, 9)),
    ],
)
def test_formula_and_draft_tokens_follow_from_the_pairs(pairs: list[tuple[float, float]], expected: Fit) -> None:
    assert fits(pairs) == (expected,)


def test_at_the_ceiling_both_formulas_fit_the_same_number_of_tokens() -> None:
    assert set(fits([(8.0, 1.0)] * 5)) == {Fit(PER_TOKEN, 8), Fit(STRICT, 8)}


def test_a_pair_that_fits_neither_formula_fits_none() -> None:
    assert fits([(2.40, 0.84), (1.80, 0.45)]) == ()
    assert fits([]) == ()


# -- columns -------------------------------------------------------------------------------------------------------


def same(events: list[Event], history: History) -> None:
    for kind, columns in ((Decode, history.decode), (Prefill, history.prefill)):
        told = [event for event in events if isinstance(event, kind)]
        assert len(columns) == len(told)
        for name in NAMES[kind]:
            typed = [event.rank.get("dp") if name == "dp" else getattr(event, name) for event in told]
            assert equal(columns, name, typed), name


def equal(columns: Columns, name: str, typed: list[Any]) -> bool:
    return np.array_equal(
        columns[name], np.array([np.nan if value is None else float(value) for value in typed]), equal_nan=True
    )


@pytest.mark.parametrize("grammar", [log, vllm_log])
def test_columns_hold_the_values_of_the_events(grammar: Any) -> None:
    lines = [*ALL, *(front + STAMP + DECODE for front in FRONTS), *ALL]
    events = [event for number, line in enumerate(lines, 1) for event in grammar.parse(line, number)]
    same(events, grammar.history(f"{line}\n".encode() for line in lines))


def test_columns_of_a_repeated_shape_hold_the_values_of_the_events(tmp_path: Path) -> None:
    from tests.benchmarks.bench_log import write_log

    write_log(path := tmp_path / "server.log", 3000)
    text = path.read_text("utf-8")
    history = log.history(path.open("rb"))
    events = [event for event in log.parse_lines(text.splitlines()) if isinstance(event, (Decode, Prefill))]
    same(events, history)
    times = [event.time for event in events if isinstance(event, Decode)]
    assert (history.decode.time == np.array(times, dtype="datetime64[ms]")).all()
    assert history.lines == 3000


@given(st.lists(st.sampled_from(ALL), max_size=30), st.data())
def test_any_digits_in_known_lines_are_read_alike(lines: list[str], data: st.DataObject) -> None:
    drawn = ["".join(data.draw(st.sampled_from("0123456789")) if c.isdigit() else c for c in line) for line in lines]
    events = [event for number, line in enumerate(drawn, 1) for event in log.parse(line, number)]
    same(events, log.history(line.encode() for line in drawn))


@given(st.text(max_size=200))
def test_a_front_taken_off_leaves_the_end_of_the_line(text: str) -> None:
    assert text.endswith(without_front(text)) or text.startswith("{")


def test_a_shape_read_twice_gives_equal_events() -> None:
    first, second = (log.parse(f"{STAMP}{DECODE}", 9)[0] for _ in range(2))
    slow = next(iter(log._piece(f"{STAMP}{DECODE}", 9)))
    assert first == second == slow
    assert first.as_json() == slow.as_json()


@pytest.mark.parametrize(
    ("engine", "line", "kind"),
    [
        (
            vllm_log,
            "Value error, Eagle3 is only supported for Llama models. Got model_type='qwen3'",
            "target-unsupported",
        ),
        (vllm_log, "ValueError: Unsupported model_type mistral for Eagle3 speculator", "draft-config"),
        (vllm_log, "ValueError: There is no module or parameter named 'fc_norm' in X", "weight-names"),
        (vllm_log, "ValueError: Cannot find model module. 'EagleX' is not registered", "architecture-unknown"),
        (vllm_log, "ValueError: the config must have `pard_token` or `ptd_token_id` specified", "draft-config"),
        (vllm_log, "AssertionError: Attempted to load weight (torch.Size([2])) into parameter", "weight-shapes"),
        (log, "ValueError: Currently LoRA is only compatible with NGRAM speculative decoding.", "launch-flags"),
        (log, "ValueError: Spec v2 currently only supports topk = 1 for speculative decoding.", "launch-flags"),
        (log, "AttributeError: 'X' object has no attribute 'hot_token_id'", "draft-unsupported"),
        (log, "AttributeError: 'X' object has no attribute 'capture_aux_hidden_states'", "target-unsupported"),
        (log, "OSError: /d does not appear to have a file named config.json. Checkout", "path-missing"),
        (log, "ValueError: Unrecognized model in /d. Should have a `model_type` key", "draft-config"),
        (log, "SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", "weights-damaged"),
        (log, "OSError: /d does not appear to have a file named preprocessor_config.json.", None),
    ],
)
def test_what_a_start_stops_with_is_classed(engine: Any, line: str, kind: str | None) -> None:
    (event,) = engine.parse(line)
    assert event.as_json().get("kind") == kind
