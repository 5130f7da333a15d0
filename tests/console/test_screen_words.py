"""The longer texts of the screens: help, the command log, two runs side by side, what was measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from textual.app import App
from textual.content import Content

from console import keys
from console.comparing import Change, Comparison
from console.runs import Run
from console.screens.checks import ChecksScreen, facts_content, summary_content
from console.screens.launch import LaunchScreen
from console.screens.live import LiveScreen
from console.screens.runs import comparison
from console.screens.words import about_action, command_log, help_text, versions_content
from console.session import Session


def rows(content: Content) -> list[str]:
    return [row.rstrip() for row in content.plain.split("\n")]


class Nothing(App[None]):
    """An app whose screens are those of the console."""

    MODES = {"live": LiveScreen}

    def action_restart(self) -> None:
        """Ask, and restart."""


@pytest.mark.parametrize("screen", [LiveScreen, ChecksScreen, LaunchScreen])
async def test_help_says_of_each_key_what_it_does_in_one_row(screen: type[Any]) -> None:
    app = Nothing()
    async with app.run_test():
        shown = rows(help_text(screen(), keys.APP, 60))
    table = shown[shown.index("on this screen") + 1 : shown.index("everywhere") - 1]
    assert len(table) == len(screen.BINDINGS)
    assert all(len(row) <= 60 for row in table)
    assert all(len(row.split()) > 3 for row in table)


def test_what_an_action_does_is_said_by_whoever_does_it() -> None:
    assert about_action(Nothing, "restart") == "Ask, and restart."
    assert about_action(Nothing, "go('live')").startswith("The screen to leave open")
    assert about_action(Nothing, "nowhere") == ""


def test_what_was_run_again_and_again_takes_one_row_of_the_command_log() -> None:
    def ran(at: float, *argv: str, code: int | None = 0) -> SimpleNamespace:
        return SimpleNamespace(time=at, argv=argv, returncode=code, took=0.25 if code is not None else None)

    commands = [ran(0, "a", "--api-key", "x y"), ran(1, "b"), ran(2, "b"), ran(3, "b", code=3), ran(4, "c", code=None)]
    session = cast(Session, SimpleNamespace(host=SimpleNamespace(commands=commands)))
    shown = rows(command_log(session))
    assert len(shown) == 3
    assert shown[0].endswith("rc …   c")
    assert "0.25s rc 3   b  3 times since " in shown[1]
    assert "x y" not in shown[2]


def a_run(number: int, **values: Any) -> Run:
    kept: dict[str, Any] = {"why": "by hand", "state": "ready", "verdict": "PASS", "config_sha": "d2f950cb" * 8}
    return Run(number, "demo", "gpu", started=float(number), argv=(), **{**kept, **values})


def test_two_runs_side_by_side_say_what_became_of_what() -> None:
    before = a_run(1, accept_len=2.0, tokens_per_s=50.0, verdict="FAIL")
    after = a_run(12, accept_len=3.0, why="fix of align.states")
    changes = (
        Change("flag", "speculative-num-steps", "5", "3"),
        Change("flag", "enable-metrics", "", None),
        Change("config", "/ids", [-1, 2], [2, 6]),
    )
    shown = rows(comparison(Comparison(before, after, changes, None, None, None)))
    assert shown == [
        "               run 1     run 12",
        "why            by hand   fix of align.states",
        "verdict        FAIL      PASS",
        "accept length  2.00      3.00  +50.0%",
        "tok/s          50.0      –",
        "state          ready     ready",
        "config         d2f950cb  d2f950cb",
        "flag speculative-num-steps  5 → 3",
        "flag enable-metrics  set → absent",
        "config /ids  [-1, 2] → [2, 6]",
    ]
    same = rows(comparison(Comparison(before, before, (), None, None, None)))
    assert same[-1] == "same command, environment and config"


def test_what_was_measured_comes_before_what_the_check_is_about() -> None:
    item = {
        "check": "a.b",
        "verdict": "FAIL",
        "summary": "wrong",
        "help": "Why it matters.",
        "evidence": {"rows": 256, "none": None, "a_name_that_is_far_longer_than_others": [1, 2]},
        "took_s": 0.5,
    }
    assert rows(summary_content(item)) == ["✗ FAIL a.b", "wrong", ""]
    assert rows(facts_content(item)) == [
        "rows                    256",
        "none                    –",
        "a_name_that_is_far_longer_than_others [1, 2]",
        "took                    0.50s",
        "",
        "Why it matters.",
    ]


def test_the_versions_of_a_config_stand_in_columns() -> None:
    def version(number: int, seen: float, by: str) -> Any:
        return SimpleNamespace(id=number, sha=str(number) * 64, seen=seen, by=by, why="fix")

    shown = rows(versions_content([version(10, 99.0, "console"), version(9, 0.0, "other")], "9" * 64, 100.0))
    assert shown == [
        "  10   1s ago  console  fix  10101010",
        "●  9 1m40 ago  outside  fix  99999999",
    ]
