"""A log that was copied for the run: its findings name what it is a copy of, and where there is none they say why."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from checks.answer import answer
from checks.catalog import choose, run_checks
from checks.errors import NotRunnable
from checks.evidence import Evidence
from checks.finding import Verdict
from checks.ops.life import course_of
from checks.request import Request
from tests.checks.test_log_accept import ARGS, decode

WHY = "`docker logs sglang` on gpu-box ended with code 1: No such container: sglang. See `docker ps -a`"


def report(**request: Any) -> dict[str, Any]:
    return answer({"only": ["log"], "args": list(ARGS), **request}, lambda event: None)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    path = tmp_path / "0b1c.log"
    path.write_text("\n".join(decode(*[2.5] * 12)) + "\n")
    return path


def test_findings_name_what_the_file_is_a_copy_of(copy: Path) -> None:
    told = report(log=str(copy), log_of="docker:sglang")
    assert {item["evidence"]["log"] for item in told["findings"] if "log" in item["evidence"]} == {"docker:sglang"}
    assert str(copy) not in str(told["findings"])
    assert told["inputs"]["log"] == "docker:sglang"
    plain = report(log=str(copy))
    assert [item["verdict"] for item in told["findings"]] == [item["verdict"] for item in plain["findings"]]
    assert "PASS" in {item["verdict"] for item in told["findings"]}


def test_of_a_log_that_could_not_be_copied_every_check_says_why() -> None:
    told = report(log_of="docker:sglang", log_failed=WHY)
    assert len(told["findings"]) > 8
    for item in told["findings"]:
        assert item["verdict"] == "UNKNOWN"
        assert item["summary"] == f"not checked: the log docker:sglang could not be read: {WHY}"
        assert item["evidence"]["needs"]


def test_a_log_that_could_not_be_copied_says_nothing_of_the_flags() -> None:
    flags = [*ARGS, "--cuda-graph-max-bs", "8"]
    with_it = report(only=["flags"], args=flags, log_of="docker:sglang", log_failed=WHY)
    without = report(only=["flags"], args=flags)
    shown = [[(item["check"], item["summary"]) for item in one["findings"]] for one in (with_it, without)]
    assert shown[0] == shown[1]


def test_a_copy_that_is_gone_keeps_no_other_check_from_its_verdict(copy: Path) -> None:
    evidence = Evidence(Request(log=str(copy), log_of="docker:sglang", args=ARGS))
    copy.unlink()
    found = list(run_checks(evidence, choose(["log"])))
    assert {item.verdict for item in found} == {Verdict.UNKNOWN}
    assert all("the copy of docker:sglang could not be read" in item.summary for item in found)
    copy.write_text("\n".join(decode(2.5)))
    evidence = Evidence(Request(log=str(copy)))
    copy.unlink()
    with pytest.raises(NotRunnable):
        list(run_checks(evidence, choose(["log"])))


def test_the_age_of_a_copy_is_not_that_of_its_last_line(copy: Path) -> None:
    long_ago = time.time() - 5000
    os.utime(copy, (long_ago, long_ago))
    silent = course_of(Evidence(Request(log=str(copy)))).silent
    assert silent is not None
    assert silent >= 5000
    assert course_of(Evidence(Request(log=str(copy), log_of="docker:sglang"))).silent is None
