"""What the console takes from the checks on the host: their lines, and nothing that only looks like them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.checking import Found, Progress, Report, read_step
from console.errors import NotRun

FINDING = {"check": "cfg.aux_ids", "verdict": "PASS", "summary": "ids of R_3", "fix": None}
REPORT = {"verdict": "PASS", "summary": {"PASS": 1}, "findings": [FINDING]}


def test_the_lines_of_the_checks_are_steps() -> None:
    progress = {"event": "progress", "check": "align.states", "done": 1, "total": 2, "note": ""}
    assert read_step(progress) == Progress("align.states", 1, 2, "")
    assert read_step({"event": "finding", "finding": FINDING}) == Found(FINDING)
    assert read_step({"event": "report", "report": REPORT}) == Report(REPORT)
    assert read_step({"event": "report", "report": {"flags": []}}) == Report({"flags": []})
    assert read_step({"event": "of a later release"}) is None


@pytest.mark.parametrize(
    "line",
    [
        {"event": "progress", "check": "a", "done": "many", "total": 2, "note": ""},
        {"event": "finding"},
        {"event": "finding", "finding": {**FINDING, "verdict": "GREEN"}},
        {"event": "finding", "finding": {**FINDING, "verdict": ["PASS"]}},
        {"event": "finding", "finding": {**FINDING, "summary": 7}},
        {"event": "finding", "finding": {**FINDING, "fix": {"patch": []}}},
        {"event": "finding", "finding": {"check": "cfg.aux_ids"}},
        {"event": "report", "report": {**REPORT, "verdict": None}},
        {"event": "report", "report": {**REPORT, "findings": 3}},
        {"event": "report", "report": {**REPORT, "findings": [FINDING, 3]}},
        {"event": "report", "report": [1]},
    ],
    ids=str,
)
def test_what_only_looks_like_a_line_of_theirs_is_refused(line: dict[str, object]) -> None:
    with pytest.raises(NotRun, match="no result of the checks"):
        read_step(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*FINDING, *REPORT, "kind"]), inner),
    max_leaves=8,
)


@given(st.sampled_from(["progress", "finding", "report"]), JSON)
def test_no_line_ends_the_console(event: str, value: object) -> None:
    with contextlib.suppress(NotRun):
        read_step({"event": event, event: value})
