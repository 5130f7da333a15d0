"""The wiring strip says what the findings prove, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from console.wiring import BAD, OK, UNKNOWN, Wiring, ids_in, ids_key, read_wiring, served_by_ids

IDS = "/eagle_config/eagle_aux_hidden_state_layer_ids"


def pair(verdict: str, trained: list[int] | None, served: list[int] | None, **more: Any) -> dict[str, Any]:
    facts = {"configured_ids": [-1, 2, 6], "trained_states": trained, "engine_states": served, "source": "probed"}
    return {
        "check": "align.engine_pair",
        "verdict": verdict,
        "engine": "sglang",
        "evidence": facts,
        "fix": None,
        **more,
    }


def test_a_wrong_wiring_names_each_slot() -> None:
    wiring = read_wiring([{"check": "cfg.aux_ids", "evidence": {"layers": 12}}, pair("FAIL", [3, 7, 10], [0, 3, 11])])
    assert (wiring.n, wiring.state, wiring.source) == (12, BAD, "probed")
    assert [(slot.state, slot.words) for slot in wiring.slots] == [(BAD, "3 early"), (BAD, "4 early"), (BAD, "1 late")]


@pytest.mark.parametrize(
    ("verdict", "trained", "served", "state"),
    [
        ("PASS", [3, 7], [3, 7], OK),
        ("UNKNOWN", [3, 7], [3, 7], UNKNOWN),
        ("WARN", [3, 7], [4, 8], BAD),
        ("WARN", [3, 7], [3, 7], UNKNOWN),
        ("UNKNOWN", None, [3, 7], UNKNOWN),
        ("FAIL", [3, 7], [3, 7], BAD),
        ("PASS", "junk", [True, 7], UNKNOWN),
    ],
)
def test_the_verdict_decides_what_the_strip_dares_to_say(verdict: str, trained: Any, served: Any, state: str) -> None:
    assert read_wiring([pair(verdict, trained, served)]).state == state


def test_of_several_the_worst_is_shown() -> None:
    assert read_wiring([pair("PASS", [3], [3]), pair("FAIL", [3], [4])]).state == BAD
    assert read_wiring([]) == Wiring()


def served_by_another(verdict: str, served: list[int], states: Any) -> Wiring:
    """The wiring where the running server was started with another config, and feeds `states`."""
    item = pair(verdict, [3, 7, 10], served)
    item["evidence"]["running"] = {"server_started": "2026-11-01 10:00:00+00:00", "states": states}
    return read_wiring([item])


def test_a_right_config_that_the_running_server_has_not_read_is_not_called_served() -> None:
    wiring = served_by_another("UNKNOWN", [3, 7, 10], None)
    assert (wiring.state, wiring.served, wiring.after) == (UNKNOWN, None, (3, 7, 10))
    wiring = served_by_another("FAIL", [3, 7, 10], [0, 3, 7])
    assert (wiring.state, wiring.served, wiring.after) == (BAD, (0, 3, 7), (3, 7, 10))
    assert served_by_another("PASS", [3, 7, 10], "junk").state != OK


def test_a_wrong_config_that_is_not_served_yet_is_neither_called_right_nor_served() -> None:
    wiring = served_by_another("FAIL", [0, 3, 7], [3, 7, 10])
    assert (wiring.state, wiring.served, wiring.after) == (UNKNOWN, (3, 7, 10), (0, 3, 7))
    wiring = served_by_another("FAIL", [0, 3, 7], None)
    assert (wiring.state, wiring.served, wiring.since) == (BAD, (0, 3, 7), "")


def test_a_fix_tells_what_its_ids_would_feed() -> None:
    fix = {
        "kind": "config",
        "patch": [{"op": "test", "path": IDS, "value": [-1, 2, 6]}, {"op": "replace", "path": IDS, "value": [2, 6, 9]}],
    }
    known = served_by_ids([pair("FAIL", [3, 7, 10], [0, 3, 7], fix=fix)])
    assert known == {ids_key([-1, 2, 6]): (0, 3, 7), ids_key([2, 6, 9]): (3, 7, 10)}


def test_ids_are_found_where_engines_look_first() -> None:
    key = "eagle_aux_hidden_state_layer_ids"
    assert ids_in({"eagle_config": {key: [1]}, key: [2]}) == [1]
    assert ids_in({key: [2]}) == [2]
    assert ids_in({"eagle_config": 3}) is None
    assert ids_in([]) is None
