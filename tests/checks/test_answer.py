"""The answer to a request: the report's form, its events, and what a missing or wrong input does to it."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from checks import catalog
from checks.answer import _Progress, answer
from checks.caches import Cache
from checks.errors import BadTensors, NoSuchCheck, NotRunnable
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict, overall, plain
from checks.request import Request
from tests.checks.files import CONFIG, write_cache, write_draft, write_target

SCHEMA = json.loads((Path(__file__).parent / "report.schema.json").read_text("utf-8"))
BASICS = ["cfg.aux_ids", "ckpt.shapes", "ckpt.vocab_map"]


def run(**request: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(report, events), the report held to the schema and to JSON."""
    events: list[dict[str, Any]] = []
    report = answer(request, events.append)
    jsonschema.validate(json.loads(json.dumps(report, allow_nan=False)), SCHEMA)
    return report, events


def test_the_schema_is_one_and_refuses_what_is_not_a_report() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    report, _ = run(only=["cfg.aux_ids"])
    for change in ({"verdict": "BAD"}, {"more": 1}, {"summary": {}}, {"findings": [{"check": "x"}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**report, **change}, SCHEMA)


def test_a_report_says_what_it_looked_at(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d")
    cache = write_cache(tmp_path / "c")
    target = write_target(tmp_path / "t")
    report, _ = run(
        draft=str(draft),
        target=str(target),
        caches=[{"path": str(cache)}],
        samples=3,
        seed=7,
        only=BASICS,
        host="gpu-box",
        console="1.2.3",
    )
    assert report["inputs"] == {
        "draft": str(draft),
        "config_sha256": hashlib.sha256((draft / "config.json").read_bytes()).hexdigest(),
        "target": str(target),
        "parent": None,
        "cache": [{"path": str(cache), "layout": "speculators", "files": 5, "sampled": 3, "seed": 7}],
        "capture": [],
        "log": None,
    }
    assert (report["schema"], report["console"], report["host"]) == (1, "1.2.3", "gpu-box")
    assert report["verdict"] == "PASS"
    assert report["summary"] == {"PASS": 3, "INFO": 0, "WARN": 0, "FAIL": 0, "UNKNOWN": 0}


def test_events_come_as_things_happen_and_the_findings_are_those_of_the_report(tmp_path: Path) -> None:
    report, events = run(draft=str(write_draft(tmp_path / "d")), only=BASICS)
    assert [item["finding"] for item in events if item["event"] == "finding"] == report["findings"]
    progress = [item for item in events if item["event"] == "progress"]
    assert [item["check"] for item in progress] == [item.id for item in catalog.choose(BASICS)]
    assert set(progress[0]) == {"event", "check", "done", "total", "note"}


def test_progress_is_thinned_but_its_first_and_last_step_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("checks.answer.time.monotonic", lambda: now[0])
    events: list[dict[str, Any]] = []
    progress = _Progress(events.append)
    for done in range(1001):
        progress("replay.accuracy", done, 1000, "")
        now[0] += 0.001
    progress("log.accept", 0, 0, "")
    steps = [item["done"] for item in events]
    assert steps[0] == 0
    assert steps[-2:] == [1000, 0]
    assert len(steps) <= 13


def test_with_nothing_given_every_check_is_unknown_once() -> None:
    report, _ = run()
    ids = [item.id for item in catalog.choose(host=False)]
    assert {item.id for item in catalog.all_checks()} - set(ids) == {item.id for item in catalog.choose(["ops"])}
    assert [item["check"] for item in report["findings"]] == ids
    assert report["summary"]["UNKNOWN"] == len(ids)
    assert report["verdict"] == "UNKNOWN"
    assert all(item["evidence"]["needs"] for item in report["findings"])


@pytest.mark.parametrize("key", ["draft", "target", "log", "parent", "engine_source"])
def test_a_path_that_is_not_there_ends_the_run(tmp_path: Path, key: str) -> None:
    with pytest.raises(NotRunnable, match=r"nowhere.*no such file or folder"):
        run(**{key: str(tmp_path / "nowhere")})


@pytest.mark.parametrize("key", ["caches", "captures"])
def test_a_folder_that_is_not_there_ends_the_run(tmp_path: Path, key: str) -> None:
    path = str(tmp_path / "nowhere")
    with pytest.raises(NotRunnable, match="nowhere"):
        run(**{key: [{"path": path}] if key == "caches" else [path]})


def test_a_folder_that_holds_no_draft_or_target_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(NotRunnable, match="name the checkpoint's folder"):
        run(draft=str(tmp_path), only=["ckpt"])
    with pytest.raises(NotRunnable, match=r"no config\.json in it"):
        run(target=str(tmp_path), only=["ckpt"])


def test_a_config_that_may_not_be_read_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = write_draft(tmp_path / "d")
    opened = Path.open

    def refuse(self: Path, *args: Any, **more: Any) -> Any:
        if self.name == "config.json":
            raise PermissionError(13, "Permission denied")
        return opened(self, *args, **more)

    # Tests may run as root, whom no mode keeps out.
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(NotRunnable, match="not permitted to read it"):
        run(draft=str(draft), only=["ckpt"])


def test_a_draft_may_be_one_file(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d")
    for file in ("config.json", "model.safetensors"):
        report, _ = run(draft=str(draft / file), only=BASICS)
        assert report["verdict"] == "PASS"
    alone = tmp_path / "draft-config.json"
    alone.write_text(json.dumps(CONFIG))
    report, _ = run(draft=str(alone), only=BASICS)
    assert [item["verdict"] for item in report["findings"]] == ["PASS", "UNKNOWN", "UNKNOWN"]
    bare = tmp_path / "weights.safetensors"
    bare.write_bytes((draft / "model.safetensors").read_bytes())
    report, _ = run(draft=str(bare), only=BASICS)
    assert {item["verdict"] for item in report["findings"]} == {"UNKNOWN"}
    assert report["inputs"]["config_sha256"] is None


def test_a_cache_that_cannot_be_recognised_leaves_the_rest_standing(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    report, _ = run(draft=str(write_draft(tmp_path / "d")), caches=[{"path": str(tmp_path / "c")}])
    by_check = {item["check"]: item for item in report["findings"]}
    assert by_check["ckpt.shapes"]["verdict"] == "PASS"
    assert by_check["align.embedding"]["verdict"] == "UNKNOWN"
    assert "see data.layout" in by_check["align.embedding"]["summary"]
    assert report["inputs"]["cache"][0]["layout"] is None


def test_a_folder_above_the_draft_names_the_checkpoint_below_it(tmp_path: Path) -> None:
    write_draft(tmp_path / "runs" / "epoch_9")
    with pytest.raises(NotRunnable, match=r"the checkpoint is below it: name \S+/runs/epoch_9$"):
        run(draft=str(tmp_path / "runs"))
    write_draft(tmp_path / "runs" / "epoch_10")
    with pytest.raises(NotRunnable, match=r"name \S+/runs/epoch_10, one of 2 in it$"):
        run(draft=str(tmp_path / "runs"))
    write_draft(tmp_path / "hub" / "snapshots" / "0f3c")
    with pytest.raises(NotRunnable, match=r"name \S+/hub/snapshots/0f3c$"):
        run(draft=str(tmp_path / "hub"))


def test_pickled_weights_alone_are_named_with_the_way_out(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d", tensors={})
    for file in draft.glob("*.safetensors"):
        file.unlink()
    (draft / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    report, _ = run(draft=str(draft), only=["ckpt.names", "cfg.aux_ids"])
    by_check = {item["check"]: item for item in report["findings"]}
    assert by_check["cfg.aux_ids"]["verdict"] == "PASS"
    assert by_check["ckpt.names"]["verdict"] == "UNKNOWN"
    assert "pytorch_model.bin beside it is a pickle" in by_check["ckpt.names"]["summary"]
    assert "safetensors.torch.save_file" in by_check["ckpt.names"]["summary"]
    (draft / "config.json").unlink()
    with pytest.raises(NotRunnable, match=r"pytorch_model\.bin alone is no checkpoint: put the config\.json"):
        run(draft=str(draft))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cfg.aux_id", "cfg.aux_ids"),
        ("vocab_map", "ckpt.vocab_map"),
        ("cfg.vocab_map", "ckpt.vocab_map"),
        ("allign", "align"),
        ("zzz", "known are"),
    ],
)
def test_an_unknown_check_names_the_nearest(name: str, near: str) -> None:
    for key in ("only", "skip"):
        with pytest.raises(NoSuchCheck, match=near):
            run(**{key: [name]})


def test_checks_are_chosen_by_id_and_by_family() -> None:
    def chosen(**more: Any) -> list[str]:
        return [item["check"] for item in run(**more)[0]["findings"]]

    assert chosen(only=["ckpt.shapes"]) == ["ckpt.shapes"]
    both = [item.id for item in catalog.all_checks() if item.id.startswith(("cfg.", "ckpt."))]
    assert chosen(only=["ckpt", "cfg"], skip=["ckpt.shapes"]) == [id for id in both if id != "ckpt.shapes"]


@pytest.mark.parametrize(
    "request_",
    [{"drafft": "x"}, {"schema": 2}, {"caches": [3]}, {"caches": [{"paths": "x"}]}, {"server": {"port": 1}}],
    ids=str,
)
def test_a_request_of_another_form_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(NotRunnable):
        run(**request_)


def test_a_request_survives_its_json() -> None:
    request = Request.from_json(
        {"draft": "d", "caches": [{"path": "c", "states": [1, 2]}], "server": {"argv": ["a"]}, "env": {"A": "1"}}
    )
    assert Request.from_json(json.loads(json.dumps(request.as_json()))) == request


def test_a_check_that_raises_is_internal_and_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(evidence: Evidence) -> list[Finding]:
        raise ZeroDivisionError("oops")

    first = catalog.find("cfg.aux_ids")
    monkeypatch.setitem(catalog._REGISTRY, first.id, catalog.Check(first.id, broken, first.needs))
    report, _ = run(draft=str(write_draft(tmp_path / "d")), only=BASICS)
    assert [item["check"] for item in report["findings"]] == [
        "internal",
        *(item.id for item in catalog.choose(BASICS, ["cfg.aux_ids"])),
    ]
    assert "cfg.aux_ids stopped with ZeroDivisionError: oops" in report["findings"][0]["summary"]


def test_a_failure_to_open_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []

    def refuse(*given: object, **more: object) -> Cache:
        looked.append(given)
        raise BadTensors("broken")

    monkeypatch.setattr("checks.evidence.open_cache", refuse)
    evidence = Evidence(Request.from_json({"caches": [{"path": str(tmp_path)}]}))
    for _ in range(3):
        with pytest.raises(BadTensors):
            evidence.missing(Need.CACHE)
    assert len(looked) == 1


def test_every_check_has_a_page_that_says_what_it_means_and_what_to_do() -> None:
    for item in catalog.all_checks():
        assert item.id.split(".")[0] in catalog.FAMILIES
        first, _, rest = item.page.partition("\n\n")
        assert first.endswith("."), item.id
        assert len(rest) > 200, item.id


def test_evidence_becomes_plain_json() -> None:
    raw = {
        "scalar": np.float32(1.5),
        "array": np.arange(3),
        "nan": math.nan,
        "inf": np.float64("inf"),
        "path": Path("/x"),
        "verdict": Verdict.FAIL,
        1: (True, None),
    }
    assert json.loads(json.dumps(plain(raw), allow_nan=False)) == {
        "scalar": 1.5,
        "array": [0, 1, 2],
        "nan": None,
        "inf": None,
        "path": os.fspath(Path("/x")),
        "verdict": "FAIL",
        "1": [True, None],
    }


def test_the_worst_verdict_is_the_verdict_of_all() -> None:
    assert overall([]) is Verdict.PASS
    assert overall([Verdict.INFO, Verdict.PASS]) is Verdict.PASS
    assert overall([Verdict.PASS, Verdict.UNKNOWN]) is Verdict.UNKNOWN
    assert overall([Verdict.UNKNOWN, Verdict.WARN]) is Verdict.WARN
    assert overall([Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN]) is Verdict.FAIL
