"""The tables of conventions: what each engine makes of ids, by version and target, against worked examples."""

from __future__ import annotations

from typing import Any

import pytest

from checks.engines import sglang, vllm
from checks.engines.reach import RuleUnknown
from checks.engines.sglang.layers import FAMILIES, ROWS
from checks.engines.versions import release, span
from checks.layers import ids_for
from checks.trainers import TRAINERS, trainers_with_default

DEEPSEEK, LLAMA, GPT_OSS = "DeepseekV3ForCausalLM", "LlamaForCausalLM", "GptOssForCausalLM"


def served(engine: Any, version: str, architecture: str, ids: object, n: int = 61) -> tuple[tuple[int, ...], bool]:
    rule, note = engine.rule_for(version, architecture)
    assert rule is not None, note
    result = rule.served(ids, n)
    return result.states, result.problem is not None


# 61 layers, the size of the model this began with: which states reach the draft.
@pytest.mark.parametrize(
    ("engine", "version", "architecture", "ids", "states", "breaks"),
    [
        (sglang, "0.5.12", DEEPSEEK, None, (2, 30, 58), False),
        (sglang, "0.5.23", DEEPSEEK, None, (2, 30, 58), False),
        (sglang, "0.5.12", DEEPSEEK, [1, 29, 57], (2, 30, 58), False),
        (sglang, "0.5.23", DEEPSEEK, [1, 29, 57], (2, 30, 58), False),
        (sglang, "0.5.12", DEEPSEEK, [2, 30, 58], (3, 31, 59), False),
        (sglang, "0.5.13", DEEPSEEK, [2, 30, 58], (2, 30, 58), False),
        (sglang, "0.5.12", "KimiK25ForConditionalGeneration", [2, 30, 58], (3, 31, 59), False),
        (sglang, "0.5.12", DEEPSEEK, [-1, 2, 30], (0, 3, 31), True),
        (sglang, "0.5.18", DEEPSEEK, [-1, 2, 30], (2, 30), True),
        (sglang, "0.5.23", LLAMA, [-1, 2, 30], (0, 3, 31), False),
        (sglang, "0.5.12", LLAMA, [-1, 2, 30], (0, 3, 31), True),
        (sglang, "0.5.12", DEEPSEEK, [0, 3, 31], (1, 4, 32), False),
        (sglang, "0.5.14", DEEPSEEK, [0, 3, 31], (0, 3, 31), False),
        (sglang, "0.5.23", LLAMA, [58, 2, 30], (3, 31, 59), False),
        (sglang, "0.5.23", LLAMA, [2, 30, 60], (3, 31), True),
        (sglang, "0.5.23", LLAMA, [2, 2, 30], (3, 31), True),
        (sglang, "0.5.23", LLAMA, [], (), True),
        (sglang, "0.5.23", LLAMA, ["1", "2", "4"], (), True),
        (sglang, "0.5.23", LLAMA, [True, 2, 4], (), True),
        (sglang, "0.5.23", LLAMA, 5, (), True),
        (sglang, "0.4.6.post1", LLAMA, [10, 20, 30], (2, 30, 58), False),
        (sglang, "0.5.23", "MiniMaxM3SparseForConditionalGeneration", None, (3, 31, 59), False),
        (sglang, "0.5.17", "MiniMaxM3SparseForCausalLM", [2, 30, 57], (), True),
        (sglang, "0.5.23", "Qwen3MoeForCausalLM", [2, 30, 60], (), True),
        (vllm, "0.11.0", DEEPSEEK, [1, 29, 57], (2, 30, 58), False),
        (vllm, "0.24.0", DEEPSEEK, None, (2, 30, 58), False),
        (vllm, "0.24.0", DEEPSEEK, [1, 29, 57], (1, 29, 57), False),
        (vllm, "0.24.0", DEEPSEEK, [-1, 2, 30], (2, 30), True),
        (vllm, "0.24.0", DEEPSEEK, [0, 3, 61], (0, 3), True),
        (vllm, "0.24.0", DEEPSEEK, [0, 3, 31], (0, 3, 31), True),
        (vllm, "0.33.0", DEEPSEEK, [2, 3, 61], (2, 3, 61), False),
        (vllm, "0.24.0", LLAMA, [0, 3, 61], (0, 3, 61), False),
        (vllm, "0.24.0", LLAMA, [], (2, 30, 58), False),
        (vllm, "0.11.2", GPT_OSS, [0, 3, 31], (0, 3, 31), False),
        (vllm, "0.16.0", DEEPSEEK, [0, 3, 31], (0, 3, 31), True),
        (vllm, "0.16.0", DEEPSEEK, [2, 3, 61], (2, 3), True),
    ],
)
def test_ids_become_states(
    engine: Any, version: str, architecture: str, ids: object, states: tuple[int, ...], breaks: bool
) -> None:
    assert served(engine, version, architecture, ids) == (states, breaks)


