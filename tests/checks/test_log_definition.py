"""Accept lengths that people report differ by one: every summary that gives one says that the bonus token is in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from checks.acceptance import REPLAYED, Estimate
from checks.catalog import choose, run_checks
from checks.evidence import Evidence
from checks.request import Request

FLAGS = (
    "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4"
)
LENGTH = re.compile(r"(?<!rate of )(?<![\d.])[1-8]\.\d\d(?!\d)")


def decode(length: float, at: int, tags: str = "TP0") -> str:
    clock = f"2026-08-10 {at // 60:02d}:{at % 60:02d}:00"
    return (
        f"[{clock} {tags}] Decode batch, #running-req: 1, #token: 9, token usage: 0.00, accept len: {length:.2f}, "
        f"accept rate: {length / 4:.2f}, cuda graph: True, gen throughput (token/s): 90.00, #queue-req: 0"
    )


def prefill(cached: int, at: int) -> str:
    return (
        f"[2026-08-10 {at // 60:02d}:{at % 60:02d}:00 TP0] Prefill batch, #new-seq: 1, #new-token: 50, "
        f"#cached-token: {cached}, token usage: 0.00, #running-req: 0, #queue-req: 0"
    )


LOGS = {
    "few": [decode(2.0, at) for at in range(3)],
    "never": [decode(1.0, at) for at in range(12)],
    "low": [decode(1.1 + 0.01 * (at % 3), at) for at in range(12)],
    "good": [decode(2.4 + 0.1 * (at % 5), at) for at in range(90)],
    "falls": [decode((3.0 if at < 60 else 1.5) + 0.01 * (at % 5), at) for at in range(120)],
    "ceiling": [decode(4.0, at) for at in range(12)],
    "beyond": [decode(7.5, at) for at in range(12)],
    "ranks": [decode(2.0 + rank, at, f"DP{rank} TP0") for at in range(12) for rank in (0, 1)],
    "caches": [row for at in range(60) for row in (prefill(at % 2 * 9, at), decode(2.8 - at % 2, at))],
}


@pytest.mark.parametrize("name", LOGS)
def test_every_summary_with_a_length_names_the_definition(tmp_path: Path, name: str) -> None:
    log = tmp_path / "server.log"
    log.write_text("\n".join(LOGS[name]) + "\n")
    evidence = Evidence(Request(log=str(log), args=tuple(FLAGS.split())))
    evidence.memo(REPLAYED, lambda: Estimate(2.0, 1.8, 2.2, 5))
    findings = list(run_checks(evidence, choose(["log"])))
    assert "internal" not in {item.check for item in findings}
    with_length = [item for item in findings if LENGTH.search(item.summary) and item.check != "log.rate_formula"]
    assert "log.accept" in {item.check for item in with_length}
    unnamed = [(item.check, item.summary) for item in with_length if "bonus token included" not in item.summary]
    assert unnamed == []


def test_each_check_of_acceptance_was_made_to_give_a_length(tmp_path: Path) -> None:
    spoke = set()
    for name, lines in LOGS.items():
        log = tmp_path / f"{name}.log"
        log.write_text("\n".join(lines) + "\n")
        evidence = Evidence(Request(log=str(log), args=tuple(FLAGS.split())))
        evidence.memo(REPLAYED, lambda: Estimate(2.0, 1.8, 2.2, 5))
        found = run_checks(evidence, choose(["log"]))
        spoke |= {item.check for item in found if "bonus token included" in item.summary}
    asked = ("accept", "accept_low", "accept_ceiling", "trend", "rank_spread", "accept_by_cache", "expected")
    assert spoke == {f"log.{name}" for name in asked}
