"""Batches, memory, ranks, disaggregation, quantisation: flags that fit the models and the release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checks.asking import ask, draft_of
from tests.checks.files import write_target
from tests.checks.test_flags import GOOD, applied

DECODE = (
    "[2026-05-01 10:00:00] Decode batch, #running-req: 24, #token: 900, token usage: 0.02, accept len: 2.17, "
    "accept rate: 0.54, cuda graph: False, gen throughput (token/s): 178.90, #queue-req: 0"
)


@pytest.mark.parametrize(
    ("args", "verdict"),
    [
        ("", "PASS"),
        ("--cuda-graph-max-bs 2 --max-running-requests 16", "WARN"),
        ("--cuda-graph-max-bs 16 --max-running-requests 16", "PASS"),
        ("--cuda-graph-bs 1 2 4 8 --max-running-requests 16", "WARN"),
        ("--cuda-graph-max-bs 8", "INFO"),
        ("--cuda-graph-max-bs 64", "PASS"),
    ],
)
def test_graphs_cover_the_requests(args: str, verdict: str) -> None:
    found = ask("flags.graph_bs_vs_concurrency", args=f"{GOOD} {args}")
    assert found["verdict"] == verdict
    if found["fix"]:
        after = applied(f"{GOOD} {args}", found)
        assert ask("flags.graph_bs_vs_concurrency", args=after)["verdict"] == "PASS"


def test_the_log_says_how_many_really_ran(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(DECODE + "\n")
    found = ask("flags.graph_bs_vs_concurrency", args=f"{GOOD} --cuda-graph-max-bs 8", log=str(log))
    assert found["verdict"] == "WARN"
    assert found["evidence"]["seen"] == 24


@pytest.mark.parametrize(
    ("value", "verdict"), [("0.95", "WARN"), (".91", "WARN"), ("0.9", "PASS"), ("0.8", "PASS"), ("x", "PASS")]
)
@pytest.mark.parametrize("flag", ["--mem-fraction-static", "--mem-fraction"])
def test_memory_for_the_draft(flag: str, value: str, verdict: str) -> None:
    assert ask("flags.mem_fraction", args=f"{GOOD} {flag} {value}")["verdict"] == verdict


def test_memory_without_a_draft_is_not_asked() -> None:
    assert ask("flags.mem_fraction", args="--model-path /m --mem-fraction-static 0.95")["verdict"] == "PASS"


def test_hints_are_advice_only() -> None:
    assert ask("flags.nccl_hints", args="--model-path /m --tp 8")["verdict"] == "INFO"
    assert ask("flags.nccl_hints", args="--model-path /m")["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("target", "engine", "verdict"),
    [
        ({"sliding_window": 512, "model_type": "gemma3_text"}, "sglang==0.5.10", "WARN"),
        ({"sliding_window": 512, "model_type": "gemma3_text"}, "sglang==0.5.12", "INFO"),
        ({"sliding_window": 512, "model_type": "gemma3_text"}, (), "UNKNOWN"),
        ({"sliding_window": 32768, "use_sliding_window": False}, "sglang==0.5.10", "PASS"),
        ({"sliding_window": None}, "sglang==0.5.10", "PASS"),
        ({"sliding_window": 128, "model_type": "gpt_oss"}, "sglang==0.5.10", "PASS"),
        ({"sliding_window": 4096, "layer_types": ["full_attention"]}, "sglang==0.5.10", "PASS"),
        ({"text_config": {"sliding_window": 512, "layer_types": ["sliding_attention"]}}, "sglang==0.5.10", "WARN"),
    ],
    ids=str,
)
def test_a_target_with_a_sliding_window(tmp_path: Path, target: dict[str, Any], engine: Any, verdict: str) -> None:
    found = ask("flags.target_swa", None, write_target(tmp_path / "t", **target), engine, GOOD)
    assert found["verdict"] == verdict


@pytest.mark.parametrize(
    ("mode", "hidden", "engine", "verdict"),
    [
        ("", 16, "sglang==0.5.3", "PASS"),
        ("decode", 16, "sglang==0.5.3", "WARN"),
        ("decode", 16, "sglang==0.5.6", "INFO"),
        ("prefill", 16, (), "INFO"),
        ("decode", 40, "sglang==0.5.20", "WARN"),
        ("null", 40, "sglang==0.5.20", "PASS"),
    ],
)
def test_prefill_and_decode_apart(tmp_path: Path, mode: str, hidden: int, engine: Any, verdict: str) -> None:
    draft, target = draft_of(tmp_path / "d"), write_target(tmp_path / "t", hidden=hidden)
    args = f"{GOOD} --disaggregation-mode {mode}" if mode else GOOD
    found = ask("flags.pd_with_eagle3", draft, target, engine, args)
    assert found["verdict"] == verdict
    assert mode != "decode" or "SGLang" in found["summary"]


@pytest.mark.parametrize(
    ("args", "env", "engine", "verdict"),
    [
        ("--dp 8 --enable-dp-attention", {}, "sglang==0.5.12", "PASS"),
        ("--pp-size 2", {}, (), "FAIL"),
        ("--pipeline-parallel-size=2", {}, "sglang==0.5.23", "FAIL"),
        ("--pp 2", {"SGLANG_ENABLE_PP_SPEC": "1"}, "sglang==0.5.23", "WARN"),
        ("--pp 2", {"SGLANG_ENABLE_PP_SPEC": "1"}, "sglang==0.5.20", "FAIL"),
        ("--speculative-adaptive --enable-dp-attention", {}, "sglang==0.5.12", "WARN"),
        ("--speculative-adaptive", {}, "sglang==0.5.12", "PASS"),
    ],
    ids=str,
)
def test_how_the_target_is_split(args: str, env: dict[str, str], engine: Any, verdict: str) -> None:
    assert ask("flags.parallel", engine=engine, args=f"{GOOD} {args}", env=env)["verdict"] == verdict


FP8 = {"quantization_config": {"quant_method": "fp8"}}


@pytest.mark.parametrize(
    ("args", "own", "target", "engine", "verdict"),
    [
        ("", {}, {}, "sglang==0.5.12", "PASS"),
        ("--quantization fp8", {}, {}, "sglang==0.5.12", "WARN"),
        ("--quantization fp8", FP8, {}, "sglang==0.5.12", "PASS"),
        ("--quantization fp8 --speculative-draft-model-quantization unquant", {}, {}, "sglang==0.5.12", "PASS"),
        ("--quantization unquant", {}, {}, "sglang==0.5.12", "PASS"),
        ("--quantization fp8", {}, {}, "sglang==0.5.6", "WARN"),
        ("", {}, FP8, "sglang==0.5.12", "INFO"),
    ],
    ids=str,
)
def test_a_draft_does_not_take_over_the_targets_quantisation(
    tmp_path: Path, args: str, own: dict[str, Any], target: dict[str, Any], engine: str, verdict: str
) -> None:
    draft, served = draft_of(tmp_path / "d", own), write_target(tmp_path / "t", **target)
    found = ask("flags.draft_quantization", draft, served, engine, f"{GOOD} {args}")
    assert found["verdict"] == verdict
    if found["fix"]:
        after = applied(f"{GOOD} {args}", found)
        assert ask("flags.draft_quantization", draft, served, engine, after)["verdict"] == "PASS"


KIMI = {"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512}
LATENT = {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}


@pytest.mark.parametrize(
    ("change", "more", "args", "verdict"),
    [
        ({}, KIMI, "--attention-backend trtllm_mla", "FAIL"),
        ({}, KIMI, "--decode-attention-backend cutedsl_mla", "FAIL"),
        (LATENT, {}, "--attention-backend trtllm_mha", "FAIL"),
        ({}, KIMI, "--attention-backend trtllm_mla --speculative-draft-attention-backend trtllm_mha", "PASS"),
        ({}, KIMI, "--speculative-draft-attention-backend trtllm_mla", "FAIL"),
        ({}, KIMI, "--attention-backend flashinfer", "PASS"),
        (LATENT, KIMI, "--attention-backend trtllm_mla", "PASS"),
        ({}, KIMI, "", "INFO"),
        ({}, {}, "", "PASS"),
    ],
    ids=str,
)
def test_a_draft_is_served_by_a_backend_of_its_own_kind(
    tmp_path: Path, change: dict[str, Any], more: dict[str, Any], args: str, verdict: str
) -> None:
    draft, target = draft_of(tmp_path / "d", change), write_target(tmp_path / "t", **more)
    given = f"{GOOD} {args}"
    found = ask("flags.draft_backend", draft, target, "sglang==0.5.12", given)
    assert found["verdict"] == verdict
    if verdict == "FAIL":
        mended = " ".join(f"--{key} {value}" for key, value in found["fix"]["set"].items())
        assert ask("flags.draft_backend", draft, target, "sglang==0.5.12", f"{given} {mended}")["verdict"] == "PASS"
        assert ask("flags.draft_backend", draft, target, "sglang==0.5.6", given)["fix"] is None


@pytest.mark.parametrize(
    ("change", "args", "verdict"),
    [
        ({"num_attention_heads": 56, "num_key_value_heads": 8}, "--tp 8", "PASS"),
        ({"num_attention_heads": 56, "num_key_value_heads": 8}, "--tp 16", "FAIL"),
        ({"num_attention_heads": 56, "num_key_value_heads": 8}, "--tp 16 --dp 2 --enable-dp-attention", "PASS"),
        ({"num_attention_heads": 48, "num_key_value_heads": 6, "intermediate_size": 96}, "--tp 4", "FAIL"),
        ({"num_attention_heads": 48, "num_key_value_heads": 2, "intermediate_size": 96}, "--tp 4", "PASS"),
        ({"num_attention_heads": 48, "num_key_value_heads": 4, "intermediate_size": 90}, "--tp 4", "FAIL"),
        ({"num_attention_heads": 7}, "", "PASS"),
    ],
    ids=str,
)
def test_the_draft_divides_by_its_ranks(tmp_path: Path, change: dict[str, Any], args: str, verdict: str) -> None:
    given = f"--speculative-algorithm EAGLE3 {args}"
    draft = draft_of(tmp_path / "d", {"hidden_size": 7168, "intermediate_size": 2048, **change})
    target = write_target(tmp_path / "t", num_attention_heads=128)
    assert ask("flags.parallel", draft, target, "sglang==0.5.12", given)["verdict"] == verdict
    # A target that does not divide either stops the start by itself.
    for other in (None, write_target(tmp_path / "u", num_attention_heads=7)):
        found = ask("flags.parallel", draft, other, "sglang==0.5.12", given)
        assert found["verdict"] == verdict.replace("FAIL", "INFO")