def test_gpt_oss_keeps_ids_that_end_at_the_last_state() -> None:
    assert served(sglang, "0.5.16", GPT_OSS, [25, 31, 36], 36) == ((26, 32), True)
    assert served(sglang, "0.5.17", GPT_OSS, [24, 30, 36], 36) == ((24, 30, 36), False)
    assert served(sglang, "0.5.17", GPT_OSS, [23, 29, 34], 36) == ((24, 30, 35), False)


def test_ids_are_found_for_states_even_where_the_rule_branches() -> None:
    rule, _ = sglang.rule_for("0.5.23", DEEPSEEK)
    assert rule is not None
    for states in ((2, 30, 58), (3, 31, 59), (0, 3, 31), (1, 29, 57)):
        ids = ids_for(states, rule, 61)
        assert ids is not None
        assert rule.served(list(ids), 61).states == states


def test_states_that_begin_with_1_need_another_id_in_front_where_a_first_1_means_2() -> None:
    before, _ = sglang.rule_for("0.5.12", DEEPSEEK)
    after, _ = sglang.rule_for("0.5.13", DEEPSEEK)
    assert before is not None and after is not None
    assert ids_for((1, 29, 57), before, 61) == (0, 28, 56)
    assert ids_for((1, 29, 57), after, 61) == (29, 1, 57)
    assert ids_for((2, 30, 58), after, 61) == (2, 30, 58)


@pytest.mark.parametrize(
    ("version", "architecture", "states"),
    [
        ("0.5.13", DEEPSEEK, (1,)),
        ("0.5.23", DEEPSEEK, (2, 30, 61)),
        ("0.5.12", DEEPSEEK, (0, 3, 31)),
        ("0.5.23", LLAMA, (3, 2, 30)),
        ("0.5.23", LLAMA, (2, 2, 30)),
        ("0.5.17", "MiniMaxM3SparseForCausalLM", (2, 30, 58)),
        ("0.4.6.post1", LLAMA, (3, 31, 59)),
    ],
)
def test_where_no_ids_feed_the_states_none_are_offered(
    version: str, architecture: str, states: tuple[int, ...]
) -> None:
    rule, note = sglang.rule_for(version, architecture)
    assert rule is not None, note
    assert ids_for(states, rule, 61) is None


@pytest.mark.parametrize(
    ("version", "architecture", "ids", "states", "breaks"),
    [
        ("0.5.21", LLAMA, [-1, 2, 30], (0, 3, 31), True),
        ("0.5.10", "MiniMaxM2ForCausalLM", [-1, 2, 30], (0, 3, 31), True),
        ("0.5.12", "Glm4MoeLiteForCausalLM", [2, 30, 58], (3, 31, 59), False),
        ("0.5.13", "Glm4MoeLiteForCausalLM", [2, 30, 58], (2, 30, 58), False),
        ("0.5.22", "MiniMaxM3SparseForCausalLM", [2, 30, 60], (3, 31), True),
        ("0.5.23", "MiniMaxM3SparseForCausalLM", [2, 30, 60], (3, 31, 61), False),
        ("0.5.20", "Qwen3_5ForConditionalGeneration", [2, 30, 58], (), True),
        ("0.5.22", "Qwen3_5ForConditionalGeneration", [2, 30, 58], (3, 31, 59), False),
        ("0.5.23", "Qwen3VLMoeForConditionalGeneration", [2, 30, 60], (), True),
        ("0.5.23", "Qwen3VLForConditionalGeneration", [2, 30, 60], (3, 31), True),
    ],
)
def test_rows_that_the_sources_corrected(
    version: str, architecture: str, ids: list[int], states: tuple[int, ...], breaks: bool
) -> None:
    assert served(sglang, version, architecture, ids) == (states, breaks)


