"""The rule of the installed vLLM, as the probe reads it, against what the same vLLM says and does when it runs."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from checks.engines.vllm.layers import INSIDE, TOP, table_rule
from checks.engines.vllm.probe import ProbedRule, probe
from console.demo.setup import RIGHT, TRAINED_STATES, WIRINGS
from tests.engines.crashes import RECORDINGS
from tests.engines.serving import python_of

VERSION = "0.32.0"
USED = re.compile(r"Using auxiliary layers from speculative config: \(([\d, ]+)\)")


@cache
def installed() -> Path:
    """The folder of the installed package; nothing of it is imported."""
    where = "import importlib.util; print(importlib.util.find_spec('vllm').origin)"
    done = subprocess.run([python_of("vllm"), "-c", where], capture_output=True, check=True, text=True)
    return Path(done.stdout.strip()).parent


@cache
def rule(architecture: str) -> ProbedRule:
    found = probe(installed(), architecture)
    assert found.rule is not None, found.why
    return found.rule


def used(log: str) -> tuple[int, ...]:
    """The layers that a server says it takes states from."""
    found = USED.search(log)
    assert found is not None
    return tuple(int(item) for item in found.group(1).split(","))


@pytest.mark.engines
def test_the_top_level_is_read_before_eagle_config() -> None:
    """The recorded server had the ids of SGLang's convention inside eagle_config, and its own at the top."""
    found = rule("LlamaForCausalLM")
    assert (found.reads, found.runner.version) == ((TOP, INSIDE), "V1")
    log = (RECORDINGS / "vllm-killed-core.log").read_text("utf-8")
    assert used(log) == found.served(list(TRAINED_STATES), 12).states == TRAINED_STATES != WIRINGS[RIGHT]


@pytest.mark.engines
def test_the_last_state_is_one_that_can_be_asked_for() -> None:
    log = (RECORDINGS / "vllm-ids-at-last-layer.log").read_text("utf-8")
    served = rule("LlamaForCausalLM").served([3, 7, 12], 12)
    assert used(log) == served.states == (3, 7, 12) and served.problem is None


@pytest.mark.engines
@pytest.mark.parametrize(
    "architecture",
    [
        "LlamaForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "GptOssForCausalLM",
        "MiniMaxM2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "Llama4ForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
    ],
)
def test_the_table_says_of_the_installed_release_what_its_source_says(architecture: str) -> None:
    table, _ = table_rule(VERSION, architecture)
    assert table is not None
    for ids in (None, [], [2, 30, 58], [0, 3, 31], [2, 30, 61], [-1, 2, 30], [2, 2, 30], [58, 2, 30]):
        assert rule(architecture).served(ids, 61) == table.served(ids, 61), ids


@pytest.mark.engines
@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("Mistral3ForConditionalGeneration", "was not found"),  # its config names the language model
        ("DeepseekV32ForCausalLM", "is in vllm.models.deepseek_v32"),  # the platform chooses among several
        ("Plamo3ForCausalLM", "is not read by the probe"),
        ("Glm4MoeForCausalLM", "cannot feed an EAGLE-3 draft"),
    ],
)
def test_what_is_not_in_plain_sight_is_not_guessed(architecture: str, said: str) -> None:
    assert said in probe(installed(), architecture).why
