"""What somebody else put where a checkpoint's files should be: refused with a sentence, never waited for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from checks.answer import answer
from checks.caches import open_cache
from checks.caches.listing import list_files
from checks.ckpt.numbers import _look
from checks.eagle3 import CannotReplay, draft_shape
from checks.errors import BadConfig, BadTensors, NotRunnable
from checks.jsonfile import read_config
from checks.regular import open_regular
from checks.request import given_path
from checks.tensors import TensorInfo
from checks.weights import INDEX, open_weights
from tests.checks.formats import FORMATS, texts


@pytest.mark.parametrize("name", ["pipe", "device", "folder", "loop"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.symlink("/dev/zero", tmp_path / "device")
    (tmp_path / "folder").mkdir()
    os.symlink("loop", tmp_path / "loop")
    with pytest.raises(OSError):
        open_regular(tmp_path / name)
    with pytest.raises(BadConfig, match="cannot be read"):
        read_config(tmp_path / name)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_an_index_that_is_no_file_is_damage(tmp_path: Path, make: Any) -> None:
    make(tmp_path / INDEX)
    with pytest.raises(BadTensors, match="not a regular file"):
        open_weights(tmp_path)


def test_a_huge_index_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / INDEX).open("wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(BadTensors, match="larger than"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"hidden_size": ' + "9" * 4000 + "}", "4000 digits"),
        ('{"a": ' * 900 + "1" + "}" * 900, "nested"),
        ('{"a": ' + "[" * 100 + "]" * 100 + "}", "nested"),
    ],
)
def test_a_config_that_would_break_arithmetic_or_recursion_is_none(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadConfig, match=said):
        read_config(tmp_path / "config.json")


def test_numbers_of_64_bits_stay(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": -9223372036854775808, "b": 18446744073709551615}')
    assert read_config(tmp_path / "config.json")[1] == {"a": -(2**63), "b": 2**64 - 1}


@pytest.mark.parametrize("text", ["~nobody-of-this-name/x", "a\0b"])
def test_a_path_that_cannot_be_one_is_not_runnable(text: str) -> None:
    with pytest.raises(NotRunnable, match=r"--draft .*no usable path"):
        given_path(text, "--draft")


def test_an_empty_tensor_that_claims_endless_rows_costs_nothing(tmp_path: Path) -> None:
    assert _look(TensorInfo("q", "BF16", (2**62, 0), tmp_path / "absent", 0, 0), False).rows == 0


SIZES = {
    "fc.weight": (8, 24), "norm.weight": (8,), "lm_head.weight": (10, 8), "layer.input_layernorm.weight": (8,),
    "layer.hidden_norm.weight": (8,), "layer.post_attention_layernorm.weight": (8,),
    "layer.self_attn.q_proj.weight": (8, 16), "layer.self_attn.k_proj.weight": (8, 16),
    "layer.self_attn.v_proj.weight": (8, 16), "layer.self_attn.o_proj.weight": (8, 8),
    "layer.mlp.gate_proj.weight": (6, 8), "layer.mlp.up_proj.weight": (6, 8), "layer.mlp.down_proj.weight": (8, 6),
}  # fmt: skip
CONFIG: dict[str, Any] = {"num_attention_heads": 2, "head_dim": 4}


def test_the_pair_used_below_is_a_draft() -> None:
    assert draft_shape(CONFIG, SIZES).slots == 3


@pytest.mark.parametrize("value", [{}, {"a": 1}, [4], "\x1b[31m", -1, 0.5, True, 1e308, [[1]]])
@pytest.mark.parametrize(
    "key",
    (
        *("num_attention_heads", "head_dim", "num_key_value_heads", "num_hidden_layers", "target_hidden_size"),
        *("rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"),
    ),
)
def test_a_config_of_wrong_types_is_replayed_or_refused(key: str, value: object) -> None:
    try:
        draft_shape({**CONFIG, key: value}, SIZES)
    except CannotReplay as error:
        assert str(error)


@pytest.mark.parametrize("shape", [(), (1,), (0, 0), (2, 2, 2)])
@pytest.mark.parametrize("name", sorted(SIZES))
def test_a_tensor_of_another_rank_is_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(CannotReplay):
        draft_shape(CONFIG, {**SIZES, name: shape})


def test_a_log_that_is_a_pipe_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 1}))
    os.mkfifo(tmp_path / "log")
    request = {"draft": str(tmp_path), "log": str(tmp_path / "log"), "only": ["log"]}
    with pytest.raises(NotRunnable, match="not a regular file"):
        answer(request, lambda event: None)


def test_a_million_unknown_keys_are_counted_not_compared(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLMEagle3"], **{f"num_hidden_layer_{i}": 1 for i in range(5000)}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = answer({"draft": str(tmp_path), "only": ["cfg.keys"]}, lambda event: None)["findings"]
    assert [one["check"] for one in found] == ["cfg.keys"]
    assert len(found[0]["evidence"]["slips"]) <= 1000


def test_a_link_in_a_circle_hides_no_sample(tmp_path: Path) -> None:
    (tmp_path / "data_0.pt").write_bytes(b"x")
    os.symlink("data_1.pt", tmp_path / "data_1.pt")
    os.symlink("circle", tmp_path / "circle")
    assert [file.name for file in list_files(tmp_path).files] == ["data_0.pt"]


def test_a_link_to_a_folder_above_gives_no_sample_twice(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    for path in (tmp_path / "data_0.pt", tmp_path / "rows" / "data_1.pt"):
        path.write_bytes(b"x")
    os.symlink(".", tmp_path / "itself")
    os.symlink("..", tmp_path / "rows" / "back")
    assert [file.name for file in list_files(tmp_path).files] == ["data_0.pt", "data_1.pt"]


@pytest.mark.parametrize("name", ["../x", "a\0b", "\ud800", "x" * 5000, "\x1b[31m", "..", "", None, 3, "é" * 200])
def test_a_shard_whose_name_is_none_is_told_in_a_sentence(tmp_path: Path, name: object) -> None:
    folder = next(item for item in FORMATS if item.layout == "deepspec").build(tmp_path / "c", texts(2, rows=24))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"][0]["file_name"] = name
    (folder / "manifest.json").write_text(json.dumps(manifest))
    found = answer({"caches": [{"path": str(folder)}], "only": ["data"]}, lambda event: None)["findings"]
    (layout,) = [item for item in found if item["check"] == "data.layout"]
    assert "shard 0 is named" in layout["summary"]
    assert "write the manifest again" in layout["summary"]
    assert layout["summary"].isprintable()
    assert len(layout["summary"]) < 500
    assert "internal" not in {item["check"] for item in found}


@pytest.mark.parametrize(("key", "value"), [("hidden_size", 2**62), ("target_layer_ids", list(range(100_000)))])
def test_a_manifest_that_claims_what_no_model_has_is_refused(tmp_path: Path, key: str, value: object) -> None:
    folder = next(item for item in FORMATS if item.layout == "deepspec").build(tmp_path / "c", texts(2, rows=24))
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, key: value}))
    with pytest.raises(BadTensors, match="write the manifest again") as caught:
        open_cache(folder)
    assert len(str(caught.value)) < 1000
