"""Which way is taken for which version of SGLang, and what it asks of the server's flags."""

from __future__ import annotations

import json

import pytest

from checks.capture_ways import AUX, HOOK, STATES, hook_flags, missing, way_for
from checks.errors import CaptureFailed

EAGLE = {"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "/d", "speculative-num-steps": "3"}
FLAG = {"enable-return-hidden-states": True}


@pytest.mark.parametrize(
    ("version", "flags", "name", "changes"),
    [
        ("0.4.6.post1", EAGLE, STATES, {}),
        ("0.4.9.post6", EAGLE, STATES, FLAG),
        ("0.5.12", EAGLE, STATES, FLAG),
        ("0.5.12", {**EAGLE, **FLAG}, STATES, {}),
        ("0.5.23", {**EAGLE, "return-hidden-states-mode": "full"}, STATES, {}),
        ("", EAGLE, STATES, FLAG),
        ("0.5.12", {}, STATES, FLAG),
        ("0.5.23", {}, AUX, {"enable-return-aux-hidden-states": True, "speculative-algorithm": "EAGLE3"}),
        ("0.5.12", {**EAGLE, "tp-size": "8"}, HOOK, {}),
        ("0.5.12", {**EAGLE, **FLAG, "tp-size": "8"}, STATES, {}),
        ("0.5.12", {**EAGLE, "tp-size": "8", "forward-hooks": "[]"}, STATES, FLAG),
        ("0.5.5", {**EAGLE, "tp-size": "8"}, STATES, FLAG),
        ("", {**EAGLE, "tp-size": "8"}, STATES, FLAG),
        ("0.5.12", {**EAGLE, "tp-size": "1"}, STATES, FLAG),
    ],
)
def test_the_way_that_suits_a_server(
    version: str, flags: dict[str, str], name: str, changes: dict[str, object]
) -> None:
    way = way_for("", version, flags)
    assert (way.name, missing(way, flags)) == (name, changes)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"hidden_size": 7168}, HOOK),
        ({"hidden_size": 1024, "target_hidden_size": 7168}, HOOK),
        ({"hidden_size": 7168, "eagle_config": {"use_aux_norm": True}}, STATES),
        ({"hidden_size": 1024}, STATES),
        ({"hidden_size": "7168", "eagle_config": 3}, STATES),
        ({}, STATES),
    ],
)
def test_wide_states_are_written_to_files_where_a_restart_is_due_anyway(config: dict[str, object], name: str) -> None:
    assert way_for("", "0.5.12", EAGLE, config).name == name
    assert way_for("", "0.5.12", {**EAGLE, **FLAG}, config).name == STATES
    assert way_for(STATES, "0.5.12", EAGLE, config).name == STATES


def test_without_a_draft_the_flags_of_one_are_taken_out() -> None:
    changes = missing(way_for(AUX, "0.5.23", EAGLE), EAGLE)
    assert changes["speculative-draft-model-path"] is None
    assert changes["speculative-num-steps"] is None
    assert "speculative-eagle-topk" not in changes
    assert changes["speculative-algorithm"] == "EAGLE3"


@pytest.mark.parametrize(
    ("name", "version", "flags", "says"),
    [
        (HOOK, "0.5.5", EAGLE, "0.5.5 does not offer `hook`: that is for 0.5.6"),
        (AUX, "0.5.22", EAGLE, "for 0.5.23"),
        (HOOK, "0.5.12", {**EAGLE, "forward-hooks": "[]"}, "hooks of its own"),
    ],
)
def test_what_a_server_does_not_offer_is_said(name: str, version: str, flags: dict[str, str], says: str) -> None:
    with pytest.raises(CaptureFailed, match=says):
        way_for(name, version, flags)


def test_the_hook_is_given_as_sglang_reads_it() -> None:
    (hook,) = json.loads(hook_flags("/h/with space", "our_hook"))
    assert hook["hook_factory"] == "our_hook:make"
    assert hook["config"] == {"folder": "/h/with space"}
    assert hook["target_modules"] == ["model.fc", "fc"]
