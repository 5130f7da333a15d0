"""States of the target itself through transformers: whole, or its first layers from the shards that hold them alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.capture_folder import open_capture
from checks.capture_run import answer
from checks.eagle3 import loading
from checks.errors import CaptureFailed
from checks.reference import cut_folder, reference_states
from checks.weights import INDEX
from console.cli import main
from console.exits import Exit
from tests.checks.pair import CACHE, DRAFT, TARGET, N, all_states, text

pytestmark = pytest.mark.torch

IDS = text(0)[:60]


def sharded(folder: Path, wrap: str = "") -> Path:
    """The shipped target, a shard for each layer; with `wrap` as the language model of a multimodal checkpoint."""
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True)
    shards: dict[str, dict[str, Any]] = {}
    for name, value in load_file(TARGET / "model.safetensors").items():
        layer = name.split(".")[2] if ".layers." in name else "rest"
        # The one style puts itself in front of `model.`, the other in its place.
        name = f"{wrap}{name.removeprefix('model.') if wrap.startswith('model.') else name}"
        shards.setdefault(f"model-{layer}.safetensors", {})[name] = value
    if wrap:
        norm = next(iter(shards["model-rest.safetensors"].values()))
        shards["model-rest.safetensors"]["vision_tower.weight"] = norm.clone()
    for name, tensors in shards.items():
        save_file(tensors, folder / name, metadata={"format": "pt"})
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = json.loads((TARGET / "config.json").read_text("utf-8"))
    whole = {"model_type": "some_vl", "architectures": ["SomeVL"], "text_config": config} if wrap else config
    (folder / "config.json").write_text(json.dumps(whole))
    return folder


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max()))


def test_the_whole_target_gives_every_state_before_the_final_norm() -> None:
    (taken,) = reference_states(TARGET, [IDS])
    assert taken.states.shape == (60, N + 1, 128)
    assert close(taken.states, all_states(0)[:, :60].swapaxes(0, 1))


def test_its_first_layers_need_only_their_shards(tmp_path: Path) -> None:
    target = sharded(tmp_path / "target")
    for layer in range(4, N):
        (target / f"model-{layer}.safetensors").unlink()
    (taken,) = reference_states(target, [IDS], layers=4)
    assert taken.states.shape == (60, 5, 128)
    assert close(taken.states, all_states(0)[:5, :60].swapaxes(0, 1))


@pytest.mark.parametrize("wrap", ["language_model.", "model.language_model."])
def test_the_language_model_of_a_multimodal_target_is_run(tmp_path: Path, wrap: str) -> None:
    target = sharded(tmp_path / "target", wrap)
    (taken,) = reference_states(target, [IDS], layers=3)
    assert close(taken.states, all_states(0)[:4, :60].swapaxes(0, 1))


def test_weights_that_are_not_there_are_no_random_ones(tmp_path: Path) -> None:
    target = sharded(tmp_path / "target")
    from safetensors.torch import load_file, save_file

    index, shard = json.loads((target / INDEX).read_text()), target / "model-1.safetensors"
    tensors = load_file(shard)
    for place in (index["weight_map"], tensors):
        del place["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, shard, metadata={"format": "pt"})
    (target / INDEX).write_text(json.dumps(index))
    with pytest.raises(CaptureFailed, match=r"layers\.1\.mlp\.up_proj.*whole"):
        reference_states(target, [IDS], layers=3)


@pytest.mark.parametrize(
    "held",
    [
        {"meminfo": "MemAvailable: 1024 kB\n"},
        {"meminfo": "MemAvailable: 99999999 kB\n", "memory.max": "2097152", "memory.current": "1048576"},
    ],
)
def test_a_target_too_large_for_this_machine_or_its_container_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: dict[str, str]
) -> None:
    monkeypatch.setattr(loading, "_text", lambda path: held.get(path.rpartition("/")[2], ""))
    with pytest.raises(CaptureFailed, match="--layers K"):
        cut_folder(TARGET, tmp_path, 0)


def test_code_that_comes_with_a_target_is_not_run(tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(TARGET, target)
    config = json.loads((target / "config.json").read_text("utf-8"))
    config |= {"model_type": "ours", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (target / "config.json").write_text(json.dumps(config))
    (target / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(CaptureFailed, match="cannot load"):
        reference_states(target, [IDS])
    assert not (tmp_path / "ran").exists()


def test_a_reference_names_the_states_of_a_cache_without_any_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "reference"
    words = ["capture", "--reference", "--target", str(TARGET), "--cache", str(CACHE), "--out", str(out)]
    assert main([*words, "--samples", "4", "--dry-run"]) == Exit.OK
    assert not out.exists()
    assert main([*words, "--samples", "4"]) == Exit.OK
    shown = capsys.readouterr().out
    assert f"R_0 … R_{N} of the target itself" in shown
    capture = open_capture(out)
    assert (capture.kind, capture.engine, capture.slots) == ("reference", "transformers", N + 1)
    names = ["check", "--draft", str(DRAFT), "--target", str(TARGET), "--cache", str(CACHE), "--capture", str(out)]
    assert main([*names, "--only", "align.states"]) == Exit.OK
    assert "the slots hold R_3, R_7, R_10" in capsys.readouterr().out
    assert main([*words]) == Exit.NOT_RUN, "what is there is not written over"


def test_its_first_layers_name_the_low_slot_and_say_what_they_leave_open(tmp_path: Path) -> None:
    request = {
        "task": "capture",
        "how": "reference",
        "layers": 4,
        "target": str(TARGET),
        "caches": [{"path": str(CACHE)}],
        "capture_dir": str(tmp_path / "part"),
    }
    steps: list[dict[str, object]] = []
    (told,) = answer(request, steps.append)["captures"]
    assert told["slots"] == 5
    assert "R_0 … R_4 of 12 layers" in told["proves"]
    assert any(step["event"] == "progress" for step in steps)
    from checks.__main__ import answer as check

    asked = {"target": str(TARGET), "caches": request["caches"], "captures": [told["path"]], "only": ["align.states"]}
    (finding,) = check(asked, lambda _: None)["findings"]
    slots = finding["evidence"]["slots"]
    assert (slots[0]["best"], slots[0]["kind"]) == ("R_3", "same")
    assert not any(slot["kind"] in ("same", "near") for slot in slots[1:3])
