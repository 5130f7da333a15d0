"""Whole tensors tile by tile: the numbers of a plain computation, in memory that does not grow with the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from checks.errors import BadTensors
from checks.tensors import TensorInfo, read_header, read_rows
from checks.tiles import Looked, difference, largest, look_through
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


KINDS = ["bf16", "f4", "f2", "f8"]


def stored(path: Path, values: np.ndarray, kind: str) -> TensorInfo:
    write_tensors(path, {"x": bf16(values) if kind == "bf16" else values.astype(kind), "ids": np.arange(len(values))})
    return read_header(path)["x"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_one_value_that_is_not_finite_is_found_with_its_row(tmp_path: Path, kind: str, value: float) -> None:
    path, values = tmp_path / "a.safetensors", np.random.default_rng(0).normal(size=(400, 3, 500)).astype(np.float32)
    values[0, 0, 0] = -60000 if kind == "f2" else -3.3e38
    assert look_through(stored(path, values, kind), [(0, 400)]) == Looked(rows=400)
    values[377, 2, 499] = value
    info = stored(path, values, kind)
    assert look_through(info, [(0, 400)]) == Looked(400, 1, 377)
    assert look_through(info, [(0, 200), (370, 380)]) == Looked(210, 1, 377)
    assert look_through(info, [(0, 377), (378, 400)]) == Looked(399)
    values[:] = value
    assert look_through(stored(path, values, kind), [(3, 400)]) == Looked(397, 397 * 1500, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 1.0, -2.5])
def test_a_tensor_of_one_number_is_told_from_one_of_two(tmp_path: Path, kind: str, value: float) -> None:
    path, values = tmp_path / "a.safetensors", np.full((700, 1000), value, np.float32)
    assert look_through(stored(path, values, kind), [(0, 700)]).only == value
    values[::2, ::3] *= -1  # zero stays zero
    assert look_through(stored(path, values, kind), [(0, 700)]).only == (0 if value == 0 else None)
    values[:] = value
    values[600:] = 7
    assert look_through(stored(path, values, kind), [(0, 700)]).only is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_magnitude_of_a_row_is_that_of_its_floats(kind: str) -> None:
    values = np.random.default_rng(0).normal(size=(8, 3, 33)).astype(np.float32)
    values[0] = np.abs(values[0])
    values[1] = -np.abs(values[1])
    values[2], values[3, 1] = 0.0, -0.0
    values[4, :, 7], values[5, :, 7], values[6, :, 7:9] = np.inf, -np.inf, (np.nan, -np.inf)
    rows = bf16(values) if kind == "bf16" else values.astype(kind)
    wide = (rows.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else rows
    assert np.array_equal(largest(rows), np.abs(wide).max(axis=-1), equal_nan=True)
    assert np.array_equal(largest(rows[:, 1]), np.abs(wide[:, 1]).max(axis=-1), equal_nan=True)
