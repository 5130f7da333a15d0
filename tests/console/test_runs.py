"""The history keeps what happened, masked, and survives being opened twice."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from console.errors import NotRun
from console.masking import MASK
from console.runs import READY, RunHistory, sha_of


async def begun(history: RunHistory, **values: object) -> int:
    run = await history.begin("box", "gpu", "by hand", ["python", "--api-key", "s3cret"], {"HF_TOKEN": "s3cret"})
    if values:
        await history.update(run.id, **values)
    return run.id


async def test_a_run_is_kept_without_its_secrets(tmp_path: Path) -> None:
    file = tmp_path / "state" / "history.sqlite3"
    history = RunHistory(file)
    number = await begun(history)
    run = await history.get(number)
    assert run is not None
    assert run.argv == ("python", "--api-key", MASK)
    assert run.env == {"HF_TOKEN": MASK}
    await history.close()
    assert b"s3cret" not in b"".join(part.read_bytes() for part in file.parent.iterdir())
    assert file.stat().st_mode & 0o077 == 0


async def test_two_consoles_see_one_history(tmp_path: Path) -> None:
    one, two = RunHistory(tmp_path / "h.sqlite3"), RunHistory(tmp_path / "h.sqlite3")
    first = await begun(one)
    second = await begun(two)
    assert [run.id for run in await one.list("box")] == [second, first]
    assert await one.list("other") == []


async def test_the_last_good_run_is_one_that_served_and_did_not_fail(tmp_path: Path) -> None:
    history = RunHistory(tmp_path / "h.sqlite3")
    good = await begun(history, state=READY, ready=1.0, windows=4, accept_len=4.2, verdict="PASS")
    await begun(history, state=READY, ready=1.0, windows=4, accept_len=1.6, verdict="FAIL")
    await begun(history, state="failed")
    await begun(history, state=READY, ready=1.0)
    found = await history.last_good("box")
    assert found is not None
    assert found.id == good


async def test_the_running_one_is_found_by_its_process(tmp_path: Path) -> None:
    history = RunHistory(tmp_path / "h.sqlite3")
    await begun(history, pid=7, ended=2.0)
    number = await begun(history, pid=7)
    run = await history.current("box", 7)
    assert run is not None
    assert run.id == number
    assert await history.current("box", 8) is None


async def test_a_version_is_kept_once_until_it_changes(tmp_path: Path) -> None:
    history = RunHistory(tmp_path / "h.sqlite3")
    for text in ("a", "a", "b", "a"):
        await history.keep_version("gpu", "/d/config.json", text, "console", "test")
    assert [version.sha for version in await history.versions("gpu", "/d/config.json")] == [sha_of(t) for t in "aba"]
    assert await history.versions("gpu", "/other") == []


async def test_a_newer_history_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite3"
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(NotRun, match="newer console"):
        await RunHistory(file).list()


async def test_a_file_that_is_no_database_says_so(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite3"
    file.write_text("not a database, and long enough to be read as one" * 30, "utf-8")
    with pytest.raises(NotRun, match="cannot be used"):
        await RunHistory(file).list()
