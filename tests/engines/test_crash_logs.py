"""Whole logs of SGLang, from its start to a forced end: the phases and the cause, as recorded and as made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.crashes import CRASHES, RECORDINGS, read


@pytest.mark.parametrize("name", CRASHES)
def test_a_recorded_end_is_read_right(name: str) -> None:
    assert read((RECORDINGS / f"{name}.log").read_text("utf-8")) == CRASHES[name].expected


@pytest.mark.engines
@pytest.mark.parametrize("name", CRASHES)
def test_a_forced_end_is_read_right(name: str, tmp_path: Path) -> None:
    assert read(CRASHES[name].provoke(tmp_path)) == CRASHES[name].expected
