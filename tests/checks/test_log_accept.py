"""`log.accept`: what the end of a server's log says about acceptance, and what it must not conclude."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checks.catalog import all_checks, run_checks
from checks.evidence import Evidence
from checks.finding import Finding, Verdict
from checks.log import read
from checks.request import Request, ServerRequest

ARGS = (
    *("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)


def decode(*lengths: float, tags: str = "TP0") -> list[str]:
    return [
        f"[2026-08-10 09:20:{index % 60:02d} {tags}] Decode batch, #running-req: 1, #token: 9, token usage: 0.00, "
        f"accept len: {length:.2f}, accept rate: 0.50, cuda graph: True, gen throughput (token/s): 90.00, #queue-req: 0"
        for index, length in enumerate(lengths)
    ]


def finding(tmp_path: Path, lines: list[str], **request: Any) -> Finding:
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    chosen = [item for item in all_checks() if item.id == "log.accept"]
    (found,) = run_checks(Evidence(Request(log=str(path), **request)), chosen)
    return found


def test_no_token_accepted_in_many_lines_fails(tmp_path: Path) -> None:
    found = finding(tmp_path, decode(*[1.0] * 12), args=ARGS)
    assert found.verdict is Verdict.FAIL
    assert "no draft token is accepted" in found.summary
    assert found.fix is None


def test_a_few_such_lines_are_not(tmp_path: Path) -> None:
    assert finding(tmp_path, decode(1.0, 1.0, 1.0)).verdict is Verdict.INFO


V0 = (
    "INFO 10-16 19:05:47 metrics.py:367] Speculative metrics: Draft acceptance rate: {rate:.3f}, System efficiency: "
    "0.250, Number of speculative tokens: 3, Number of accepted tokens: {accepted}, Number of draft tokens: {drafted}, "
    "Number of emitted tokens: 10616."
)
PLAIN = "INFO 10-16 19:05:47 metrics.py:295] Avg prompt throughput: 558.7 tokens/s, Avg generation throughput: 127.4 "
PLAIN += (
    "tokens/s, Running: 2 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 0.8%, CPU KV cache usage: 0.0%."
)
EARLY_V1 = "INFO 04-10 19:05:47 [metrics.py:86] SpecDecoding metrics: Draft acceptance rate: {}%, Accepted: {} tokens, "
EARLY_V1 += "Drafted: {} tokens"


@pytest.mark.parametrize(
    ("lines", "verdict", "says"),
    [
        ([V0.format(rate=0.642, accepted=8547, drafted=13311)], "INFO", "64.2% of 13311 drafted tokens"),
        ([V0.format(rate=0, accepted=0, drafted=42272)], "FAIL", "0.0% of 42272 drafted tokens"),
        ([V0.format(rate=0, accepted=0, drafted=42272).replace("draft tokens", "draft tokens tokens")], "FAIL", "0.0%"),
        ([V0.format(rate=0, accepted=0, drafted=900)], "INFO", "start on"),
        ([EARLY_V1.format("100.0", 66, 66)], "INFO", "over its latest window"),
        ([EARLY_V1.format("0.0", 0, 600)] * 2, "FAIL", "the draft gives nothing"),
        ([EARLY_V1.format("0.0", 0, 600), EARLY_V1.format("0.2", 1, 600)], "INFO", "0.2% of 600"),
    ],
)
def test_shares_without_an_accept_length_are_told_as_such(
    tmp_path: Path, lines: list[str], verdict: str, says: str
) -> None:
    """vLLM V0 counts from the server's start on; neither it nor early V1 prints an accept length."""
    found = finding(tmp_path, [PLAIN, *lines])
    assert found.verdict is Verdict[verdict]
    assert says in found.summary
    assert "without speculation" not in found.summary


def test_one_accepted_token_among_them_is_not(tmp_path: Path) -> None:
    assert finding(tmp_path, decode(*[1.0] * 12, 1.02)).verdict is Verdict.INFO


@pytest.mark.parametrize("length", [1.3, 2.2, 3.4])
def test_low_or_high_is_told_and_not_judged(tmp_path: Path, length: float) -> None:
    found = finding(tmp_path, decode(*[length, length + 0.1] * 6), args=ARGS)
    assert found.verdict is Verdict.INFO
    assert found.evidence["mean"] == pytest.approx(length + 0.05)
    assert found.evidence["ceiling"] == 4


