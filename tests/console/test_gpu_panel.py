"""The GPU panel: every GPU of a host stands in it, and what is not reported is left out."""

from __future__ import annotations

import re

import pytest

from console.screens.live import gpu_content
from remote.gpu import Gpu

GIB = 2**30


def gpu(index: int, used: int | None = 71 * GIB, load: float | None = 98.0) -> Gpu:
    return Gpu(index, f"GPU-{index}", "H200", used, 141 * GIB, load, 61.0, None, None, ())


def test_a_few_stand_below_each_other_with_bars() -> None:
    assert gpu_content([gpu(0), gpu(1, None, None)]).plain == "0 ████░░░░ 71.0G 98% 61°\n1 61°"


@pytest.mark.parametrize("count", [4, 7, 8])
def test_more_stand_in_two_columns_that_fit_a_third_of_120_cells(count: int) -> None:
    rows = gpu_content([gpu(index) for index in range(count)]).plain.splitlines()
    assert len(rows) == (count + 1) // 2 and max(map(len, rows)) <= 36
    found = re.findall(r"(\d+) 71G 98% 61°", "\n".join(rows))
    assert sorted(map(int, found)) == list(range(count))


def test_none_are_said_to_be_none() -> None:
    assert gpu_content([]).plain == "no GPU on this host"
