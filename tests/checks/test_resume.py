"""`--samples all` takes long: an interrupted walk goes on where it was, and only what still holds is believed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checks
from checks.answer import answer
from checks.caches import open_cache
from checks.data.kept import FOLDER, Kept
from checks.data.seen import Fault, Seen, Turn
from checks.distance import MIN_COMMON, readable, same_texts
from tests.checks import pair
from tests.checks.files import bf16, sample, write_tensors
from tests.checks.formats import Format, every, texts

FILES, ROWS = 240, 600
"""Far more than is read before a signal arrives."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a host on which nothing was left."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Enough files to be interrupted among, one of them without a number in a row."""
    for index in range(FILES):
        held = sample(rows=ROWS, hidden=32, seed=index)
        held["loss_mask"] = np.repeat([0, 1], ROWS // 2).astype(np.int64)
        if index == 1:
            held["hidden_states"][7, 2] = bf16(np.array(np.nan))
        write_tensors(tmp_path / "cache" / f"hs_{index}.safetensors", held)
    return tmp_path / "cache"


def left() -> list[Path]:
    return sorted(FOLDER.expanduser().glob("*"))


def request(cache: Path) -> dict[str, Any]:
    return {"caches": [{"path": str(cache)}], "only": ["data"], "samples": 0}


def facts(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings without what differs from run to run."""
    out = []
    for finding in report["findings"]:
        evidence = {key: value for key, value in finding["evidence"].items() if key != "read_before_interruption"}
        out.append({**finding, "evidence": evidence, "took_s": 0})
    return out


def told(report: dict[str, Any]) -> int:
    """How many samples the report says an earlier run had read."""
    found = {
        item["evidence"].get("read_before_interruption", 0) for item in report["findings"] if "rows" in item["evidence"]
    }
    (number,) = found
    return int(number)


