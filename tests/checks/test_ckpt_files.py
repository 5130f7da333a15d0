"""ckpt.container and ckpt.numbers: files that are whole, and weights that are numbers."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.ckpt import numbers
from tests.checks.asking import ask, draft_of, draft_with
from tests.checks.files import Array, bf16, draft_tensors, tensor_bytes, with_header, write_tensors

NAME = "model.safetensors"


def container(draft: Path, raw: bytes, name: str = NAME) -> dict[str, Any]:
    (draft / name).write_bytes(raw)
    found = ask("ckpt.container", draft)
    (row,) = (item for item in found["evidence"]["files"] if item["file"] == name)
    return {**found, "state": row["state"]}


def test_four_kinds_of_damage_have_four_messages(tmp_path: Path) -> None:
    draft, whole = draft_of(tmp_path / "d"), tensor_bytes(draft_tensors())
    told = {}
    for state, raw in {
        "truncated": whole[:-10],
        "trailing": whole + b"\0" * 10,
        "empty": b"",
        "damaged": b"\x20\0\0\0\0\0\0\0" + b"x" * 64,
    }.items():
        found = container(draft, raw)
        assert (found["verdict"], found["state"]) == ("FAIL", state)
        told[state] = found["summary"]
    assert len(set(told.values())) == 4
    assert "10 bytes follow the last tensor" in told["trailing"]
    assert "0 bytes" in told["empty"]


@pytest.mark.parametrize("raw", [b"<!DOCTYPE html><title>401</title>", b'\n{"error":"Repository not found"}'], ids=str)
def test_a_page_that_was_downloaded_in_place_of_the_weights(tmp_path: Path, raw: bytes) -> None:
    assert "a web page or a message" in container(draft_of(tmp_path / "d"), raw * 3)["summary"]


def test_a_pipe_in_place_of_the_weights_is_not_called_empty(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d")
    (draft / NAME).unlink(missing_ok=True)
    os.mkfifo(draft / NAME)
    found = ask("ckpt.container", draft)
    assert found["verdict"] == "FAIL"
    assert "not a regular file (a pipe" in found["summary"]


def test_the_legal_oddities_are_no_fault(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d")
    assert container(draft, tensor_bytes(draft_tensors()))["verdict"] == "PASS"
    found = container(draft, with_header({"__metadata__": {}, "a": entry()}, b"\0\0"))
    assert (found["verdict"], found["state"]) == ("PASS", "whole")
    found = container(draft, with_header({"__metadata__": {}}))
    assert (found["verdict"], found["state"]) == ("INFO", "no tensors")


def entry() -> dict[str, Any]:
    return {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}


def test_a_torch_archive_without_its_directory_is_truncated(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d")
    archive = draft / "pytorch_model.bin"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", b"x" * 5000)
    assert container(draft, archive.read_bytes(), archive.name)["verdict"] == "PASS"
    found = container(draft, archive.read_bytes()[:-60], archive.name)
    assert (found["verdict"], found["state"]) == ("FAIL", "truncated")
    assert "full disk" in found["summary"]


def test_every_damaged_shard_is_named(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d")
    write_tensors(draft / "model-00001-of-00003.safetensors", {"a": bf16(np.ones(3))})
    for shard in (2, 3):
        (draft / f"model-0000{shard}-of-00003.safetensors").write_bytes(b"")
    found = ask("ckpt.container", draft)
    assert found["verdict"] == "FAIL"
    assert all(f"0000{shard}-of" in found["summary"] for shard in (2, 3))


def test_without_weights_the_container_is_unknown(tmp_path: Path) -> None:
    assert ask("ckpt.container", draft_of(tmp_path / "d"))["evidence"]["needs"] == ["draft weights"]


def trained() -> dict[str, Array]:
    chance = np.random.default_rng(0)
    return {
        name: bf16(1 + chance.standard_normal(value.shape) * 0.1) if value.dtype == np.uint16 else value
        for name, value in draft_tensors().items()
    }


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["fc.weight", "norm.weight", "midlayer.mlp.up_proj.weight"])
def test_a_number_that_is_none_fails(tmp_path: Path, name: str, value: float) -> None:
    tensors = trained()
    wrong = np.ones(tensors[name].shape, dtype=np.float32)
    wrong.reshape(-1)[-1] = value
    found = ask("ckpt.numbers", draft_with(tmp_path / "d", None, {**tensors, name: bf16(wrong)}))
    assert found["verdict"] == "FAIL"
    assert found["evidence"]["not_finite"] == {name: 1}
    assert f"row {wrong.shape[0] - 1}" in found["summary"]


def test_trained_weights_pass(tmp_path: Path) -> None:
    assert ask("ckpt.numbers", draft_with(tmp_path / "d", None, trained()))["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("name", "verdict"),
    [("fc.weight", "FAIL"), ("lm_head.weight", "FAIL"), ("midlayer.self_attn.o_proj.weight", "WARN")],
)
def test_a_matrix_of_zeros(tmp_path: Path, name: str, verdict: str) -> None:
    tensors = trained()
    found = ask("ckpt.numbers", draft_with(tmp_path / "d", None, {**tensors, name: np.zeros_like(tensors[name])}))
    assert found["verdict"] == verdict
    assert "all zero" in found["summary"]


def test_norms_as_before_training_are_only_noted(tmp_path: Path) -> None:
    tensors = trained()
    ones = {name: bf16(np.ones(value.shape)) for name, value in tensors.items() if "norm" in name}
    found = ask("ckpt.numbers", draft_with(tmp_path / "d", None, {**tensors, **ones}))
    assert found["verdict"] == "INFO"
    assert found["evidence"]["norms_all_one"]


def test_large_tensors_are_sampled_and_all_of_them_on_request(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(numbers, "TILE", 128)
    monkeypatch.setattr(numbers, "BUDGET", 512)
    big = np.ones((64, 16), dtype=np.float32)
    big[1, 0] = np.nan
    draft = draft_with(tmp_path / "d", None, {**trained(), "embed_tokens.weight": bf16(big)})
    some = ask("ckpt.numbers", draft)
    assert some["evidence"]["read"]["embed_tokens.weight"][0] < 64
    full = ask("ckpt.numbers", draft, samples=0)
    assert full["verdict"] == "FAIL"
    assert full["evidence"]["read"]["embed_tokens.weight"] == [64, 64]
