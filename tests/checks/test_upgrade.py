"""`console check` for two versions of an engine at once: what an upgrade would change for this draft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from console.cli import main
from console.exits import Exit
from tests.checks.files import CONFIG, write_draft, write_target

POINTER = "/eagle_config/eagle_aux_hidden_state_layer_ids"
KIMI = "KimiK25ForConditionalGeneration"


def cached(folder: Path, states: tuple[int, ...]) -> Path:
    """A cache of a 61-layer target by a trainer whose side file names the layers: k = id + 1, the final state last."""
    folder.mkdir()
    side = {"hidden_states": {"layer_ids": [*(k - 1 for k in states), 60]}, "model": {"hidden_size": 16}}
    (folder / "data_config.json").write_text(json.dumps(side))
    for index in range(3):
        (folder / f"data_{index}.pt").write_bytes(b"")
    return folder


def upgrade(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ids: list[int], states: tuple[int, ...]
) -> tuple[int, dict[str, dict[str, Any]]]:
    """(exit code, the finding of `align.engine_pair` by engine) for 0.5.12 and 0.5.13."""
    config = {**CONFIG, "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}}
    paths = [
        "--draft",
        str(write_draft(tmp_path / "draft", config)),
        "--cache",
        str(cached(tmp_path / "cache", states)),
    ]
    paths += ["--target", str(write_target(tmp_path / "target", layers=61, architectures=[KIMI]))]
    engines = ["--engine", "sglang==0.5.12", "--engine", "sglang==0.5.13"]
    code = main(["check", *paths, *engines, "--only", "align.engine_pair", "--json"])
    report = json.loads(capsys.readouterr().out)
    return code, {item["engine"]: item for item in report["findings"]}


def test_the_upgrade_that_breaks_a_draft_is_named_with_its_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = upgrade(tmp_path, capsys, [2, 30, 58], (3, 31, 59))
    before, after = found["sglang==0.5.12"], found["sglang==0.5.13"]
    assert (before["verdict"], before["fix"]) == ("PASS", None)
    assert before["evidence"]["engine_states"] == [3, 31, 59]
    assert (after["verdict"], after["evidence"]["engine_states"]) == ("FAIL", [2, 30, 58])
    assert after["fix"]["patch"][-1] == {"op": "replace", "path": POINTER, "value": [3, 31, 59]}
    assert code == Exit.FINDINGS


def test_the_upgrade_that_repairs_a_draft_is_named_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = upgrade(tmp_path, capsys, [2, 30, 58], (2, 30, 58))
    assert found["sglang==0.5.12"]["verdict"] == "FAIL"
    assert found["sglang==0.5.12"]["fix"]["patch"][-1]["value"] == [1, 29, 57]
    assert found["sglang==0.5.13"]["verdict"] == "PASS"


def test_ids_that_begin_with_1_survive_the_upgrade(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = upgrade(tmp_path, capsys, [1, 29, 57], (2, 30, 58))
    assert [item["verdict"] for item in found.values()] == ["PASS", "PASS"]
    assert code == Exit.OK
