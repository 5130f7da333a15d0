"""The story ends well because of what is measured, and not otherwise."""

from __future__ import annotations

import json

import pytest

from console.cli import main
from console.exits import Exit
from console.story import Measured, Told, as_plain, table

FINDING = {"check": "align.engine_pair", "verdict": "FAIL", "summary": "engine feeds states 0,3,7", "fix": None}


def told(wiring: str, before: list[float], after: list[float], first: str = "FAIL", last: str = "PASS") -> Told:
    return Told(
        wiring, Measured(tuple(before), 9, 3), Measured(tuple(after), 9, 3), first, last, FINDING, [-1, 2, 6], [2, 6, 9]
    )


@pytest.mark.parametrize(
    ("item", "holds"),
    [
        (told("embedding", [2.0, 2.2], [4.0, 4.4]), True),
        (told("embedding", [2.0, 2.2], [2.5, 2.7]), False),
        (told("embedding", [2.0, 2.2], [4.0, 4.4], last="UNKNOWN"), False),
        (told("embedding", [2.0, 2.2], [4.0, 4.4], first="WARN"), False),
        (told("late", [2.0, 3.0, 4.0], [2.1, 3.1, 4.1]), True),
        (told("late", [2.0, 3.0, 4.0], [2.5, 2.6, 4.4]), False),
        (told("late", [2.1, 3.1, 4.1], [2.0, 3.0, 4.0]), False),
    ],
)
def test_the_claim_is_about_the_numbers(item: Told, holds: bool) -> None:
    assert item.holds is holds
    assert as_plain(item)["holds"] is holds
    assert ("DOES NOT HOLD" in table([item])) is not holds


def test_both_wrong_wirings_are_found_fixed_and_measured_better(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--story", "--prompts", "12", "--json"]) == Exit.OK
    stories = json.loads(capsys.readouterr().out)
    assert [item["wiring"] for item in stories] == ["embedding", "late"]
    for item in stories:
        assert (item["before"]["verdict"], item["after"]["verdict"]) == ("FAIL", "PASS")
        assert item["after"]["ids"] == [2, 6, 9]
        assert len(item["after"]["per_prompt"]) == 12
        assert item["paired_difference"]["interval_95"][0] > 0
    assert stories[0]["ratio"] >= 1.3
    # The right wiring is the same one both times, and the engine is deterministic.
    assert stories[0]["after"]["per_prompt"] == stories[1]["after"]["per_prompt"]


def test_a_right_wiring_has_no_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--story", "--wiring", "right"]) == Exit.FINDINGS
    assert "not wrong" in capsys.readouterr().err
