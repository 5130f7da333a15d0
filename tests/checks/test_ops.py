"""The checks of the host: each refuses evidence of its fault, and says UNKNOWN where a snapshot cannot decide."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.answer import answer
from checks.catalog import choose
from checks.ops.snapshot import Snapshot, read, size, span
from tests.checks.asking import ask, ask_all, draft_of

OPS = [item.id for item in choose(["ops"])]
NOW = 1_800_000_000.0
START = NOW - 7200
PID = 4242
GIB = 1 << 30
SHA, OTHER = "a" * 64, "b" * 64


def process(pid: int = PID, *argv: str, **more: Any) -> dict[str, Any]:
    words = list(argv) or ["/opt/env/bin/python3", "-m", "sglang.launch_server", "--model-path"]
    return {"pid": pid, "pgid": pid, "started": START, "argv": words, **more}


def seen(**change: Any) -> dict[str, Any]:
    """A snapshot of a server that runs well; `known__x` changes what the console knows, `health__x` the answer."""
    whole: dict[str, Any] = {
        "time": NOW,
        "server": process(),
        "port": {"port": 8000, "open": True, "hidden": False, "process": process(), "of_server": True},
        "left": [],
        "named": [process()],
        "open_gpus": [process()],
        "disks": [disk("draft"), disk("log", device=2)],
        "draft": [config(), {"name": "model.safetensors", "written": START - 500, "changed": START - 500}],
        "gpus": [gpu(0, [PID])],
        "gpu_error": "",
        "health": {
            "url": "http://127.0.0.1:8000/health",
            "status": 200,
            "outcome": "answered",
            "took": 1.0,
            "limit": 10,
        },
        "known": {
            "phase": "serving",
            "own": True,
            "note": "",
            "as_recorded": True,
            "differences": [],
            "config_sha256": SHA,
            "ready_after": 300.0,
        },
    }
    for key, value in change.items():
        part, _, name = key.partition("__")
        if name:
            whole[part] = {**whole[part], name: value}
        else:
            whole[key] = value
    return whole


def disk(name: str, **change: Any) -> dict[str, Any]:
    whole = {"name": name, "path": f"/data/{name}", "device": 1, "free": 500 * GIB, "total": 1000 * GIB}
    return {**whole, "free_files": 10**6, "total_files": 10**7, "read_only": False, **change}


def gpu(index: int, pids: list[int], used: int = 100 * GIB) -> dict[str, Any]:
    return {"index": index, "name": "NVIDIA H200", "memory_used": used, "memory_total": 139 * GIB, "pids": pids}


def config(**change: Any) -> dict[str, Any]:
    return {"name": "config.json", "written": START - 100, "changed": START - 100, "sha256": SHA, **change}


STOPPED: dict[str, Any] = {"server": None, "health": None, "known": {"phase": "stopped", "own": False}}


def said(check: str, snapshot: Any, **more: Any) -> tuple[str, str]:
    found = ask(check, snapshot=snapshot, **more)
    if found["verdict"] == "UNKNOWN":
        assert found["evidence"]["needs"], "an UNKNOWN says what would decide it"
    return found["verdict"], found["summary"]


def log_of(folder: Path, *lines: str, silent: float = 0.0) -> str:
    path = folder / "server.log"
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    os.utime(path, (time.time() - silent,) * 2)
    return str(path)


LOADING = ("[2026-11-01 10:00:00] server_args=ServerArgs(model_path='/m')", "[2026-11-01 10:00:20] Load weight begin.")
READY = (*LOADING, "[2026-11-01 10:05:00] The server is fired up and ready to roll!")


# -- the family ----------------------------------------------------------------------------------------------------


def test_a_server_that_runs_well_passes_every_check(tmp_path: Path) -> None:
    found = ask_all("ops", snapshot=seen(), log=log_of(tmp_path, *READY))
    assert [item["check"] for item in found] == OPS
    assert {item["verdict"] for item in found} == {"PASS"}


def test_a_host_where_nothing_runs_passes_every_check() -> None:
    snapshot = seen(**STOPPED, port={"port": 8000, "open": False}, gpus=[], named=[], open_gpus=[])
    assert {item["verdict"] for item in ask_all("ops", snapshot=snapshot)} == {"PASS"}


def test_files_alone_are_not_asked_about_a_host(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d")
    report = answer({"draft": str(draft)}, lambda event: None)
    assert not [item for item in report["findings"] if item["check"].startswith("ops.")]


def test_by_name_without_a_host_every_check_says_what_it_needs() -> None:
    found = ask_all("ops")
    assert [(item["check"], item["verdict"]) for item in found] == [(id, "UNKNOWN") for id in OPS]
    assert all(item["evidence"]["needs"] == ["host"] for item in found)
    assert "console check NAME" in found[0]["summary"]


@pytest.mark.parametrize("snapshot", [{"error": "python3 is missing on box"}, {}, [], "x", 7])
def test_a_host_that_could_not_be_looked_at_is_unknown(snapshot: Any) -> None:
    found = ask_all("ops", snapshot=snapshot)
    assert {item["verdict"] for item in found} == {"UNKNOWN"}
    assert "could not be looked at" in found[0]["summary"]
    if snapshot and isinstance(snapshot, dict):
        assert "python3 is missing on box" in found[0]["summary"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from([PID, START, NOW]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*seen(), "known"]), JSON | st.lists(st.dictionaries(st.text(), JSON)), max_size=12)
)
def test_whatever_a_host_sends_no_check_breaks(snapshot: dict[str, Any]) -> None:
    assert isinstance(read(snapshot), Snapshot)
    found = ask_all("ops", snapshot={**seen(), **snapshot, "x": 1})
    assert "internal" not in {item["check"] for item in found}


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["port", "health", "known", "server"]),
    st.dictionaries(
        st.sampled_from([*seen()["port"], *seen()["health"], *seen()["known"], *process()]), JSON, max_size=6
    ),
)
def test_whatever_its_parts_hold_no_check_breaks(part: str, fields: dict[str, Any]) -> None:
    found = ask_all("ops", snapshot={**seen(), part: {**seen()[part], **fields}})
    assert "internal" not in {item["check"] for item in found}


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["left", "gpus", "disks", "draft", "named", "open_gpus"]),
    st.lists(
        st.dictionaries(
            st.sampled_from([*disk(""), *gpu(0, []), *config(), *process(), "processes", "ended"]), JSON, max_size=8
        ),
        max_size=4,
    ),
)
def test_whatever_its_lists_hold_no_check_breaks(part: str, rows: list[dict[str, Any]]) -> None:
    found = ask_all("ops", snapshot={**seen(), part: rows})
    assert "internal" not in {item["check"] for item in found}


def test_sizes_and_spans_read_as_one_says_them() -> None:
    assert [size(count) for count in (0, 1536, 3 * GIB)] == ["0 bytes", "1.5 KiB", "3.0 GiB"]
    assert [span(count) for count in (-1, 90, 600, 7200, 200000)] == ["0 s", "90 s", "10 min", "2 h", "2 d"]


# -- identity --------------------------------------------------------------------------------------------------------


def running(draft: str, target: str, cwd: str = "") -> dict[str, Any]:
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", target, "--speculative-draft-model-path", draft]
    return {"argv": argv, "cwd": cwd, "pid": PID}


def test_a_server_that_serves_another_draft_fails(tmp_path: Path) -> None:
    ours, theirs, target = (tmp_path / name for name in ("ours", "theirs", "target"))
    for folder in (ours, theirs):
        draft_of(folder)
    target.mkdir()
    more = {"engine": "sglang==0.5.12", "draft": ours, "server": running(str(theirs), str(target))}
    found = ask("ops.identity", snapshot=seen(), **more)
    assert found["verdict"] == "FAIL"
    assert found["evidence"]["draft"] == {"deployment": str(ours), "running": str(theirs)}
    assert said("ops.stale_draft", seen(draft=[config(written=NOW - 5)]), **more)[0] == "INFO"


@pytest.mark.parametrize("spelt", ["{}", "{}/", "{}/../draft", "draft", "link"])
def test_one_draft_by_several_paths_is_one(tmp_path: Path, spelt: str) -> None:
    draft = draft_of(tmp_path / "draft")
    (tmp_path / "link").symlink_to(draft)
    server = running(spelt.format(draft), "org/target", cwd=str(tmp_path))
    verdict, _ = said("ops.identity", seen(), engine="sglang==0.5.12", draft=draft, server=server)
    assert verdict == "PASS"


def test_a_path_that_is_not_here_proves_nothing(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "draft")
    server = running("/inside/the/container/draft", "")
    verdict, words = said("ops.identity", seen(), engine="sglang==0.5.12", draft=draft, server=server)
    assert verdict == "UNKNOWN"
    assert "/inside/the/container/draft" in words


def test_other_flags_are_told_and_another_command_line_warns() -> None:
    rows = [{"key": "speculative-num-steps", "planned": "3", "running": "5"}]
    verdict, words = said("ops.identity", seen(known__differences=rows))
    assert (verdict, "speculative-num-steps" in words) == ("INFO", True)
    assert said("ops.identity", seen(known__as_recorded=False))[0] == "WARN"


# -- port and leftovers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ({"port__process": process(77, "nginx"), "port__of_server": False}, "FAIL", "process 77 (`nginx`) listens"),
        ({"port__process": process(77), "port__of_server": True}, "PASS", "the server listens"),
        ({"port__process": None, "port__open": False}, "INFO", "does not listen on port 8000 yet"),
        ({"port__process": None, "port__hidden": True}, "UNKNOWN", "cannot see"),
        ({"port": {}}, "UNKNOWN", "not looked at"),
        ({**STOPPED, "port__process": process(77, "nginx")}, "WARN", "held by process 77 (`nginx`)"),
    ],
)
def test_who_has_the_port(change: dict[str, Any], verdict: str, words: str) -> None:
    found = said("ops.port", seen(**change))
    assert found[0] == verdict
    assert words in found[1]


def left(*processes: dict[str, Any], ended: float | None = NOW - 3600) -> list[dict[str, Any]]:
    return [{"record": "/s/1.json", "pid": 900, "port": 8000, "ended": ended, "processes": list(processes)}]


ORPHAN = process(901, "sglang::scheduler_TP0", proven=True)


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ({"left": left(ORPHAN)}, "WARN", "1 process of server 900, which ended 60 min ago, still run: 901"),
        ({"left": left(ORPHAN), "gpus": [gpu(0, [901])]}, "FAIL", "still hold a GPU"),
        ({"left": left(ORPHAN), "open_gpus": [process(901)]}, "FAIL", "still hold a GPU"),
        ({"left": left(ORPHAN, process(902)), "port__process": process(902)}, "FAIL", "still hold port 8000"),
        ({"left": left(ORPHAN, ended=None)}, "WARN", "which has ended"),
        ({"left": left(ORPHAN, ended=NOW - 5)}, "INFO", "may still be ending"),
        ({"left": left(process(901))}, "UNKNOWN", "not proven"),
        ({"left": left()}, "PASS", "no process"),
    ],
)
def test_what_an_ended_server_left_behind(change: dict[str, Any], verdict: str, words: str) -> None:
    found = said("ops.stop", seen(**change))
    assert found[0] == verdict
    assert words in found[1]


# -- GPUs and disks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pids", [[], [31337]])
def test_memory_without_a_visible_process_is_held_outside_and_never_free(pids: list[int]) -> None:
    verdict, words = said("ops.gpu_holders", seen(**STOPPED, gpus=[gpu(0, pids)], named=[], open_gpus=[]))
    assert verdict == "UNKNOWN"
    assert "100.0 GiB of GPU 0 held outside this namespace" in words
    assert "it is not free" in words


def test_a_stranger_that_has_a_gpu_open_does_not_explain_its_memory() -> None:
    monitor = [process(55, "dcgm-exporter")]
    assert said("ops.gpu_holders", seen(gpus=[gpu(0, [])], named=[], open_gpus=monitor))[0] == "UNKNOWN"


def test_the_servers_own_memory_in_a_container_is_no_alarm() -> None:
    worker = [process(4300, pgid=PID)]
    verdict, words = said("ops.gpu_holders", seen(gpus=[gpu(0, [])], named=[], open_gpus=worker))
    assert (verdict, "at least part of it" in words) == ("INFO", True)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"gpus": []}, "PASS"),
        ({"gpus": [gpu(0, [], used=700 << 20)]}, "PASS"),
        ({"gpus": [{"index": 0, "memory_used": None, "pids": []}]}, "PASS"),
        ({"gpus": [], "gpu_error": "no driver"}, "INFO"),
    ],
)
def test_gpus_that_hold_nothing_are_no_alarm(change: dict[str, Any], verdict: str) -> None:
    assert said("ops.gpu_holders", seen(**change))[0] == verdict


@pytest.mark.parametrize(
    ("disks", "verdict", "words"),
    [
        ([disk("draft", free=0)], "FAIL", "nothing more can be written where draft lies"),
        ([disk("log", free_files=0)], "FAIL", "no file more can be written"),
        ([disk("draft", free=GIB), disk("log", free=GIB)], "WARN", "1.0 GiB of 1000.0 GiB left where draft, log lie"),
        ([disk("cache 1", free=0)], "WARN", "cache 1"),
        ([disk("cache 1", free=GIB)], "PASS", "left"),
        ([disk("log", free=GIB, total=2 * GIB)], "PASS", "left"),
        ([disk("draft", free=0, read_only=True)], "PASS", "no disk"),
        ([disk("draft", free=0, total=0)], "PASS", "no disk"),
        ([disk("draft", free_files=0, total_files=0)], "PASS", "left"),
    ],
)
def test_how_full_the_disks_are(disks: list[dict[str, Any]], verdict: str, words: str) -> None:
    found = said("ops.disk", seen(disks=disks))
    assert found[0] == verdict
    assert words in found[1]


# -- health and loading ----------------------------------------------------------------------------------------------

UNWELL: dict[str, Any] = {"health__status": 503}
MUTE: dict[str, Any] = {"health__status": 0, "health__outcome": "timed out"}
DEAF: dict[str, Any] = {"health__status": 0, "health__outcome": "refused", "port__open": False, "port__process": None}
PROBED = '[2026-11-01 11:05:00] INFO:     127.0.0.1:5 - "GET /health HTTP/1.1" 503 Service Unavailable'


@pytest.mark.parametrize("health", [UNWELL, MUTE, DEAF])
def test_no_answer_while_it_loads_is_no_failure(tmp_path: Path, health: dict[str, Any]) -> None:
    snapshot = seen(**health, known__ready_after=None)
    log = log_of(tmp_path, *LOADING, silent=3600)
    verdict, words = said("ops.health", snapshot, log=log)
    assert (verdict, "loading is no failure" in words) == ("INFO", True)
    assert said("ops.load_phase", snapshot, log=log)[0] == "INFO"


@pytest.mark.parametrize(
    ("health", "silent", "verdict"),
    [
        (DEAF, 1, "WARN"),
        (UNWELL, 1, "UNKNOWN"),
        (MUTE, 1, "UNKNOWN"),
        (UNWELL, 900, "WARN"),
        (MUTE, 900, "WARN"),
        ({"health__status": 404}, 900, "UNKNOWN"),
        ({}, 90000, "PASS"),
    ],
)
def test_a_server_that_was_ready_is_ill_only_by_evidence(
    tmp_path: Path, health: dict[str, Any], silent: float, verdict: str
) -> None:
    log = log_of(tmp_path, *READY, silent=silent)
    assert said("ops.health", seen(**health), log=log)[0] == verdict
    assert said("ops.load_phase", seen(**health), log=log)[0] == "PASS"


def test_a_log_that_tells_only_of_probes_is_silent(tmp_path: Path) -> None:
    assert said("ops.health", seen(**UNWELL), log=log_of(tmp_path, *READY, PROBED))[0] == "WARN"
    assert said("ops.health", seen(**UNWELL), log=log_of(tmp_path, *READY))[0] == "UNKNOWN"


def test_an_ended_server_is_told_with_what_is_known_of_its_end() -> None:
    known = {"phase": "crashed", "own": False, "note": "process 9 ended with code -9"}
    assert said("ops.health", seen(**{**STOPPED, "known": known})) == ("INFO", "process 9 ended with code -9")


def test_two_hours_of_silence_warn_while_it_loads(tmp_path: Path) -> None:
    snapshot = seen(**UNWELL, known__ready_after=None)
    assert said("ops.load_phase", snapshot, log=log_of(tmp_path, *LOADING, silent=7300))[0] == "WARN"
    assert said("ops.load_phase", snapshot, log=log_of(tmp_path, *LOADING, silent=7000))[0] == "INFO"


# -- the draft on disk -----------------------------------------------------------------------------------------------


def stale(known: dict[str, Any] | None = None, log: str = "", **change: Any) -> tuple[str, str]:
    more = {f"known__{name}": value for name, value in (known or {}).items()}
    return said("ops.stale_draft", seen(**more, draft=[config(**change)]), log=log)


def test_a_config_that_changed_under_the_server_fails_with_both_times() -> None:
    found = ask("ops.stale_draft", snapshot=seen(draft=[config(written=NOW - 60, changed=NOW - 60, sha256=OTHER)]))
    assert found["verdict"] == "FAIL"
    assert "119 min after the server started" in found["summary"]
    evidence = found["evidence"]
    assert evidence["config_sha256"] == {"at_start": SHA, "now": OTHER}
    assert evidence["server_started"] and evidence["server_ready"] and evidence["written"]["config.json"]


UNNOTED = {"config_sha256": None, "ready_after": None}


@pytest.mark.parametrize(
    ("known", "change", "verdict"),
    [
        ({}, {"written": NOW - 60, "changed": NOW - 60}, "PASS"),
        ({}, {"sha256": OTHER, "changed": NOW - 60}, "FAIL"),
        ({}, {"sha256": OTHER, "written": START + 100, "changed": START + 100}, "UNKNOWN"),
        ({"config_sha256": None}, {"written": NOW - 60}, "WARN"),
        ({"config_sha256": None}, {"written": START + 100}, "UNKNOWN"),
        (UNNOTED, {"written": NOW - 60}, "UNKNOWN"),
        (UNNOTED, {"written": START + 1}, "PASS"),
        (UNNOTED, {"written": START + 8000}, "WARN"),
        ({}, {"sha256": "", "written": NOW - 60}, "WARN"),
    ],
)
def test_times_and_contents_decide_whether_a_draft_is_stale(
    known: dict[str, Any], change: dict[str, Any], verdict: str
) -> None:
    assert stale(known, **change)[0] == verdict


def test_the_log_tells_when_a_server_was_ready_that_nobody_noted(tmp_path: Path) -> None:
    written = time.time() - 600
    last = "[2026-11-01 11:05:00] Decode batch, #running-req: 1, #token: 5, token usage: 0.00, accept len: 2.00"
    log = log_of(tmp_path, *READY, last)
    server = process(started=written - 7200)
    later = seen(server=server, known__config_sha256=None, known__ready_after=None, draft=[config(written=written)])
    assert said("ops.stale_draft", later, log=log)[0] == "WARN"
    while_loading = [config(written=time.time() - 3700)]
    assert said("ops.stale_draft", {**later, "draft": while_loading}, log=log)[0] == "UNKNOWN"


def test_weights_that_training_overwrites_warn() -> None:
    rows = [config(), {"name": "model.safetensors", "written": NOW - 60, "changed": NOW - 60}]
    verdict, words = said("ops.stale_draft", seen(draft=rows))
    assert (verdict, words.startswith("model.safetensors was written")) == ("WARN", True)


def test_without_files_or_times_nothing_is_said_of_the_draft() -> None:
    assert said("ops.stale_draft", seen(draft=[]))[0] == "INFO"
    assert said("ops.stale_draft", seen(server={"pid": PID}))[0] == "INFO"
