"""Reports say what was found, in every form, and let nothing from a host through to the terminal."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from console import report
from console.exits import Exit
from console.masking import MASK

FIX = {
    "kind": "config",
    "file": "config.json",
    "patch": [
        {"op": "test", "path": "/eagle_config/ids", "value": [-1, 2, 30]},
        {"op": "replace", "path": "/eagle_config/ids", "value": [2, 30, 58]},
    ],
}


def finding(check: str, verdict: str, **more: Any) -> dict[str, Any]:
    base = {"check": check, "verdict": verdict, "summary": f"{check} says", "evidence": {}, "fix": None, "help": ""}
    return {**base, "took_s": 0.1, **more}


def made(*findings: dict[str, Any]) -> dict[str, Any]:
    counts = {name: sum(item["verdict"] == name for item in findings) for name in report.VERDICTS}
    worst = next((name for name in report.VERDICTS if counts[name]), "PASS")
    return {
        "schema": 1,
        "console": "0.1.0",
        "host": "gpu",
        "inputs": {},
        "engines": [{"name": "sglang", "version": "0.5.12", "source": "probed"}],
        "verdict": worst,
        "summary": counts,
        "findings": list(findings),
        "took_s": 1.9,
    }


@pytest.mark.parametrize(
    ("verdicts", "fail_on", "strict", "code"),
    [
        (["PASS", "INFO"], "fail", False, Exit.OK),
        (["WARN"], "fail", False, Exit.OK),
        (["WARN"], "warn", False, Exit.FINDINGS),
        (["FAIL", "UNKNOWN"], "fail", True, Exit.FINDINGS),
        (["UNKNOWN"], "fail", False, Exit.OK),
        (["UNKNOWN"], "fail", True, Exit.NOT_PROVEN),
        (["WARN", "UNKNOWN"], "warn", True, Exit.FINDINGS),
    ],
)
def test_exit_codes(verdicts: list[str], fail_on: str, strict: bool, code: Exit) -> None:
    assert report.exit_code(made(*(finding("cfg.x", verdict) for verdict in verdicts)), fail_on, strict) is code


def test_the_worst_comes_first_with_its_evidence_and_fix() -> None:
    text = report.to_text(
        made(
            finding("cfg.a", "PASS"),
            finding("align.b", "FAIL", fix=FIX, evidence={"states": [0, 3], "matrix": [[0.1]]}),
        )
    )
    lines = text.splitlines()
    assert lines[0].startswith("FAIL")
    assert "        states: [0, 3]" in lines
    assert "matrix" not in text
    assert "        fix: config.json /eagle_config/ids: [-1, 2, 30] → [2, 30, 58]" in lines
    assert "\x1b" not in text
    assert lines[-1].startswith("FAIL · 1 FAIL, 1 PASS · host gpu · sglang 0.5.12 (probed)")


def test_the_last_line_names_what_is_not_proven() -> None:
    text = report.to_text(made(finding("align.states", "UNKNOWN", evidence={"needs": ["capture"]})))
    assert text.splitlines()[-1] == "not proven: align.states (needs capture)"


def test_the_last_line_repeats_nothing_at_length() -> None:
    long = "needs " + "the states that were captured from the running server, " * 3 + "of the same texts"
    found = [
        finding("align.a", "UNKNOWN", summary=f"not compared: {long}", evidence={"needs": [long]}),
        finding("align.b", "UNKNOWN", evidence={"needs": [long]}),
        finding("align.c", "UNKNOWN", evidence={"needs": ["needs an engine capture"]}),
        finding("align.d", "UNKNOWN", summary="x" * 500),
        finding("cfg.e", "UNKNOWN", evidence={"needs": ["an engine capture"]}),
    ]
    last = report.to_text(made(*found)).splitlines()[-1]
    assert last.startswith("not proven: align.a, align.d; align.b (needs the states that were captured")
    assert last.endswith("…); align.c, cfg.e (needs an engine capture)")
    assert len(last) < 200


HOSTILE = "a\x1b]52;c;ZXZpbA==\x07b\u202e[bold]|<script>\r\nsecond"


def test_hostile_text_is_written_out() -> None:
    hostile = made(finding("cfg.x", "FAIL", summary=HOSTILE, evidence={HOSTILE: HOSTILE}, help=HOSTILE, engine=HOSTILE))
    for text in (report.to_text(hostile), report.to_markdown(hostile), report.to_junit(hostile)):
        assert not any(char in text for char in "\x1b\x07\u202e\r")
    assert report.to_text(hostile, colour=True).count("\x1b") == 4
    assert "<script>" not in report.to_markdown(hostile)
    assert json.loads(report.to_json(hostile))["findings"][0]["summary"] == HOSTILE
    assert "\x1b" not in report.to_json(hostile)


def test_secrets_are_masked_in_every_form() -> None:
    secret = made(finding("flags.x", "FAIL", evidence={"api-key": "s3cret", "url": "http://me:s3cret@box/"}))
    for text in (report.to_text(secret), report.to_json(secret), report.to_markdown(secret), report.to_junit(secret)):
        assert "s3cret" not in text
    assert MASK in report.to_text(secret)


def test_junit_counts_what_fails() -> None:
    tree = ElementTree.fromstring(
        report.to_junit(
            made(finding("cfg.a", "WARN"), finding("align.b", "FAIL"), finding("align.c", "UNKNOWN")), "warn"
        )
    )
    suite = tree.find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "2", "1")
    assert [case.get("classname") for case in suite] == ["cfg", "align", "align"]


def test_a_flags_fix_is_shown_as_flags() -> None:
    fix = {"kind": "flags", "set": {"speculative-num-steps": 3}, "unset": ["x"], "env": {"A": "1"}}
    assert report.fix_lines(fix) == ["--speculative-num-steps 3", "without --x", "A=1 in the environment"]


def test_what_is_assumed_of_a_release_that_was_named_is_said_beside_it() -> None:
    engine = {"name": "sglang", "version": "99.9", "source": "given", "note": "99.9 is newer than the table"}
    said = report.to_text({**made(finding("cfg.parse", "PASS")), "engines": [engine]})
    assert "sglang 99.9 (given; 99.9 is newer than the table)" in said
