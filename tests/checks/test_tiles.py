"""Whole tensors tile by tile: the numbers of a plain computation, in memory that does not grow with the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from checks.errors import BadTensors
from checks.tensors import read_header, read_rows
from checks.tiles import difference, scan_file
from tests.checks.files import bf16, write_tensors


@pytest.mark.parametrize("shape", [(5, 3, 64), (1, 7), (300, 1000), (3, 100_000)])
@pytest.mark.parametrize("kind", ["bf16", "f4", "f2"])
def test_a_difference_is_that_of_the_plain_computation(tmp_path: Path, shape: tuple[int, ...], kind: str) -> None:
    chance = np.random.default_rng(0)
    pair = [chance.normal(size=shape).astype(np.float32) for _ in range(2)]
    infos = []
    for name, values in zip("ab", pair):
        write_tensors(tmp_path / f"{name}.safetensors", {"x": bf16(values) if kind == "bf16" else values.astype(kind)})
        infos.append(read_header(tmp_path / f"{name}.safetensors")["x"])
    a, b = (read_rows(info, 0, info.rows).reshape(shape[0], -1).astype(np.float64) for info in infos)
    found = difference(*infos)
    assert found.largest == pytest.approx(np.abs(a - b).max(), rel=1e-6)
    assert found.mean == pytest.approx(np.abs(a - b).mean(), rel=1e-4)
    size = np.linalg.norm(a, axis=1)
    assert found.relative == pytest.approx(np.linalg.norm(a - b, axis=1) / size, rel=1e-4)
    assert found.cosine == pytest.approx((a * b).sum(1) / size / np.linalg.norm(b, axis=1), abs=1e-5)


def test_tensors_of_two_shapes_are_not_compared(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", {"x": np.zeros((2, 3), np.float32), "y": np.zeros((3, 2), np.float32)})
    header = read_header(tmp_path / "a.safetensors")
    with pytest.raises(BadTensors, match="not rows of one shape"):
        difference(header["x"], header["y"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["bf16", "f4", "f2", "f8"])
def test_one_value_that_is_not_finite_is_found_with_its_row(tmp_path: Path, kind: str, value: float) -> None:
    values = np.random.default_rng(0).normal(size=(400, 3, 500)).astype(np.float32)
    values[0, 0, 0] = -60000 if kind == "f2" else -3.3e38
    path = tmp_path / "a.safetensors"

    def write() -> None:
        write_tensors(path, {"x": bf16(values) if kind == "bf16" else values.astype(kind), "ids": np.arange(400)})

    write()
    assert scan_file(path) == []
    values[377, 2, 499] = value
    write()
    (broken,) = scan_file(path)
    assert (broken.name, broken.values, broken.row) == ("x", 1, 377)


def test_a_truncated_file_is_not_scanned(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": np.zeros((20, 3), np.float32)})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadTensors, match="truncated"):
        scan_file(path)
