"""safetensors files: what is read is what was written, and no bytes at all make the reader fall over."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load as oracle_load
from safetensors.numpy import save as oracle_save

from checks.errors import BadTensors
from checks.tensors import read_header, read_rows, read_slot_rows, take_rows
from tests.checks.files import bf16, tensor_bytes, with_header, write_tensors

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def read_all(path: Path) -> None:
    """Look at everything a file offers."""
    for info in read_header(path).values():
        read_rows(info, 0, info.rows)


def test_values_are_those_the_reference_library_wrote(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    written = {
        "f32": chance.standard_normal((5, 3)).astype(np.float32),
        "f16": chance.standard_normal((4, 2, 2)).astype(np.float16),
        "f64": chance.standard_normal(6),
        "i64": chance.integers(-9, 9, (3, 3)),
        "u8": np.arange(4, dtype=np.uint8),
        "flags": np.array([True, False, True]),
        "scalar": np.array(2.5, dtype=np.float32),
        "empty": np.zeros((0, 7), dtype=np.float32),
    }
    path = tmp_path / "x.safetensors"
    path.write_bytes(oracle_save(written))
    infos = read_header(path)
    assert infos.keys() == written.keys()
    for name, array in written.items():
        got = read_rows(infos[name], 0, infos[name].rows)
        assert got.shape == array.shape
        np.testing.assert_array_equal(got, array.astype(np.float32) if array.dtype.kind == "f" else array)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
@SAME_FOLDER
def test_bfloat16_is_the_upper_half_of_a_float(tmp_path: Path, values: list[float]) -> None:
    halves = (np.array(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    info = read_header(write_tensors(tmp_path / "b.safetensors", {"x": halves}))["x"]
    assert read_rows(info, 0, len(values)).view(np.uint32).tolist() == [int(half) << 16 for half in halves]


@pytest.mark.parametrize("hidden", [8, 4096], ids=["slots read together", "slots read alone"])
def test_one_slot_of_some_rows(tmp_path: Path, hidden: int) -> None:
    states = np.random.default_rng(2).standard_normal((9, 4, hidden)).astype(np.float32)
    rounded = (bf16(states).astype(np.uint32) << 16).view(np.float32)
    info = read_header(write_tensors(tmp_path / "h.safetensors", {"first": np.ones(3), "h": bf16(states)}))["h"]
    for slot in range(4):
        np.testing.assert_array_equal(read_slot_rows(info, 2, 7, slot), rounded[2:7, slot])
    assert read_slot_rows(info, 5, 100, 3).shape == (4, hidden)
    with pytest.raises(BadTensors, match="no slot 4"):
        read_slot_rows(info, 0, 1, 4)


def test_rows_by_index_come_in_the_order_asked(tmp_path: Path) -> None:
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    info = read_header(write_tensors(tmp_path / "e.safetensors", {"table": table}))["table"]
    np.testing.assert_array_equal(take_rows(info, np.array([7, 0, 7, 3])), table[[7, 0, 7, 3]])
    assert take_rows(info, np.array([], dtype=np.int64)).shape == (0, 4)
    with pytest.raises(BadTensors, match="10 rows and is asked for row 11"):
        take_rows(info, np.array([1, 11]))


def test_a_truncated_file_says_how_much_is_missing(tmp_path: Path) -> None:
    whole = tensor_bytes({"x": np.ones((4, 4), dtype=np.float32)})
    path = tmp_path / "cut.safetensors"
    path.write_bytes(whole[:-10])
    with pytest.raises(
        BadTensors, match=rf"truncated.*byte {len(whole)} and the file has {len(whole) - 10} \(10 missing"
    ):
        read_header(path)


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    whole = tensor_bytes({"x": np.ones((2, 2), dtype=np.float32), "y": np.arange(3)})
    path = tmp_path / "cut.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(BadTensors):
            read_header(path)


def test_a_header_of_an_impossible_length_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge.safetensors"
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(BadTensors, match="give a header of 1152921504606846976"):
        read_header(path)


def test_a_tensor_of_an_impossible_shape_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "wide.safetensors"
    path.write_bytes(with_header({"x": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 0]}}))
    with pytest.raises(BadTensors):
        read_header(path)
    # Nothing times a huge number is nothing: legal, and still not an allocation.
    path.write_bytes(with_header({"x": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}))
    read_header(path)


@pytest.mark.parametrize(
    ("begins", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-lfs pull|git lfs pull"),
        (b"PK\x03\x04" + b"\x00\x01" * 40, "torch archive"),
        (b"\x1f\x8b\x08\x00" + b"\x11" * 40, "gzip"),
        (b"<html><body>404 Not Found</body></html>", "not safetensors"),
        (b"", "empty"),
    ],
)
def test_what_is_no_safetensors_file_is_named(tmp_path: Path, begins: bytes, said: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(begins)
    with pytest.raises(BadTensors, match=said):
        read_header(path)


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"x": 1' + b"}" * 3,
        b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "x": {"dtype": "F32"}}',
        [],
        {"x": 3},
        {"x": {**ENTRY, "dtype": 7}},
        {"x": {**ENTRY, "shape": [-1]}},
        {"x": {**ENTRY, "shape": [True]}},
        {"x": {**ENTRY, "shape": [1.0]}},
        {"x": {**ENTRY, "data_offsets": [4, 0]}},
        {"x": {**ENTRY, "data_offsets": [0, 4, 8]}},
        {"x": ENTRY, "y": ENTRY},
        {"x": {**ENTRY, "data_offsets": [1, 5]}},
        {"x": {**ENTRY, "shape": [2]}},
    ],
    ids=str,
)
def test_a_malformed_header_is_bad_tensors(tmp_path: Path, header: object) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(with_header(header, b"\x00" * 4))
    with pytest.raises(BadTensors):
        read_header(path)


@pytest.mark.parametrize(
    "header",
    [
        '{"x":ENTRY,"x":ENTRY}',
        r'{"x" :ENTRY,"\u0078":ENTRY}',
        '{"x":3,"x":ENTRY}',
        '{"x":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        '{"__metadata__":{"a:b":"c"},"__metadata__":{},"x":ENTRY}',
        '{"__metadata__":{"a":"b","a":"b"},"x":ENTRY}',
    ],
)
def test_a_name_that_stands_twice_is_damage_however_it_is_written(tmp_path: Path, header: str) -> None:
    path = tmp_path / "a.safetensors"
    raw = header.replace("ENTRY", '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}').encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"\0")
    with pytest.raises(BadTensors, match="twice"):
        read_header(path)


@given(st.binary(max_size=300))
@SAME_FOLDER
def test_random_bytes_raise_nothing_but_bad_tensors(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "random.safetensors"
    for content in (raw, struct.pack("<Q", len(raw)) + raw):
        path.write_bytes(content)
        try:
            read_all(path)
        except BadTensors:
            continue


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I64", "BOOL", "F8_E4M3", "F4", "Q4", "C64"]) | JSON,
        "shape": st.lists(st.integers(-1, 5), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | JSON,
    }
)


@given(st.dictionaries(st.text(max_size=4), ENTRIES, max_size=3) | JSON, st.binary(max_size=40))
@SAME_FOLDER
def test_mutated_headers_raise_nothing_but_bad_tensors(tmp_path: Path, header: object, body: bytes) -> None:
    path = tmp_path / "mutated.safetensors"
    path.write_bytes(with_header(header, body))
    try:
        read_all(path)
    except BadTensors:
        return


@given(
    st.dictionaries(st.text("ab", max_size=2), st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 12))),
    st.integers(0, 24),
)
@SAME_FOLDER
def test_no_header_passes_that_the_reference_library_refuses(
    tmp_path: Path, spans: dict[str, tuple[int, int, int]], size: int
) -> None:
    header = {
        name: {"dtype": "F32", "shape": [length], "data_offsets": [start, end]}
        for name, (length, start, end) in spans.items()
    }
    raw = with_header(header, bytes(size))
    path = tmp_path / "spans.safetensors"
    path.write_bytes(raw)
    try:
        read_header(path)
    except BadTensors:
        return
    try:
        oracle_load(raw)
    except SafetensorError as error:
        pytest.fail(f"accepted, and the reference library says {error}: {json.dumps(header)}")
