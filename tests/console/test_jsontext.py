"""Edits of a JSON text change what they name and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.errors import PatchError
from console.jsontext import apply_patch, changes, locate, same

CONFIG = """{
  "architectures": ["LlamaForCausalLMEagle3"],
  "eagle_config": {
    "eagle_aux_hidden_state_layer_ids": [
      -1,
      2,
      30
    ],
    "use_aux_hidden_state": true
  },
  "hidden_size":128
}
"""
IDS = "/eagle_config/eagle_aux_hidden_state_layer_ids"


def test_a_replaced_list_keeps_the_manner_of_the_old_one() -> None:
    fixed = apply_patch(
        CONFIG,
        [{"op": "test", "path": IDS, "value": [-1, 2, 30]}, {"op": "replace", "path": IDS, "value": [2, 30, 58]}],
    )
    assert fixed == CONFIG.replace("-1,\n      2,\n      30", "2,\n      30,\n      58")


def test_a_list_on_one_line_stays_on_one_line() -> None:
    text = '{"a": [1, 2], "b": 3}'
    assert apply_patch(text, [{"op": "replace", "path": "/a", "value": [4, 5, 6]}]) == '{"a": [4, 5, 6], "b": 3}'


def test_an_added_key_goes_on_a_line_of_its_own() -> None:
    text = apply_patch(CONFIG, [{"op": "add", "path": "/draft_vocab_size", "value": 64}])
    assert text == CONFIG.replace('"hidden_size":128', '"hidden_size":128,\n  "draft_vocab_size": 64')


def test_missing_parents_are_added_as_the_fix_says() -> None:
    text = '{\n  "a": 1\n}\n'
    patch = [
        {"op": "test", "path": "", "value": {"a": 1}},
        {"op": "add", "path": "/eagle_config", "value": {}},
        {"op": "add", "path": IDS, "value": [2, 6, 9]},
    ]
    assert json.loads(apply_patch(text, patch)) == {
        "a": 1,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]},
    }


@pytest.mark.parametrize("key", ["architectures", "eagle_config", "hidden_size"])
def test_a_removed_key_leaves_valid_json(key: str) -> None:
    wanted = {name: value for name, value in json.loads(CONFIG).items() if name != key}
    assert json.loads(apply_patch(CONFIG, [{"op": "remove", "path": f"/{key}"}])) == wanted


@pytest.mark.parametrize(
    "step",
    [
        {"op": "test", "path": IDS, "value": [2, 6, 9]},
        {"op": "test", "path": "/absent", "value": 1},
        {"op": "replace", "path": "/eagle_config/absent", "value": 1},
        {"op": "test", "path": "/eagle_config/use_aux_hidden_state", "value": 1},
        {"op": "move", "from": "/a", "path": "/b"},
        {"op": "replace", "path": "no-slash", "value": 1},
    ],
)
def test_a_fix_for_another_config_is_refused(step: dict[str, Any]) -> None:
    with pytest.raises(PatchError):
        apply_patch(CONFIG, [step])


def test_of_a_key_written_twice_the_one_that_counts_is_edited() -> None:
    text = '{"a": 1, "a": 2}'
    assert json.loads(apply_patch(text, [{"op": "replace", "path": "/a", "value": 3}])) == {"a": 3}


def test_changes_name_each_key_once() -> None:
    before, after = {"a": 1, "b": {"c": [1, 2], "d": 4}}, {"b": {"c": [1, 3], "d": 4}, "e": None}
    assert [item.words for item in changes(before, after)] == [
        "/a: 1 → absent",
        "/b/c: [1, 2] → [1, 3]",
        "/e: absent → null",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text(max_size=4), JSON, min_size=1, max_size=5),
    JSON,
    st.sampled_from([None, 1, 2, 4]),
    st.data(),
)
def test_any_value_of_any_text_can_be_replaced(
    document: dict[str, Any], value: Any, indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    key = data.draw(st.sampled_from(sorted(document)))
    pointer = "/" + key.replace("~", "~0").replace("/", "~1")
    assert same(
        json.loads(apply_patch(text, [{"op": "replace", "path": pointer, "value": value}])), {**document, key: value}
    )
    gone = {name: item for name, item in document.items() if name != key}
    assert same(json.loads(apply_patch(text, [{"op": "remove", "path": pointer}])), gone)


@given(JSON)
def test_places_span_exactly_the_values(document: Any) -> None:
    text = "\n " + json.dumps(document, indent=2) + "\n"
    node = locate(text)
    assert same(json.loads(text[node.start : node.end]), document)
