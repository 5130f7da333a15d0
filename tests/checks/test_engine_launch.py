"""SGLang's command line: from plain values, back to plain values, and what its speculative numbers come to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.engines.sglang.flags import effective
from checks.engines.sglang.launch import LaunchConflict, argv, differences, parse_argv
from checks.engines.vllm import launch as vllm_launch

ARGS: dict[str, Any] = {
    "tp-size": 8,
    "speculative-algorithm": "EAGLE3",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
    "trust-remote-code": True,
    "disable-radix-cache": False,
    "cuda-graph-bs": [1, 2, 4],
}


def test_values_become_flags_in_order() -> None:
    assert argv("/v/python", "", "/m", "/d", 8000, ARGS) == [
        *("/v/python", "-m", "sglang.launch_server", "--model-path", "/m"),
        *("--speculative-draft-model-path", "/d", "--port", "8000"),
        *("--tp-size", "8", "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"),
        *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4", "--trust-remote-code"),
        *("--cuda-graph-bs", "1", "2", "4"),
    ]


def test_another_module_can_be_the_server() -> None:
    assert argv("python", "console.demo.engine", "/m", "", 1, {})[:3] == ["python", "-m", "console.demo.engine"]


@pytest.mark.parametrize(
    "args", [{"model-path": "/other"}, {"model": "/other"}, {"speculative_draft_model_path": "/o"}, {"--port": 1}]
)
def test_a_second_different_value_is_an_error(args: dict[str, Any]) -> None:
    with pytest.raises(LaunchConflict, match="two values for one thing"):
        argv("python", "", "/m", "/d", 8000, args)


def test_the_same_value_again_is_no_error_and_not_repeated() -> None:
    words = argv("python", "", "/m", "/d", 8000, {"model-path": "/m/", "port": 8000})
    assert words.count("--model-path") == 1
    assert words.count("--port") == 1


@pytest.mark.parametrize("args", [{"a b": 1}, {"": 1}, {"x": {"y": 1}}, {"x": "a\0b"}, {"x=y": 1}, {"x": [True]}])
def test_what_cannot_stand_on_a_command_line_is_refused(args: dict[str, Any]) -> None:
    with pytest.raises(LaunchConflict):
        argv("python", "", "/m", "/d", 8000, args)


def test_a_command_line_reads_back() -> None:
    facts = parse_argv(argv("/v/bin/python", "", "/m", "/d", 8000, ARGS))
    assert (facts.python, facts.entrypoint) == ("/v/bin/python", "sglang.launch_server")
    assert (facts.model, facts.draft, facts.port, facts.algorithm) == ("/m", "/d", 8000, "EAGLE3")
    assert (facts.steps, facts.topk, facts.draft_tokens) == (3, 1, 4)
    assert facts.flags["trust-remote-code"] is True
    assert facts.flags["cuda-graph-bs"] == ["1", "2", "4"]


def test_spellings_of_one_flag_compare_as_one() -> None:
    one = parse_argv(["sglang", "serve", "--model=/m/", "--tp", "8", "--speculative-draft-model", "/d"])
    two = parse_argv(
        ["python", "-m", "x", "--model-path", "/m", "--tensor_parallel_size=8", "--speculative-draft-model-path=/d"]
    )
    assert differences(one, two) == ()


def test_differences_name_both_values() -> None:
    one = parse_argv(["python", "-m", "x", "--speculative-num-steps", "3", "--a"])
    two = parse_argv(["python", "-m", "x", "--speculative-num-steps", "5"])
    assert [(item.flag, item.running, item.planned) for item in differences(one, two)] == [
        ("a", True, None),
        ("speculative-num-steps", "3", "5"),
    ]


@given(st.lists(st.text(max_size=12), max_size=12))
def test_any_command_line_can_be_read(words: list[str]) -> None:
    parse_argv(words)


@pytest.mark.parametrize(
    ("words", "version", "architecture", "numbers"),
    [
        ("--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 9", "", "", (3, 1, 4)),
        ("--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16", "", "", (3, 4, 16)),
        ("", "0.5.23", "LlamaForCausalLM", (5, 4, 8)),
        ("", "0.5.23", "Qwen3ForCausalLM", (3, 1, 4)),
        ("", "0.5.7", "Qwen3ForCausalLM", (5, 4, 8)),
        ("", "0.4.6.post1", "DeepseekV3ForCausalLM", (5, 4, 8)),
        ("", "0.4.9.post6", "DeepseekV3ForCausalLM", (3, 1, 4)),
    ],
)
def test_the_numbers_in_effect(words: str, version: str, architecture: str, numbers: tuple[int, int, int]) -> None:
    facts = parse_argv(["python", "-m", "x", "--speculative-algorithm", "EAGLE3", *words.split()])
    found = effective(facts, version, architecture)
    assert found is not None
    assert (found.steps, found.topk, found.draft_tokens) == numbers


def test_the_ceiling_is_the_smaller_of_steps_plus_one_and_draft_tokens() -> None:
    facts = parse_argv(
        ["x", "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "5", "--speculative-eagle-topk", "4"]
    )
    assert effective(facts) is None
    words = "x --speculative-algorithm EAGLE3 --speculative-num-steps 5 --speculative-eagle-topk 4"
    assert effective(parse_argv(words.split())) is None
    found = effective(parse_argv([*words.split(), "--speculative-num-draft-tokens", "4"]))
    assert found is not None
    assert found.ceiling == 4


def test_no_algorithm_is_no_speculation() -> None:
    assert effective(parse_argv(["python", "-m", "x", "--speculative-num-steps", "3"])) is None


def test_vllms_speculation_is_one_object_of_a_flag() -> None:
    words = vllm_launch.argv(
        "python3",
        "",
        "/m",
        "/d",
        8001,
        {"speculative-config": {"num_speculative_tokens": 3}, "tensor_parallel_size": 2, "enforce-eager": True},
    )
    assert words[:7] == ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m", "--port", "8001"]
    facts = vllm_launch.parse_argv(words)
    assert (facts.model, facts.draft, facts.port, facts.algorithm) == ("/m", "/d", 8001, "EAGLE3")
    assert (facts.steps, facts.topk, facts.draft_tokens) == (3, 1, 4)
    assert facts.flags["enforce-eager"] is True
    assert vllm_launch.differences(facts, vllm_launch.parse_argv(words)) == ()


@pytest.mark.parametrize(
    "args",
    [
        {"speculative-config": {"model": "/other"}},
        {"speculative-config": "no json"},
        {"port": 9},
        {"model": "/other"},
        {"x": None, "y": {"a": 1}, "z": [True]},
    ],
)
def test_vllms_contradictions_are_errors(args: dict[str, object]) -> None:
    with pytest.raises(vllm_launch.LaunchConflict):
        vllm_launch.argv("python3", "", "/m", "/d", 8000, args)


def test_vllm_serve_names_its_model_first() -> None:
    facts = vllm_launch.parse_argv(["vllm", "serve", "/m", "--speculative-config", "{broken", "-tp", "2"])
    assert (facts.model, facts.draft, facts.steps, facts.port) == ("/m", "", None, 8000)
