"""A staged edit: what is shown is what is written, and nothing that others wrote is lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from console.draft import DraftStage, syntax
from console.errors import ChangedMeanwhile, DraftError, PatchError, Refused
from console.runs import RunHistory
from remote.host import LocalHost

IDS = "/eagle_config/eagle_aux_hidden_state_layer_ids"
CONFIG = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 2, 6]}, "hidden_size": 128}
FIX = {
    "kind": "config",
    "file": "config.json",
    "patch": [{"op": "test", "path": IDS, "value": [-1, 2, 6]}, {"op": "replace", "path": IDS, "value": [2, 6, 9]}],
}


@asynccontextmanager
async def free(_: str) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def forbidden(action: str) -> AsyncIterator[None]:
    raise Refused(f"read-only: {action}")
    yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "draft" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG, indent=2) + "\n", "utf-8")
    return path


@pytest.fixture
async def stage(file: Path, tmp_path: Path) -> DraftStage:
    made = DraftStage(LocalHost(), str(file.parent), RunHistory(tmp_path / "h.sqlite3"), free)
    await made.load()
    return made


async def test_a_fix_is_staged_shown_written_and_kept(stage: DraftStage, file: Path) -> None:
    before = file.read_text("utf-8")
    finding = {"check": "align.engine_pair"}
    assert [item.words for item in stage.stage_fix(FIX, finding)] == [f"{IDS}: [-1, 2, 6] → [2, 6, 9]"]
    assert stage.diff()[0] == "--- on the host"
    assert file.read_text("utf-8") == before
    done = await stage.write("fix of align.engine_pair")
    assert json.loads(file.read_text("utf-8"))["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]
    assert Path(done.backup_path).read_text("utf-8") == before
    assert [(item.by, item.sha == done.sha256) for item in await stage.history()] == [
        ("console", True),
        ("outside", False),
    ]
    assert not stage.dirty
    assert stage.finding == finding


async def test_a_fix_for_another_config_stages_nothing(stage: DraftStage) -> None:
    stage.set(IDS, [1, 2, 3])
    with pytest.raises(PatchError):
        stage.stage_fix(FIX)
    assert json.loads(stage.staged)["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]


async def test_set_adds_missing_parents_and_undo_takes_back(stage: DraftStage) -> None:
    stage.set("/a/b/c", 1)
    stage.set("hidden_size", 64)
    assert json.loads(stage.staged) == {**CONFIG, "hidden_size": 64, "a": {"b": {"c": 1}}}
    assert stage.undo()
    assert stage.undo()
    assert not stage.undo()
    assert not stage.dirty


async def test_what_is_not_json_is_not_written(stage: DraftStage, file: Path) -> None:
    said = stage.edit('{\n "a": 1,\n}')
    assert said[0].line == 3 or said[0].line == 2
    with pytest.raises(DraftError, match="not written"):
        await stage.write()
    assert json.loads(file.read_text("utf-8")) == CONFIG


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "[" * 100_000])
def test_texts_that_are_no_config(text: str) -> None:
    assert syntax(text)


async def test_a_change_on_the_host_is_not_overwritten_and_can_be_merged(stage: DraftStage, file: Path) -> None:
    stage.stage_fix(FIX)
    theirs = {**CONFIG, "draft_vocab_size": 64}
    file.write_text(json.dumps(theirs), "utf-8")
    with pytest.raises(ChangedMeanwhile):
        await stage.write()
    assert json.loads(file.read_text("utf-8")) == theirs
    assert stage.three_way is not None
    assert stage.three_way.conflicts == ()
    stage.take_merged()
    await stage.write()
    merged: dict[str, Any] = json.loads(file.read_text("utf-8"))
    assert merged == {**theirs, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]}}


async def test_both_sides_changing_one_key_is_a_conflict(stage: DraftStage, file: Path) -> None:
    stage.stage_fix(FIX)
    theirs = {**CONFIG, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [7, 8, 9]}}
    file.write_text(json.dumps(theirs), "utf-8")
    with pytest.raises(ChangedMeanwhile):
        await stage.write()
    assert stage.three_way is not None
    assert stage.three_way.conflicts == (IDS,)
    with pytest.raises(DraftError):
        stage.take_merged()
    stage.take_theirs()
    assert json.loads(stage.staged) == theirs
    assert not stage.dirty


async def test_an_earlier_version_is_staged_not_written(stage: DraftStage, file: Path) -> None:
    stage.stage_fix(FIX)
    await stage.write()
    first = (await stage.history())[-1]
    await stage.restore(first.sha[:8])
    assert json.loads(stage.staged) == CONFIG
    assert json.loads(file.read_text("utf-8")) != CONFIG
    with pytest.raises(DraftError, match="no version"):
        await stage.restore(999)


async def test_a_read_only_console_writes_nothing(file: Path, tmp_path: Path) -> None:
    stage = DraftStage(LocalHost(), str(file.parent), RunHistory(tmp_path / "h.sqlite3"), forbidden)
    await stage.load()
    stage.stage_fix(FIX)
    with pytest.raises(Refused):
        await stage.write()
    assert json.loads(file.read_text("utf-8")) == CONFIG


async def test_the_diagnosis_of_a_check_stands_at_its_key(file: Path, tmp_path: Path) -> None:
    async def judge(text: str) -> list[dict[str, Any]]:
        return [
            {"check": "cfg.aux_ids", "verdict": "FAIL", "summary": "wrong", "evidence": {"path": IDS}, "fix": None},
            {"check": "cfg.x", "verdict": "PASS", "summary": "fine", "evidence": {}, "fix": None},
        ]

    stage = DraftStage(LocalHost(), str(file.parent), RunHistory(tmp_path / "h.sqlite3"), free, judge)
    await stage.load()
    assert [(item.line, item.check) for item in await stage.diagnose()] == [(3, "cfg.aux_ids")]
