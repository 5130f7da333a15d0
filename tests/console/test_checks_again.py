"""A check that is run again: what was found before stays until there is something new, and the cursor on its check."""

from __future__ import annotations

from typing import Any

import pytest

from console.checking import Found, Report
from console.screens.checks import _row_of
from console.state import CheckBoard


def finding(check: str, verdict: str, summary: str = "", **more: Any) -> dict[str, Any]:
    return {"check": check, "verdict": verdict, "summary": summary or f"{check} says", **more}


def report(verdict: str) -> Report:
    return Report({"verdict": verdict, "findings": []})


@pytest.fixture
def board() -> CheckBoard:
    """A board after a run of three checks, one of which failed twice."""
    made = CheckBoard()
    made.begin()
    for item in (finding("a", "PASS"), finding("b", "FAIL", "one"), finding("b", "FAIL", "two"), finding("c", "WARN")):
        made.step(Found(item))
    made.step(report("FAIL"))
    return made


def test_what_was_found_stays_and_is_stale_when_the_check_is_cancelled(board: CheckBoard) -> None:
    before = list(board.findings)
    board.begin(("b",))
    board.end("cancelled")
    assert (board.findings, board.stale, board.verdict) == (before, {"b"}, "FAIL")


def test_what_is_found_anew_stands_where_the_old_stood(board: CheckBoard) -> None:
    board.begin(("b",))
    board.step(Found(finding("b", "PASS", "new")))
    board.step(Found(finding("b", "INFO", "newer")))
    assert [item["summary"] for item in board.findings] == ["a says", "new", "newer", "c says"]
    board.step(report("PASS"))
    assert (board.stale, board.verdict) == (set(), "WARN"), "the verdict is of all findings, not of the last run"


def test_a_check_that_finds_nothing_any_more_leaves_nothing(board: CheckBoard) -> None:
    board.begin(("b",))
    board.step(report("PASS"))
    assert [item["check"] for item in board.findings] == ["a", "c"]


def test_a_run_of_all_checks_that_is_cancelled_forgets_nothing(board: CheckBoard) -> None:
    before = list(board.findings)
    board.begin()
    assert (board.findings, board.stale, board.verdict) == (before, {"a", "b", "c"}, "FAIL")
    board.step(Found(finding("b", "PASS", "mended")))
    board.end("cancelled")
    assert [item["summary"] for item in board.findings] == ["a says", "mended", "c says"]
    assert (board.stale, board.verdict, board.lacking) == ({"a", "c"}, "WARN", "interrupted")


def test_a_run_of_all_checks_leaves_only_what_it_told(board: CheckBoard) -> None:
    board.begin()
    board.step(Found(finding("c", "PASS", "new")))
    board.step(report("PASS"))
    assert [item["summary"] for item in board.findings] == ["new"]
    assert (board.stale, board.verdict, board.lacking) == (set(), "PASS", "")


@pytest.mark.parametrize("before", [(), ("a", "b", "c")])
@pytest.mark.parametrize("told", [(), ("a",), ("a", "b", "c")])
@pytest.mark.parametrize("error", ["cancelled", ""])
def test_a_run_that_ended_early_never_passes(before: tuple[str, ...], told: tuple[str, ...], error: str) -> None:
    board = CheckBoard()
    if before:
        board.begin()
        for check in before:
            board.step(Found(finding(check, "PASS")))
        board.step(report("PASS"))
    board.begin()
    for check in told:
        board.step(Found(finding(check, "PASS")))
    board.end(error)
    assert (board.verdict, board.lacking) == ("UNKNOWN", "interrupted")
    if told:
        board.begin(("a",))
        board.step(Found(finding("a", "PASS")))
        board.step(report("PASS"))
        assert (board.verdict, board.lacking) == ("UNKNOWN", "interrupted"), "one check again is not all of them"
    board.begin()
    board.step(Found(finding("a", "PASS")))
    board.step(report("PASS"))
    assert (board.verdict, board.lacking) == ("PASS", "")


def test_a_check_that_was_cancelled_and_then_run_is_whole_again(board: CheckBoard) -> None:
    board.begin(("b",))
    board.step(Found(finding("b", "PASS", "the first of two")))
    board.end("cancelled")
    assert (board.stale, board.verdict, board.lacking) == ({"b"}, "WARN", "interrupted")
    board.begin(("b",))
    board.step(Found(finding("b", "PASS")))
    board.step(report("PASS"))
    assert (board.stale, board.verdict, board.lacking) == (set(), "WARN", "")


@pytest.mark.parametrize(("before", "after"), [("PASS", "UNKNOWN"), ("FAIL", "FAIL")])
def test_what_was_found_before_a_restart_does_not_speak_for_the_new_server(before: str, after: str) -> None:
    board = CheckBoard()
    board.restarted()
    assert (board.stale, board.lacking) == (set(), "")
    board.begin()
    for check in ("a", "b"):
        board.step(Found(finding(check, before)))
    board.step(report(before))
    board.restarted()
    assert (board.stale, board.verdict, board.lacking) == ({"a", "b"}, after, "not all run since the restart")
    board.begin(("a",))
    board.step(Found(finding("a", "PASS")))
    board.step(report("PASS"))
    assert (board.stale, board.verdict, board.lacking) == ({"b"}, after, "not all run since the restart")
    board.begin()
    board.step(Found(finding("a", "PASS")))
    board.step(report("PASS"))
    assert (board.stale, board.verdict, board.lacking) == (set(), "PASS", "")


def test_the_cursor_stays_on_its_check(board: CheckBoard) -> None:
    a, one, _, c = board.findings
    assert _row_of(c, board.findings) == 3
    assert _row_of(finding("c", "PASS", "new"), board.findings) == 3
    assert _row_of(finding("b", "PASS", engine="x"), [a, c, {**one, "engine": "y"}, {**one, "engine": "x"}]) == 3
    assert _row_of(None, board.findings) == 1
    assert _row_of(finding("gone", "PASS"), [a, c]) == 0
