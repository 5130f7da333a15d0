"""Alignment where the server was started with another config than the one on disk: what is served is judged."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from checks.finding import Verdict
from tests.checks import pair
from tests.checks.made import Made, patched

if TYPE_CHECKING:
    from pathlib import Path

PASS, INFO, WARN, FAIL, UNKNOWN = Verdict.PASS, Verdict.INFO, Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


OTHER = "f" * 64
START = 600.0
"""Seconds before now at which the server was started."""


def started(case: pair.Case, with_ids: list[int] | None = None, sha: str | None = OTHER, ready: object = 60.0) -> None:
    """A server that runs since before the case's config was written; the console may know what that held then."""
    known = {"own": True, "config_sha256": sha, "ready_after": ready}
    if with_ids is not None:
        known["config"] = json.dumps({"eagle_config": {"eagle_aux_hidden_state_layer_ids": with_ids}})
    case.snapshot = {"time": time.time(), "server": {"pid": 7, "started": time.time() - START}, "known": known}


@pytest.mark.parametrize("check", ["align.engine_pair", "align.states"])
@pytest.mark.parametrize("known", [{}, {"sha": None}, {"sha": None, "ready": None}])
def test_a_right_config_that_is_not_served_yet_is_right_after_a_restart_only(
    made: Made, check: str, known: dict[str, Any]
) -> None:
    case = made.case(everything=True)
    started(case, **known)
    finding = case.only(check)
    assert finding.verdict is UNKNOWN
    assert finding.evidence["needs"] == ["a restart, or a capture from the running server"]
    assert finding.summary.startswith("after a restart: ")
    assert ("may still have" if "ready" in known else "still has") in finding.summary
    assert finding.evidence["running"]["states"] is None


@pytest.mark.parametrize("check", ["align.engine_pair", "align.states"])
def test_the_config_of_the_start_says_what_is_served(made: Made, check: str) -> None:
    case = made.case(everything=True)
    started(case, with_ids=[-1, 2, 6])
    finding = case.only(check)
    assert finding.verdict is FAIL
    assert finding.fix is None, "the config on disk is right: a restart is what it takes"
    assert finding.evidence["running"]["states"] == [0, 3, 7]
    assert "after a restart" in finding.summary
    started(case, with_ids=[2, 6, 9])
    assert case.only(check).verdict is PASS, "another key changed, and not what is fed"


def test_a_wrong_config_that_is_not_served_yet_fails_with_its_fix(made: Made) -> None:
    case = made.case(ids=(-1, 2, 6), everything=True)
    for ids in (None, [2, 6, 9]):
        started(case, with_ids=ids)
        finding = case.only("align.engine_pair")
        assert (finding.verdict, patched(case, finding)) == (FAIL, [2, 6, 9])
        assert finding.summary.startswith("after a restart: ")


@pytest.mark.parametrize("check", ["align.engine_pair", "align.states"])
@pytest.mark.parametrize(("fed", "verdict"), [((0, 3, 7), FAIL), ((3, 7, 10), PASS)])
def test_numbers_of_the_running_server_decide(made: Made, check: str, fed: tuple[int, ...], verdict: Verdict) -> None:
    case = made.case(fed=fed, everything=True)
    started(case)
    finding = case.only(check)
    assert finding.verdict is verdict
    assert finding.evidence["running"]["states"] == list(fed)


def test_what_is_served_alone_names_no_states_by_a_config_that_is_not_served(made: Made) -> None:
    case = made.case(ids=None, cache=(2, 6, 9), fed=(2, 6, 9))
    assert case.only("align.engine_pair").verdict is PASS
    started(case)
    assert case.only("align.engine_pair").verdict is UNKNOWN
    assert case.only("align.states").verdict is PASS, "cached and served numbers are the same, whatever they are"


def test_a_config_that_the_server_has_read_is_judged_as_ever(made: Made) -> None:
    case = made.case(everything=True)
    evidence = case.evidence()
    assert evidence.draft is not None and evidence.draft.config_path is not None
    started(case, sha=evidence.draft.config_sha256)
    assert case.only("align.engine_pair").verdict is PASS, "written again with the same content"
    started(case)
    os.utime(evidence.draft.config_path, (1, 1))
    assert case.only("align.engine_pair").verdict is UNKNOWN, "an old time on new content hides nothing"
    started(case, sha=None)
    assert case.only("align.engine_pair").verdict is PASS, "written before the start"


def test_the_process_alone_tells_when_the_server_was_started(made: Made) -> None:
    case = made.case(everything=True)
    case.pid = os.getpid()
    assert case.evidence().draft is not None
    later = time.time() + 3600
    os.utime(made.folder / "draft" / "config.json", (later, later))
    finding = case.only("align.engine_pair")
    assert (finding.verdict, "may still have" in finding.summary) == (UNKNOWN, True)
    os.utime(made.folder / "draft" / "config.json", (1, 1))
    assert case.only("align.engine_pair").verdict is PASS


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"eagle_config": 3}', "[" * 100_000, '{"eagle_config": null}'])
def test_a_kept_config_that_is_none_condemns_nothing_it_does_not_say(made: Made, text: str) -> None:
    case = made.case(everything=True)
    started(case)
    assert isinstance(case.snapshot, dict)
    case.snapshot["known"]["config"] = text
    assert case.only("align.engine_pair").verdict in (UNKNOWN, FAIL)