def test_an_architecture_younger_than_its_family_says_since_when() -> None:
    rule, note = sglang.rule_for("0.5.9", "KimiK25ForConditionalGeneration")
    assert rule is None
    assert "0.5.10" in note


def test_the_branch_on_the_first_id_looks_at_the_order_in_the_config() -> None:
    assert served(sglang, "0.5.23", DEEPSEEK, [29, 1, 57]) == ((1, 29, 57), False)


def test_an_unknown_architecture_has_no_rule_and_says_what_would_help() -> None:
    rule, note = sglang.rule_for("0.5.12", "SomethingForCausalLM")
    assert rule is None
    assert "--engine-source" in note


def test_a_version_that_cannot_serve_the_target_says_since_when() -> None:
    rule, note = sglang.rule_for("0.5.4", DEEPSEEK)
    assert rule is None
    assert "0.5.5" in note


def test_a_version_beyond_the_table_is_assumed_unchanged_and_says_so() -> None:
    rule, note = sglang.rule_for("0.9.0", DEEPSEEK)
    assert rule is not None
    assert "newer than the table" in note


def test_what_is_not_known_about_the_end_raises_instead_of_guessing() -> None:
    for version in ("0.17.1", "0.28.0"):
        rule, _ = vllm.rule_for(version, DEEPSEEK)
        assert rule is not None
        with pytest.raises(RuleUnknown):
            rule.served([2, 30, 61], 61)


def test_each_family_has_rows_without_overlap() -> None:
    assert {row.family for row in ROWS} == set(FAMILIES)
    names = [name for group in FAMILIES.values() for name in group]
    assert len(names) == len(set(names))
    for family in FAMILIES:
        rows = [row for row in ROWS if row.family == family]
        for patch in range(40):
            at = [row for row in rows if (0, 5, patch) in row.versions]
            assert len(at) <= 1, (family, patch)


def test_where_ids_are_read_depends_on_the_engine_and_version() -> None:
    inside, top = "/eagle_config/eagle_aux_hidden_state_layer_ids", "/eagle_aux_hidden_state_layer_ids"
    assert sglang.pointers("0.5.12", LLAMA) == (inside,)
    assert sglang.pointers("0.4.6.post1", LLAMA) == ()
    assert vllm.pointers("0.10.2", LLAMA) == ()
    assert vllm.pointers("0.15.0", LLAMA) == (top,)
    assert vllm.pointers("0.24.0", DEEPSEEK) == (top, inside)
    assert vllm.pointers("0.24.0", LLAMA) == (top,)
    assert vllm.pointers("0.33.0", DEEPSEEK) == (top,)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.5.12", (0, 5, 12)), ("v0.5.12.post1", (0, 5, 12)), ("0.5.13rc1", (0, 5, 13)), ("main", ()), ("", ())],
)
def test_release_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert release(text) == numbers


def test_a_span_includes_both_ends_and_what_lies_below_its_upper_one() -> None:
    inside = span("0.11.1", "0.16")
    assert release("0.16.2") in inside
    assert release("0.11.0") not in inside
    assert release("0.17.0") not in inside


def test_trainers_say_which_states_their_defaults_are() -> None:
    assert {item.name for item in trainers_with_default((3, 31, 59), 61)} == {"speculators"}
    assert any(item.name == "EAGLE" for item in trainers_with_default((2, 30, 58), 61))
    older = next(item for item in TRAINERS if (item.name, item.versions) == ("speculators", "0.3–0.4"))
    assert older.states((2, 30, 58, 60)) == (3, 31, 59, 61)