def interrupted(cache: Path, stop: Callable[[subprocess.Popen[bytes]], None], lines: int = 6) -> tuple[int, int]:
    """A run of its own that is stopped once it has written down some samples: (exit code, samples written down)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "checks"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(checks.__file__).parents[1])},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(request(cache)).encode())
    process.stdin.close()
    while not left() or left()[0].read_bytes().count(b"\n") < lines:
        assert process.poll() is None, "it had ended before it could be interrupted"
        time.sleep(0.002)
    stop(process)
    code = process.wait()
    (file,) = left()
    return code, file.read_bytes().count(b"\n")


def ctrl_c(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)


def hang_up(process: subprocess.Popen[bytes]) -> None:
    """What the supervisor on the host does to it when the link is lost."""
    process.kill()


@pytest.mark.parametrize(("stop", "code"), [(ctrl_c, 130), (hang_up, -9)])
def test_an_interrupted_walk_goes_on_and_says_the_same(
    home: Path, cache: Path, stop: Callable[[subprocess.Popen[bytes]], None], code: int
) -> None:
    ended, first = interrupted(cache, stop)
    assert ended == code
    assert 6 <= first < FILES
    # Interrupted once more, it has both parts.
    ended, second = interrupted(cache, stop, lines=first + 5)
    assert ended == code
    assert first < second < FILES
    steps: list[dict[str, Any]] = []
    report = answer(request(cache), steps.append)
    assert told(report) == second
    notes = [step["note"] for step in steps if step["event"] == "progress"]
    assert any(f"({second} read before the interruption)" in note for note in notes)
    assert left() == [], "a run that ended leaves nothing to continue"
    whole = answer(request(cache), steps.append)
    assert told(whole) == 0
    assert facts(report) == facts(whole)
    assert [item["verdict"] for item in whole["findings"] if item["check"] == "data.finite"] == ["FAIL"]


def test_files_that_were_changed_since_are_read_again(home: Path, cache: Path) -> None:
    _, kept = interrupted(cache, hang_up)
    names = [json.loads(line)[0] for line in left()[0].read_text().splitlines()]
    assert "hs_1.safetensors" in names
    write_tensors(cache / "hs_1.safetensors", sample(rows=ROWS, hidden=32, seed=1))
    times = (cache / "hs_2.safetensors").stat()
    os.utime(cache / "hs_2.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    (cache / "hs_3.safetensors").write_bytes((cache / "hs_3.safetensors").read_bytes()[:-9])
    report = answer(request(cache), lambda event: None)
    assert told(report) == kept - 3
    verdicts = {item["check"]: item["verdict"] for item in report["findings"]}
    assert (verdicts["data.finite"], verdicts["data.files"]) == ("PASS", "FAIL")


def test_what_is_cut_off_or_not_ours_is_not_believed(home: Path, cache: Path) -> None:
    _, kept = interrupted(cache, hang_up)
    (file,) = left()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:-7])
    assert len(Kept(open_cache(cache))) == 3
    assert file.read_bytes() == b"".join(lines[:3]), "the cut line is gone, so that the next one stands alone"
    for strange in (
        b"[]\n",
        b'["x", 1, 2, {"rows": {}}]\n',
        b'["x", 1, 2, {"__class__": 3}]\n',
        b"\xff\n",
        b"[" * 9000,
    ):
        file.write_bytes(b"".join(lines[:2]) + strange + lines[2])
        assert len(Kept(open_cache(cache))) == 2, strange
    assert kept > 3


def test_another_cache_or_another_side_file_is_another_walk(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    for index in range(3):
        write_tensors(folder / f"hs_{index}.safetensors", sample(seed=index))

    def known(layout: str = "") -> int:
        return len(Kept(open_cache(folder), layout))

    walk = Kept(open_cache(folder))
    walk.add(Seen("hs_0.safetensors"), (1, 2))
    assert known() == 1
    assert known("custom: ids=token_ids, slots=hidden_states") == 0
    (folder / "server.log").write_text("grows while the cache is read\n")
    assert known() == 1
    (folder / "data_config.json").write_text("{}")
    assert known() == 0
    (tmp_path / "state.json").write_text("{}")
    assert known() == 0


def test_a_home_that_takes_no_file_stops_nothing(home: Path, cache: Path) -> None:
    home.write_text("a file where the folder should be")
    report = answer(request(cache), lambda event: None)
    (finite,) = [item for item in report["findings"] if item["check"] == "data.finite"]
    assert finite["verdict"] == "FAIL"
    assert "cannot be continued when it is interrupted" in finite["evidence"]["note"]


def test_only_a_walk_over_everything_is_kept(home: Path, cache: Path) -> None:
    answer({**request(cache), "samples": 2}, lambda event: None)
    assert not home.exists()


def test_old_leavings_are_cleared(home: Path, tmp_path: Path) -> None:
    write_tensors(tmp_path / "c" / "hs_0.safetensors", sample())
    folder = FOLDER.expanduser()
    folder.mkdir(parents=True)
    (folder / "old.jsonl").write_text("")
    os.utime(folder / "old.jsonl", (0, 0))
    Kept(open_cache(tmp_path / "c"))
    assert [path.name for path in left()] != ["old.jsonl"]
    assert len(left()) == 1
    assert left()[0].stat().st_mode & 0o777 == 0o600


def test_all_that_was_seen_comes_back(home: Path, tmp_path: Path) -> None:
    write_tensors(tmp_path / "c" / "hs_0.safetensors", sample())
    cache = open_cache(tmp_path / "c")
    seen = Seen(
        "a\x1b[31m\u2028b", "shape", "why", "what", 9, 2**64 - 1, (0, -3), (4, 2**40), (7, 2, 1), 9, 4, (0, 1),
        (Turn("a\x1b[31m\u2028b", np.array([3, 4, 5]), 1, 1),), "slipped", True, 9, "BF16",
        [Fault("slot 0", 2, 1, "nan")], [Fault("final", 1, 0)], [], [Fault("slot 1", 0, 0, "odd")], [],
    )  # fmt: skip
    Kept(cache).add(seen, (5, 6))
    again = Kept(cache)
    assert len(again) == 1
    found = again._known[seen.name][1]
    assert found.turns[0].ids.tolist() == [3, 4, 5]
    assert repr(found) == repr(seen)


@pytest.mark.parametrize("format", every(lambda item: item.slots > 0))
def test_every_layout_is_kept_and_comes_back(home: Path, tmp_path: Path, format: Format) -> None:
    folder = format.build(tmp_path / "cache", texts(4, rows=24))
    asked = {**request(folder), "target": str(pair.TARGET)}
    whole = answer(asked, lambda event: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kept, "drop", lambda self: None)
        answer(asked, lambda event: None)
    again = answer(asked, lambda event: None)
    assert told(again) == 4
    assert facts(again) == facts(whole)


def test_all_samples_are_never_in_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the ids of texts that were not captured, nor more texts than a replay can hold."""
    folder = pair.write_cache(tmp_path / "cache", pair.STATES, texts=tuple(range(8)))
    samples = open_cache(folder).samples(0, 0)
    kept, _ = readable(samples, {np.asarray(pair.text(3)[:MIN_COMMON]).tobytes()})
    assert [pair.text(3).tolist()] == [ids.tolist() for ids in kept.values()]
    assert readable(samples, set()) == ({}, {})
    captured = pair.capture(tmp_path / "all", texts=(3, 5))
    assert {text.index for text in same_texts(samples, captured.samples)} == {3, 5}
    monkeypatch.setattr("checks.stretches.MOST", 3)
    case = pair.Case(pair.DRAFT, folder, samples=0)
    found = case.run("replay.accuracy")[0]
    assert found.evidence["samples"] == 3
