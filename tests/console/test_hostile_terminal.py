"""Streams that are closed or speak ASCII, and arguments with escapes: a message and an exit code, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def console(*args: str, shell: str = "", **env: str) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-m", "console", *args]
    if shell:
        argv = ["sh", "-c", f'exec "$@" {shell}', "sh", *argv]
    return subprocess.run(argv, cwd=ROOT, env={**os.environ, **env}, capture_output=True, check=False)


@pytest.fixture
def log(tmp_path: Path) -> str:
    (tmp_path / "a.log").write_text("first → second\n")
    return str(tmp_path / "a.log")


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_stops_nothing(log: str, closed: str) -> None:
    done = console("tail", "--file", log, shell=closed)
    assert (done.returncode, done.stderr) == (0, b"")
    assert console("tail", "--file", "-", shell=closed + " </dev/null").returncode == 0


def test_a_terminal_that_lacks_a_letter_gets_it_written_out(log: str) -> None:
    done = console("tail", "--file", log, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, b"first \\u2192 second\n")


@pytest.mark.parametrize("args", [["check", "--\x1b]52;c;eA==\x07"], ["check", "--samples", "\x1b[31m"], ["\x1b[31m"]])
def test_an_argument_is_not_echoed_as_an_escape(args: list[str]) -> None:
    done = console(*args)
    assert done.returncode == 2
    assert b"\x1b" not in done.stderr and b"\\x1b" in done.stderr


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 20])
def test_a_run_of_endless_digits_is_a_usage_error(number: str, tmp_path: Path) -> None:
    done = console("runs", "show", number, HOME=str(tmp_path))
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_a_home_of_nobody_is_no_bug() -> None:
    done = console("tail", "--file", "~nobody-of-this-name/x")
    assert done.returncode == 3
    assert b"Traceback" not in done.stderr and b"no usable path" in done.stderr
