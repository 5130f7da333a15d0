"""Whole logs of SGLang and vLLM, from start to a forced end: the phases and the cause, as recorded and as made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import vllm_crashes
from tests.engines.crashes import CRASHES, RECORDINGS, read


@pytest.mark.parametrize("name", CRASHES)
def test_a_recorded_end_is_read_right(name: str) -> None:
    assert read((RECORDINGS / f"{name}.log").read_text("utf-8")) == CRASHES[name].expected


@pytest.mark.engines
@pytest.mark.parametrize("name", CRASHES)
def test_a_forced_end_is_read_right(name: str, tmp_path: Path) -> None:
    assert read(CRASHES[name].provoke(tmp_path)) == CRASHES[name].expected


@pytest.mark.parametrize("name", vllm_crashes.CRASHES)
def test_a_recorded_end_of_vllm_is_read_right(name: str) -> None:
    recorded = (RECORDINGS / f"{name}.log").read_text("utf-8")
    assert vllm_crashes.reading(recorded) == vllm_crashes.CRASHES[name].expected


@pytest.mark.engines
@pytest.mark.parametrize("name", vllm_crashes.LIVE)
def test_a_forced_end_of_vllm_is_read_right(name: str, tmp_path: Path) -> None:
    crash = vllm_crashes.CRASHES[name]
    assert vllm_crashes.reading(crash.provoke(tmp_path)) == crash.expected
