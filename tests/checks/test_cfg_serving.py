"""cfg.rope_vs_target, cfg.draft_window, cfg.dtype_vs_target: the config beside the target's and the launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checks.asking import ask, draft_of
from tests.checks.files import write_target

GUARD = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


def test_another_rotary_base_is_only_told(tmp_path: Path) -> None:
    """A published head that works: base 1000000 and eps 1e-6 for a target with 50000, yarn and 1e-5."""
    draft = draft_of(tmp_path / "d", {"rope_theta": 1000000.0, "rms_norm_eps": 1e-6})
    target = write_target(tmp_path / "t", rope_theta=50000.0, rope_scaling={"type": "yarn", "factor": 64})
    found = ask("cfg.rope_vs_target", draft, target)
    assert found["verdict"] == "INFO"
    assert found["evidence"]["differ"] == ["rms_norm_eps", "rope_scaling", "rope_theta"]


@pytest.mark.parametrize(
    ("engine", "verdict"), [((), "PASS"), ("sglang==0.5.9", "WARN"), ("sglang==0.5.10", "PASS")], ids=str
)
def test_rope_parameters_alone_need_a_release_that_reads_them(tmp_path: Path, engine: Any, verdict: str) -> None:
    draft = draft_of(tmp_path / "d", {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})
    found = ask("cfg.rope_vs_target", draft, write_target(tmp_path / "t", rope_theta=1e6), engine)
    assert found["verdict"] == verdict


WINDOW = {"max_position_embeddings": 2048}


@pytest.mark.parametrize(
    ("args", "engine", "verdict"),
    [
        ("", (), "INFO"),
        ("--context-length 2048", "sglang==0.5.12", "PASS"),
        ("--context-length 8192", (), "WARN"),
        ("--context-length 8192", "sglang==0.5.2", "FAIL"),
        ("--context-length=8192", "sglang==0.5.12", "WARN"),
        ("--tp 2", "sglang==0.5.12", "WARN"),
    ],
)
def test_a_draft_with_a_shorter_window(tmp_path: Path, args: str, engine: Any, verdict: str) -> None:
    target = write_target(tmp_path / "t", max_position_embeddings=131072)
    found = ask("cfg.draft_window", draft_of(tmp_path / "d", WINDOW), target, engine, args)
    assert found["verdict"] == verdict
    assert "2048" in found["summary"]
    if verdict in ("WARN", "FAIL"):
        assert ("8192" if "8192" in args else "131072") in found["summary"]


@pytest.mark.parametrize(
    ("scaling", "verdict"),
    [
        ({"type": "yarn", "factor": 32.0}, "PASS"),
        ({"type": "linear", "factor": 2.0}, "WARN"),
        ({"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}, "WARN"),
        ({"rope_type": "llama3", "factor": 32.0}, "WARN"),
        ({"factor": "32"}, "WARN"),
        ("yarn", "WARN"),
    ],
    ids=str,
)
def test_a_scaled_window_is_the_one_engines_derive(tmp_path: Path, scaling: object, verdict: str) -> None:
    draft = draft_of(tmp_path / "d", {"max_position_embeddings": 4096, "rope_scaling": scaling})
    found = ask("cfg.draft_window", draft, None, "sglang==0.5.12", "--context-length 131072")
    assert found["verdict"] == verdict


def test_vllm_says_the_context_in_its_own_flag(tmp_path: Path) -> None:
    draft, target = draft_of(tmp_path / "d", WINDOW), write_target(tmp_path / "t", max_position_embeddings=131072)
    for length, verdict in ((2048, "PASS"), (4096, "WARN")):
        args = f"vllm serve /m --max-model-len {length}"
        assert ask("cfg.draft_window", draft, target, "vllm==0.20.0", args)["verdict"] == verdict


def test_the_guard_that_is_off_is_named(tmp_path: Path) -> None:
    draft, args = draft_of(tmp_path / "d", WINDOW), "--context-length 8192"
    found = ask("cfg.draft_window", draft, None, "sglang==0.5.12", args, env={GUARD: "1"})
    assert found["verdict"] == "WARN"
    assert "the guard that refuses this is off" in found["summary"]
    on = ask("cfg.draft_window", draft, None, "sglang==0.5.12", args, env={GUARD: "0"})
    assert not on["evidence"]["guard_off"]
    assert "refuses this at the start" in on["summary"]
    in_front = ask("cfg.draft_window", draft, None, "sglang==0.5.12", f"{GUARD}=1 sglang serve {args}")
    assert in_front["evidence"]["guard_off"]


@pytest.mark.parametrize(
    ("own", "other", "args", "verdict"),
    [
        ({"torch_dtype": "bfloat16"}, {"torch_dtype": "bfloat16"}, "", "PASS"),
        ({"torch_dtype": "float16"}, {"torch_dtype": "bfloat16"}, "", "WARN"),
        ({"dtype": "float16"}, {"torch_dtype": "bfloat16"}, "", "WARN"),
        ({"dtype": "torch.bfloat16"}, {"dtype": "bfloat16"}, "", "PASS"),
        ({"torch_dtype": "float32"}, {"torch_dtype": "bfloat16"}, "--dtype auto", "WARN"),
        ({"torch_dtype": "float16"}, {"torch_dtype": "bfloat16"}, "--dtype=bfloat16", "INFO"),
        ({}, {"torch_dtype": "bfloat16"}, "", "INFO"),
        ({"torch_dtype": "float16"}, {"text_config": {"dtype": "bfloat16"}}, "", "WARN"),
    ],
    ids=str,
)
def test_one_dtype_for_both(
    tmp_path: Path, own: dict[str, str], other: dict[str, Any], args: str, verdict: str
) -> None:
    draft, target = draft_of(tmp_path / "d", own), write_target(tmp_path / "t", **other)
    found = ask("cfg.dtype_vs_target", draft, target, (), args)
    assert found["verdict"] == verdict
    if verdict == "WARN":
        flags = " ".join(f"--{key} {value}" for key, value in found["fix"]["set"].items())
        assert ask("cfg.dtype_vs_target", draft, target, (), flags)["verdict"] in ("PASS", "INFO")


@pytest.mark.parametrize(
    ("scaling", "engine", "verdict"),
    [
        (None, "vllm==0.22.0", "WARN"),
        (None, "vllm==0.27.1", "WARN"),
        (None, "vllm==0.28.0", "INFO"),
        ({"type": "yarn", "factor": 64.0}, "vllm==0.22.0", "PASS"),
        (None, "sglang==0.5.23", "INFO"),
    ],
)
def test_a_latent_draft_without_yarn(tmp_path: Path, scaling: Any, engine: str, verdict: str) -> None:
    draft = draft_of(tmp_path / "d", {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "rope_scaling": scaling})
    target = write_target(tmp_path / "t", rope_scaling={"type": "yarn", "factor": 64.0})
    assert ask("cfg.rope_vs_target", draft, target, engine)["verdict"] == verdict


@pytest.mark.parametrize(
    ("scaling", "engine", "verdict"),
    [
        ({"rope_type": "llama3", "factor": 8.0}, "sglang==0.5.9", "FAIL"),
        ({"rope_type": "llama3", "factor": 8.0}, "sglang==0.5.10", "WARN"),
        ({"rope_type": "llama3", "factor": 8.0}, "vllm==0.32.0", "FAIL"),
        ({"rope_type": "llama3", "factor": 8.0}, (), "WARN"),
        ({"type": "yarn", "factor": 64.0}, "sglang==0.5.9", "FAIL"),
        ({"type": "yarn", "factor": 64.0}, "vllm==0.32.0", "PASS"),  # transformers puts in the window
        ({"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}, "sglang==0.5.9", "PASS"),
        ({"type": "mrope", "mrope_section": [2, 3, 3]}, "sglang==0.5.9", "PASS"),
    ],
)
def test_a_scaling_that_lacks_a_key(tmp_path: Path, scaling: dict[str, Any], engine: Any, verdict: str) -> None:
    draft = draft_of(tmp_path / "d", {"rope_scaling": scaling})
    target = write_target(tmp_path / "t", rope_scaling=scaling)
    assert ask("cfg.rope_vs_target", draft, target, engine)["verdict"] == verdict
