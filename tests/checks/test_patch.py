"""Fixes as JSON Patch: the form others rely on, and that a fix never lands on a config it was not made for."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.errors import PatchFailed
from checks.patch import apply_patch, join_pointer, remove_key, same, set_key, set_keys, split_pointer

IDS = "/eagle_config/eagle_aux_hidden_state_layer_ids"


def test_a_present_key_is_tested_then_replaced() -> None:
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 2, 30]}}
    assert list(set_key(config, IDS, [2, 30, 58])) == [
        {"op": "test", "path": IDS, "value": [-1, 2, 30]},
        {"op": "replace", "path": IDS, "value": [2, 30, 58]},
    ]


def test_an_absent_key_tests_its_parent_and_is_added() -> None:
    config = {"eagle_config": {"use_aux_hidden_state": True}}
    assert list(set_key(config, IDS, [1])) == [
        {"op": "test", "path": "/eagle_config", "value": {"use_aux_hidden_state": True}},
        {"op": "add", "path": IDS, "value": [1]},
    ]


def test_an_absent_parent_is_created_after_a_test_of_the_document() -> None:
    assert list(set_key({"a": 1}, IDS, [1])) == [
        {"op": "test", "path": "", "value": {"a": 1}},
        {"op": "add", "path": "/eagle_config", "value": {}},
        {"op": "add", "path": IDS, "value": [1]},
    ]


def test_a_parent_that_is_null_is_replaced() -> None:
    config = {"eagle_config": None}
    ops = set_key(config, IDS, [1])
    assert ops[0] == {"op": "test", "path": "/eagle_config", "value": None}
    assert apply_patch(config, ops) == {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1]}}


def test_a_key_that_holds_the_value_needs_nothing() -> None:
    assert set_key({"a": [1, 2]}, "/a", (1, 2)) == ()
    assert set_key({"a": True}, "/a", 1) != ()
    assert remove_key({}, "/a/b") == ()


def test_several_keys_are_set_beside_a_value_that_is_no_number() -> None:
    config = {"a": float("nan"), "b": 1}
    ops = set_keys(config, {"/c": 2, "/b": 3})
    assert {key: value for key, value in apply_patch(config, ops).items() if key != "a"} == {"b": 3, "c": 2}
    assert same([float("nan")], [float("nan")])
    assert not same(float("nan"), 1.0)


def test_a_config_that_changed_since_is_refused() -> None:
    ops = set_key({"head_dim": 64}, "/head_dim", 128)
    with pytest.raises(PatchFailed, match="run the checks again"):
        apply_patch({"head_dim": 96}, ops)
    with pytest.raises(PatchFailed):
        apply_patch({}, ops)
    with pytest.raises(PatchFailed):
        apply_patch({"a": 1, "b": 2}, set_key({"a": 1}, "/c", 3))


@pytest.mark.parametrize(
    "op",
    [
        {"op": "copy", "path": "/a", "from": "/b"},
        {"op": "replace", "path": "/a"},
        {"op": "replace", "path": "/none", "value": 1},
        {"op": "remove", "path": ""},
        {"op": "add", "path": "", "value": 3},
        {"op": "add", "path": "a", "value": 3},
        {"op": "add", "path": "/a/b", "value": 3},
        {"op": "add", "path": "/list/9", "value": 3},
        {"op": "replace", "path": "/list/01", "value": 3},
        {"op": "test", "path": "/list/-", "value": 3},
        {"op": "remove", "path": "/list/" + "9" * 5000},
        {"path": 3},
    ],
    ids=str,
)
def test_an_operation_that_does_not_fit_is_refused(op: dict[str, Any]) -> None:
    with pytest.raises(PatchFailed):
        apply_patch({"a": 1, "list": [1, 2]}, [op])


def test_lists_are_patched_by_index() -> None:
    ops = [
        {"op": "add", "path": "/l/-", "value": 4},
        {"op": "add", "path": "/l/0", "value": 0},
        {"op": "remove", "path": "/l/1"},
        {"op": "replace", "path": "/l/1", "value": 9},
    ]
    assert apply_patch({"l": [1, 2]}, ops) == {"l": [0, 9, 4]}


KEYS = st.sampled_from(["a", "b", "a/b", "m~n", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)
CONFIGS = st.dictionaries(KEYS, VALUES, max_size=4)


@given(CONFIGS, st.lists(st.tuples(st.lists(KEYS, min_size=1, max_size=3), VALUES), min_size=1, max_size=3))
def test_setting_keys_sets_them_and_leaves_the_config_alone(
    config: dict[str, Any], changes: list[tuple[list[str], object]]
) -> None:
    before = deepcopy(config)
    after = config
    for path, value in changes:
        ops = set_key(after, join_pointer(path), value)
        after = apply_patch(after, ops)
        held: Any = after
        for name in path:
            held = held[name]
        assert same(held, value)
        # Every op that changes something stands behind a test.
        assert not ops or ops[0]["op"] == "test"
    wanted = {join_pointer(path): value for path, value in changes}
    if len(wanted) == len(changes):
        assert same(apply_patch(config, set_keys(config, wanted)), after)
    assert same(config, before)


@given(CONFIGS, st.lists(KEYS, min_size=1, max_size=3))
def test_removing_a_key_removes_it(config: dict[str, Any], path: list[str]) -> None:
    after = apply_patch(config, remove_key(config, join_pointer(path)))
    assert remove_key(after, join_pointer(path)) == ()


@given(st.lists(st.text(max_size=3), max_size=4))
def test_pointers_round_trip(names: list[str]) -> None:
    assert split_pointer(join_pointer(names)) == names
