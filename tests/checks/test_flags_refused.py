"""flags.refused: what a release does not take beside speculation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checks.asking import ask

EAGLE3 = "--speculative-algorithm EAGLE3 --speculative-draft-model-path /d"


@pytest.mark.parametrize(
    ("flags", "engine", "verdict"),
    [
        ("--enable-lora --lora-paths a=/l", "sglang==0.5.5", "PASS"),
        ("--enable-lora --lora-paths a=/l", "sglang==0.5.6", "FAIL"),
        ("--lora-paths a=/l", "sglang==0.5.18", "FAIL"),
        ("--enable-lora", "sglang==0.5.19", "PASS"),
        ("--enable-lora", (), "UNKNOWN"),
        ("--attention-backend flex_attention", "sglang==0.5.12", "FAIL"),
        ("--attention-backend fa3", "sglang==0.5.12", "PASS"),
        ("--dcp-size 2", "sglang==0.5.16", "FAIL"),
        ("--dcp-size 1", "sglang==0.5.16", "PASS"),
        ("--enable-unified-memory", "sglang==0.5.17", "FAIL"),
        ("--weight-cache-mode daemon", "sglang==0.5.17", "FAIL"),
        ("--weight-cache-mode off", "sglang==0.5.17", "PASS"),
        ("--speculative-moe-runner-backend flashinfer_trtllm", "sglang==0.5.7", "FAIL"),
        ("--speculative-moe-runner-backend flashinfer_trtllm", "sglang==0.5.10", "PASS"),
    ],
)
def test_flags_beside_speculation(flags: str, engine: Any, verdict: str) -> None:
    found = ask("flags.refused", engine=engine, args=f"{EAGLE3} {flags}")
    assert found["verdict"] == verdict
    # Without speculation each is taken.
    assert ask("flags.refused", engine=engine, args=flags)["verdict"] == "PASS"


def test_several_are_told_together() -> None:
    found = ask("flags.refused", engine="sglang==0.5.17", args=f"{EAGLE3} --enable-lora --enable-unified-memory")
    assert found["verdict"] == "FAIL"
    assert "--enable-lora" in found["summary"] and "--enable-unified-memory" in found["summary"]