def test_the_running_servers_flags_give_the_ceiling(tmp_path: Path) -> None:
    argv = ("python", "-m", "sglang.launch_server", *ARGS[:2], *("--speculative-num-steps", "5"), *ARGS[4:])
    found = finding(tmp_path, decode(*[4.0] * 10), args=ARGS, server=ServerRequest(argv=argv))
    assert found.evidence["ceiling"] == 6
    assert found.verdict is Verdict.INFO


def test_a_simulated_acceptance_is_not_believed(tmp_path: Path) -> None:
    found = finding(tmp_path, decode(*[3.0, 3.1] * 6), env={"SGLANG_SIMULATE_ACC_LEN": "3"})
    assert found.verdict is Verdict.WARN
    assert "SGLANG_SIMULATE_ACC_LEN" in found.summary


def test_without_speculation_it_says_so(tmp_path: Path) -> None:
    plain = [line.replace("accept len: 1.00, accept rate: 0.50, ", "") for line in decode(*[1.0] * 12)]
    found = finding(tmp_path, plain)
    assert found.verdict is Verdict.INFO
    assert "without speculation" in found.summary


def test_without_decode_lines_it_is_unknown_and_says_what_would_help(tmp_path: Path) -> None:
    found = finding(tmp_path, ["[2026-08-10 09:19:26] The server is fired up and ready to roll!"])
    assert found.verdict is Verdict.UNKNOWN
    assert found.evidence["needs"]


def test_only_the_last_life_of_the_server_counts(tmp_path: Path) -> None:
    start = "[2026-08-10 09:30:00] server_args={'model_path': '/m'}"
    found = finding(tmp_path, [*decode(*[1.0] * 12), start, *decode(*[2.5] * 9)])
    assert found.evidence["lines"] == 9
    assert found.evidence["mean"] == 2.5


def test_ranks_are_shown_apart(tmp_path: Path) -> None:
    lines = [
        line for pair in zip(decode(*[2.9] * 9, tags="DP0 TP0"), decode(*[1.1] * 9, tags="DP1 TP1")) for line in pair
    ]
    assert finding(tmp_path, lines).evidence["by_rank"] == {"dp0": 2.9, "dp1": 1.1}


def test_vllms_log_is_read_by_its_own_grammar(tmp_path: Path) -> None:
    line = "(APIServer pid=1) INFO 08-04 20:51:08 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.50, "
    found = finding(tmp_path, [line + "Accepted: 92 tokens, Drafted: 259 tokens"] * 10)
    assert found.evidence["engine"] == "vllm"
    assert found.evidence["mean"] == 2.5


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "TAIL", 4000)
    found = finding(tmp_path, [*decode(*[1.0] * 500), *decode(*[2.0] * 15)])
    assert found.evidence["low"] == 2.0 or found.evidence["lines"] < 30
    assert found.evidence["lines"] > 8


def test_a_log_of_anything_else_does_not_stop_the_check(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(bytes(range(256)) * 50)
    chosen = [item for item in all_checks() if item.id == "log.accept"]
    (found,) = run_checks(Evidence(Request(log=str(path))), chosen)
    assert found.verdict is Verdict.UNKNOWN


def test_a_log_without_speculation_under_flags_that_ask_for_it_warns(tmp_path: Path) -> None:
    plain = [line.replace("accept len: 1.00, accept rate: 0.50, ", "") for line in decode(*[1.0] * 12)]
    found = finding(tmp_path, plain, args=ARGS)
    assert found.verdict is Verdict.WARN
    assert "--speculative-algorithm asks for it" in found.summary
    assert finding(tmp_path, plain[:3], args=ARGS).verdict is Verdict.INFO


def test_lengths_the_flags_do_not_allow_are_another_servers(tmp_path: Path) -> None:
    found = finding(tmp_path, decode(*[4.9] * 12), args=ARGS)
    assert found.verdict is Verdict.WARN
    assert "above the 4 the flags allow" in found.summary
