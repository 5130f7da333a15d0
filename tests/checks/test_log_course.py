"""The log's other checks, each on a log that has the fault and on one that has not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from checks.acceptance import REPLAYED, Estimate
from checks.catalog import all_checks, run_checks
from checks.evidence import Evidence
from checks.finding import Finding, Verdict
from checks.request import EngineRequest, Request
from tests.checks.files import CONFIG, write_draft
from tests.checks.test_log_accept import ARGS

PASS, INFO, WARN, FAIL, UNKNOWN = Verdict.PASS, Verdict.INFO, Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN


def line(length: float, rate: float | None = None, at: int = 0, tags: str = "TP0", running: int = 1) -> str:
    clock = f"2026-08-{10 + at // 86400:02d} {at // 3600 % 24:02d}:{at // 60 % 60:02d}:{at % 60:02d}"
    printed = "" if rate is None else f"accept rate: {rate:.2f}, "
    return (
        f"[{clock} {tags}] Decode batch, #running-req: {running}, #token: 9, token usage: 0.00, "
        f"accept len: {length:.2f}, "
        f"{printed}cuda graph: True, gen throughput (token/s): 90.00, #queue-req: 0"
    )


def prefill(cached: int, at: int = 0, new: int = 50) -> str:
    clock = f"2026-08-10 {at // 3600 % 24:02d}:{at // 60 % 60:02d}:{at % 60:02d}"
    return (
        f"[{clock} TP0] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0"
    )


def find(
    tmp_path: Path, id: str, lines: Sequence[str], replayed: Estimate | None = None, **request: Any
) -> list[Finding]:
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    evidence = Evidence(Request(log=str(path), **request))
    if replayed is not None:
        evidence.memo(REPLAYED, lambda: replayed)
    return list(run_checks(evidence, [item for item in all_checks() if item.id == id]))


def one(tmp_path: Path, id: str, lines: Sequence[str], **request: Any) -> Finding:
    (found,) = find(tmp_path, id, lines, **request)
    assert found.check == id, found.summary
    return found


def steady(count: int, mean: float = 2.4, seed: int = 1, spread: float = 0.25) -> list[float]:
    draw = random.Random(seed)
    return [min(max(draw.gauss(mean, spread), 1.0), 4.0) for _ in range(count)]


# -- ceiling -------------------------------------------------------------------------------------------------------


def test_five_lines_at_the_ceiling_are_a_warning_without_any_flags(tmp_path: Path) -> None:
    found = one(tmp_path, "log.accept_ceiling", [line(8.0, 1.0)] * 5)
    assert found.verdict is WARN
    assert (found.evidence["ceiling"], found.evidence["longest_run"]) == (8, 5)
    assert "loops" in found.summary


def test_four_lines_or_runs_broken_by_others_are_not(tmp_path: Path) -> None:
    assert one(tmp_path, "log.accept_ceiling", [line(8.0, 1.0)] * 4).verdict is INFO
    broken = [line(4.0), line(4.0), line(4.0), line(3.9)] * 5
    assert one(tmp_path, "log.accept_ceiling", broken, args=ARGS).verdict is PASS


def test_ranks_at_the_ceiling_are_counted_apart(tmp_path: Path) -> None:
    pair = [line(4.0, tags="DP0 TP0"), line(2.0, tags="DP1 TP1")]
    assert one(tmp_path, "log.accept_ceiling", pair * 6, args=ARGS).verdict is WARN
    turns = [line(4.0, tags=f"DP{n} TP{n}") for n in range(4)]
    assert one(tmp_path, "log.accept_ceiling", turns, args=ARGS).verdict is INFO


def test_a_good_head_below_its_ceiling_passes(tmp_path: Path) -> None:
    assert one(tmp_path, "log.accept_ceiling", [line(3.4, 0.8)] * 20, args=ARGS).verdict is PASS


# -- low -----------------------------------------------------------------------------------------------------------

BIG_TREE = ("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "8", "--speculative-eagle-topk", "8")
BIG_TREE += ("--speculative-num-draft-tokens", "64")


def test_a_big_trees_tiny_rate_is_no_low_acceptance(tmp_path: Path) -> None:
    lines = [line(5.88, 0.08)] * 12
    for id in ("log.accept_low", "log.rate_formula", "log.accept_ceiling"):
        assert one(tmp_path, id, lines, args=BIG_TREE).verdict is PASS, id
    assert one(tmp_path, "log.accept", lines, args=BIG_TREE).verdict is INFO


def test_a_mean_near_one_is_a_warning_that_proves_nothing(tmp_path: Path) -> None:
    found = one(tmp_path, "log.accept_low", [line(1.12)] * 12)
    assert found.verdict is WARN
    assert "not proven" in found.summary


def test_a_few_low_lines_are_no_verdict(tmp_path: Path) -> None:
    assert one(tmp_path, "log.accept_low", [line(1.12)] * 7).verdict is INFO


def vllm(length: float, positions: str) -> str:
    return (
        f"(APIServer pid=1) INFO 08-04 20:51:08 [metrics.py:120] SpecDecoding metrics: "
        f"Mean acceptance length: {length}, "
        f"Accepted: 3 tokens, Drafted: 300 tokens, Per-position acceptance rate: {positions}, Avg Draft acceptance "
        "rate: 1.2%"
    )


def test_positions_that_fall_fast_look_like_wrong_layers(tmp_path: Path) -> None:
    found = one(tmp_path, "log.accept_low", [vllm(1.036, "0.036, 0.001, 0.000")] * 9)
    assert found.verdict is WARN
    assert found.evidence["positions"] == [0.036, 0.001, 0.0]
    assert one(tmp_path, "log.accept_low", [vllm(1.4, "0.39, 0.01, 0.00")] * 9).verdict is WARN
    assert one(tmp_path, "log.accept_low", [vllm(2.77, "0.751, 0.567, 0.453")] * 9).verdict is PASS


def test_a_second_position_never_accepted_fails_where_the_config_names_no_ids(tmp_path: Path) -> None:
    never, seldom = [vllm(1.036, "0.036, 0.001, 0.000")] * 9, [vllm(1.12, "0.11, 0.01, 0.00")] * 9
    silent = write_draft(tmp_path / "silent", {**CONFIG, "eagle_config": {}}, {})
    named = write_draft(tmp_path / "named", CONFIG, {})
    found = one(tmp_path, "log.accept_low", never, draft=str(silent))
    assert found.verdict is FAIL
    assert "names no eagle_aux_hidden_state_layer_ids" in found.summary
    assert one(tmp_path, "log.accept_low", never, draft=str(named)).verdict is WARN
    assert one(tmp_path, "log.accept_low", seldom, draft=str(silent)).verdict is WARN


# -- the rate ------------------------------------------------------------------------------------------------------

OLD = [line(2.17, 0.54), line(1.95, 0.49), line(1.80, 0.45), line(2.05, 0.51)]
NEW = [line(3.05, 0.68), line(3.00, 0.67), line(3.17, 0.72)]


@pytest.mark.parametrize(
    ("lines", "version", "verdict", "words"),
    [
        (OLD, "", PASS, "accept len / draft tokens, 4"),
        (NEW, "", PASS, "(accept len - 1) / (draft tokens - 1), 4"),
        (OLD, "0.5.10", PASS, "accept len / draft tokens"),
        (NEW, "0.5.12", PASS, "(accept len - 1)"),
        (OLD, "0.5.12", WARN, "another version"),
        (NEW, "0.5.10", WARN, "another version"),
        ([line(2.40, 0.84), line(1.8, 0.45)], "", UNKNOWN, "no known formula"),
        ([line(2.40), line(1.8)], "", INFO, "no accept rate is printed"),
        ([line(8.0, 1.0)] * 5, "", INFO, "readings"),
    ],
)
def test_the_rate_formula(tmp_path: Path, lines: list[str], version: str, verdict: Verdict, words: str) -> None:
    engines = (EngineRequest("sglang", version),) if version else ()
    found = one(tmp_path, "log.rate_formula", lines, engines=engines)
    assert found.verdict is verdict
    assert words in found.summary


def test_the_flags_settle_what_the_numbers_leave_open(tmp_path: Path) -> None:
    found = one(
        tmp_path, "log.rate_formula", [line(4.0, 1.0)] * 5, args=ARGS, engines=(EngineRequest("sglang", "0.5.12"),)
    )
    assert (found.verdict, found.evidence["draft_tokens"]) == (PASS, 4)
    other = one(tmp_path, "log.rate_formula", NEW, args=BIG_TREE)
    assert other.verdict is INFO
    assert "the flags say 64" in other.summary


def test_zero_acceptance_is_no_eleven_percent(tmp_path: Path) -> None:
    lines = [line(1.0, 0.11)] * 9
    assert one(tmp_path, "log.accept", lines).verdict is FAIL
    found = one(tmp_path, "log.rate_formula", lines)
    assert (found.evidence["formula"], found.evidence["draft_tokens"]) == ("accept len / draft tokens", 9)


# -- whose log -----------------------------------------------------------------------------------------------------


def test_the_log_is_named(tmp_path: Path) -> None:
    assert one(tmp_path, "log.engine", NEW).evidence["engine"] == "sglang"
    assert one(tmp_path, "log.engine", [vllm(2.77, "0.7, 0.5")]).evidence["engine"] == "vllm"
    wrong = one(tmp_path, "log.engine", [vllm(2.77, "0.7, 0.5")], engines=(EngineRequest("sglang", "0.5.12"),))
    assert wrong.verdict is WARN
    mixed = one(tmp_path, "log.engine", [*NEW, vllm(2.77, "0.7, 0.5")])
    assert (mixed.verdict, mixed.evidence["other_engines"]) == (INFO, {"vllm": 1})
    assert one(tmp_path, "log.accept", [*NEW * 3, vllm(1.0, "0.0, 0.0")]).evidence["low"] == 3.0
    llama = "0.06.896.015 I slot print_timing: id 1 | draft acceptance = 0.6 ( 167 accepted / 259 generated), x"
    found = one(tmp_path, "log.engine", [llama])
    assert found.verdict is INFO
    assert "llama.cpp" in found.summary
    assert one(tmp_path, "log.engine", ["nothing"]).verdict is UNKNOWN


def test_counts_since_the_start_are_told(tmp_path: Path) -> None:
    v0 = "INFO 10-16 19:05:47 m.py:367] Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598"
    found = one(tmp_path, "log.engine", [v0])
    assert found.verdict is INFO
    assert found.evidence["cumulative_rate"] == 0.642


# -- course --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_steady_log_has_no_trend(tmp_path: Path, seed: int) -> None:
    lines = [line(length, at=20 * n) for n, length in enumerate(steady(400, seed=seed))]
    assert one(tmp_path, "log.trend", lines).verdict is PASS


def test_a_step_down_is_found_where_it_is(tmp_path: Path) -> None:
    lengths = [*steady(150, 3.2), *steady(150, 2.2, seed=2)]
    found = one(tmp_path, "log.trend", [line(length, at=4 * n) for n, length in enumerate(lengths)])
    assert found.verdict is WARN
    assert "2026-08-10 00:10:00" in found.summary
    assert "versions" in found.summary


def test_a_slow_drift_over_hours_is_found(tmp_path: Path) -> None:
    lengths = [length - n / 400 * 1.0 for n, length in enumerate(steady(400, 3.5))]
    found = one(tmp_path, "log.trend", [line(length, at=40 * n) for n, length in enumerate(lengths)])
    assert found.verdict is WARN


def test_a_rise_is_no_warning_and_a_short_log_no_verdict(tmp_path: Path) -> None:
    rising = [line(length, at=n) for n, length in enumerate([*steady(100, 1.4, spread=0.1), *steady(100, 3.0)])]
    assert one(tmp_path, "log.trend", rising).verdict is PASS
    assert one(tmp_path, "log.trend", rising[:60]).verdict is INFO


def test_a_long_interval_explains_a_silent_log(tmp_path: Path) -> None:
    found = one(tmp_path, "log.sparse", [line(2.0)] * 2, args=("--decode-log-interval", "1000"))
    assert found.verdict is INFO
    assert found.evidence["expected_seconds"] == pytest.approx(1000 * 2 / 90, abs=0.1)
    assert "no hang" in found.summary
    assert one(tmp_path, "log.sparse", [line(2.0)] * 2).verdict is PASS
    assert one(tmp_path, "log.sparse", ["x"], args=("--log-level", "warning")).verdict is INFO


def test_ranks_are_weighted_and_idle_ones_left_out(tmp_path: Path) -> None:
    good = [line(2.5 + n / 100, tags=f"DP{n} TP{n}", running=8) for n in range(7)]
    found = one(tmp_path, "log.rank_spread", [*good, line(1.0, tags="DP7 TP7", running=0)])
    assert found.verdict is PASS
    assert "dp7" not in found.evidence["ranks"]
    bad = one(tmp_path, "log.rank_spread", [*good, line(1.2, tags="DP7 TP7", running=8)])
    assert (bad.verdict, bad.evidence["lowest"]) == (INFO, "dp7")
    weighed = [line(2.0, tags="DP0", running=1), line(3.0, tags="DP0", running=3), line(2.0, tags="DP1")]
    assert one(tmp_path, "log.rank_spread", weighed).evidence["ranks"]["dp0"] == 2.75
    assert one(tmp_path, "log.rank_spread", NEW).verdict is PASS


def test_lower_acceptance_after_cache_hits_is_the_engines(tmp_path: Path) -> None:
    draw = random.Random(3)
    lines = []
    for n in range(160):
        hit = n % 2
        lines += [prefill(80 if hit else 0), line(draw.gauss(2.26 if hit else 2.39, 0.08))]
    found = one(tmp_path, "log.accept_by_cache", lines)
    assert found.verdict is WARN
    assert "not the training" in found.summary


@pytest.mark.parametrize("seed", range(20))
def test_the_same_acceptance_with_and_without_hits_passes(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    lines = []
    for n in range(160):
        lines += [prefill(80 * (n % 2)), prefill(0, new=1), line(draw.gauss(2.4, 0.2))]
    assert one(tmp_path, "log.accept_by_cache", lines).verdict is PASS


def test_few_hits_are_no_comparison(tmp_path: Path) -> None:
    assert one(tmp_path, "log.accept_by_cache", [prefill(0), line(2.0)] * 30).verdict is INFO


def test_live_and_expected_length_are_compared_where_a_replay_was_made(tmp_path: Path) -> None:
    lines = [line(1.4)] * 10
    assert find(tmp_path, "log.expected", lines) == []
    (low,) = find(tmp_path, "log.expected", lines, replayed=Estimate(2.6, 2.4, 2.8, 12))
    assert low.verdict is WARN
    (fine,) = find(tmp_path, "log.expected", [line(2.2)] * 10, replayed=Estimate(2.6, 2.4, 2.8, 12))
    assert fine.verdict is PASS


@pytest.mark.parametrize("id", ["accept", "accept_low", "accept_ceiling", "rate_formula", "trend", "rank_spread"])
def test_no_decode_line_is_unknown_and_no_speculation_is_told(tmp_path: Path, id: str) -> None:
    empty = one(tmp_path, f"log.{id}", ["[2026-08-10 09:19:26] The server is fired up and ready to roll!"])
    assert empty.verdict is UNKNOWN
    assert empty.evidence["needs"]
    plain = [text.replace("accept len: 2.40, ", "") for text in [line(2.4)] * 9]
    assert one(tmp_path, f"log.{id}", plain).verdict is INFO
