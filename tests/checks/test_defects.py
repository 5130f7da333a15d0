"""flags.known_defect: what is known to go wrong in a release, where the deployment has what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checks.engines.sglang.defects import DEFECTS, defects_of
from checks.engines.sglang.layers import FAMILIES
from tests.checks.asking import ask, draft_of
from tests.checks.files import write_target
from tests.checks.test_flags import GOOD

LLAMA, DEEPSEEK = "LlamaForCausalLM", "DeepseekV3ForCausalLM"
KEY = "eagle_aux_hidden_state_layer_ids"


def finding(tmp_path: Path, architecture: str, version: str, args: str = "", ids: object = (1, 5, 8)) -> dict[str, Any]:
    held = {"eagle_config": {KEY: list(ids)}} if isinstance(ids, tuple) else {"eagle_config": "absent"}
    draft, target = draft_of(tmp_path / "d", held), write_target(tmp_path / "t", architectures=[architecture])
    return ask("flags.known_defect", draft, target, f"sglang=={version}", f"{GOOD} {args}")


def ids_of(found: dict[str, Any]) -> list[str]:
    return [item["id"] for item in found["evidence"]["defects"]]


def test_the_table_is_told_by_version_and_target() -> None:
    assert [item.id for item in defects_of("0.5.8", LLAMA)] == ["graph-default-layers"]
    assert [item.id for item in defects_of("0.5.12", DEEPSEEK)] == ["deepseek-partial-sums", "deepseek-a2a-gather"]
    assert defects_of("0.5.16", "Gemma3ForCausalLM") == ()
    assert [item.id for item in defects_of("0.5.20", "Gemma3ForCausalLM")] == ["gemma3-mlp-share"]
    assert [item.id for item in defects_of("0.5.20", "GptOssForCausalLM")] == ["gpt-oss-partial-sums"]
    assert {item.id for item in defects_of("", DEEPSEEK)} > {"graph-default-layers", "deepseek-partial-sums"}


def test_every_row_of_the_table_can_be_met() -> None:
    for item in DEFECTS:
        assert set(item.families) <= set(FAMILIES)
        assert item.effect and item.way_out and item.source
        assert item.versions.until is not None


@pytest.mark.parametrize("version", ["0.4.9.post6", "0.5.10"])
def test_graphs_of_the_default_layers_fail(tmp_path: Path, version: str) -> None:
    found = finding(tmp_path, LLAMA, version, ids=(2, 5, 8))
    assert found["verdict"] == "FAIL"
    assert ids_of(found) == ["graph-default-layers"]
    assert "SGLang 0.4.9–0.5.10" in found["summary"]


def test_they_do_not_concern_ids_that_feed_the_defaults(tmp_path: Path) -> None:
    """[1, n//2-1, n-4] under id + 1 are the default states: both graphs and eager feed the same."""
    assert finding(tmp_path / "a", LLAMA, "0.5.8", ids=(1, 5, 8))["verdict"] == "PASS"
    assert finding(tmp_path / "b", LLAMA, "0.5.8", ids=None)["verdict"] == "PASS"
    assert finding(tmp_path / "c", LLAMA, "0.5.8", "--disable-cuda-graph", (2, 5, 8))["verdict"] == "PASS"
    assert finding(tmp_path / "d", LLAMA, "0.5.11", ids=(2, 5, 8))["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("architecture", "version", "args", "verdict", "ids"),
    [
        ("Gemma3ForCausalLM", "0.5.17", "", "FAIL", ["gemma3-mlp-share"]),
        ("Gemma3ForCausalLM", "0.5.16", "", "PASS", []),
        (DEEPSEEK, "0.5.13", "", "WARN", ["deepseek-partial-sums"]),
        (DEEPSEEK, "0.5.13", "--tp 1", "PASS", []),
        (DEEPSEEK, "0.5.13", "--enforce-disable-flashinfer-allreduce-fusion", "PASS", []),
        (DEEPSEEK, "0.5.14", "", "PASS", []),
        (DEEPSEEK, "0.5.13", "--moe-a2a-backend deepep", "WARN", ["deepseek-partial-sums", "deepseek-a2a-gather"]),
        ("KimiK25ForConditionalGeneration", "0.5.12", "", "WARN", ["deepseek-partial-sums"]),
        ("GptOssForCausalLM", "0.5.20", "", "INFO", ["gpt-oss-partial-sums"]),
        ("GptOssForCausalLM", "0.5.14", "--tp 1", "INFO", ["gpt-oss-draft-graph"]),
        ("GptOssForCausalLM", "0.5.14", "--tp 1 --disable-cuda-graph", "PASS", []),
        ("GptOssForCausalLM", "0.5.15", "--tp 1", "PASS", []),
        ("GptOssForCausalLM", "0.5.21", "", "PASS", []),
        ("Qwen3VLForConditionalGeneration", "0.5.18", "--tp 1", "INFO", ["qwen3-vl-deepstack"]),
    ],
)
def test_a_deployment_inside_a_range(
    tmp_path: Path, architecture: str, version: str, args: str, verdict: str, ids: list[str]
) -> None:
    found = finding(tmp_path, architecture, version, args)
    assert found["verdict"] == verdict
    assert ids_of(found) == ids if ids else not found["evidence"]["defects"]
    assert verdict != "INFO" or "inferred" in found["summary"]


@pytest.mark.parametrize(
    ("version", "args", "env", "met"),
    [
        ("0.5.6", "--enable-dp-attention --dp-size 2", "1", True),
        ("0.5.7", "--enable-dp-attention --dp-size 2", "true", True),
        ("0.5.7", "--enable-dp-attention --dp-size 2", "0", False),
        ("0.5.7", "--enable-dp-attention --dp-size 2 --disable-overlap-schedule", "1", False),
        ("0.5.7", "", "1", False),
        ("0.5.5", "--enable-dp-attention --dp-size 2", "1", False),
        ("0.5.8", "--enable-dp-attention --dp-size 2", "1", False),
    ],
)
def test_the_overlapping_worker_under_data_parallel_attention(
    tmp_path: Path, version: str, args: str, env: str, met: bool
) -> None:
    """The default ids leave the defects of graphs aside."""
    draft, target = draft_of(tmp_path / "d"), write_target(tmp_path / "t", architectures=[LLAMA])
    given = {"SGLANG_ENABLE_SPEC_V2": env}
    found = ask("flags.known_defect", draft, target, f"sglang=={version}", f"{GOOD} {args}", env=given)
    assert ids_of(found) == (["overlap-dp-attention"] if met else [])
    assert found["verdict"] == ("WARN" if met else "PASS")
    assert not met or "upgrade to 0.5.8" in found["summary"]


def test_the_flag_that_avoids_it_is_the_fix(tmp_path: Path) -> None:
    assert finding(tmp_path, DEEPSEEK, "0.5.12")["fix"]["set"] == {"enforce-disable-flashinfer-allreduce-fusion": True}


def test_without_a_release_the_defects_to_watch_for_are_told(tmp_path: Path) -> None:
    draft, target = draft_of(tmp_path / "d"), write_target(tmp_path / "t", architectures=[DEEPSEEK])
    found = ask("flags.known_defect", draft, target, args=GOOD)
    assert found["verdict"] == "INFO"
    assert "deepseek-partial-sums (SGLang 0.5.5–0.5.13)" in found["summary"]
    assert ask("flags.known_defect", draft, engine="sglang==0.5.8", args=GOOD)["verdict"] == "UNKNOWN"
