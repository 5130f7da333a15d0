"""What is loaded when: the start of a command must not pay for what it does not use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.repo import rules

if TYPE_CHECKING:
    from pathlib import Path

# Written into a sitecustomize.py: every python process started below, children included, leaves its module names here.
RECORDER = """
import atexit, json, os, sys
def record(write=os.write, flags=os.O_WRONLY | os.O_CREAT):
    names = sorted({name.partition(".")[0] for name in sys.modules} | {n for n in sys.modules if n.count(".") == 1})
    handle = os.open(os.path.join(os.environ["MODULES_OF"], str(os.getpid())), flags)
    write(handle, json.dumps({"argv": sys.argv, "modules": names}).encode())
    os.close(handle)
atexit.register(record)
"""


class Ran(NamedTuple):
    """One command: how it ended, and what each of its python processes had loaded at its end."""

    code: int
    output: str
    processes: list[set[str]]

    @property
    def loaded(self) -> set[str]:
        return set().union(*self.processes)


def run(tmp_path: Path, *arguments: str) -> Ran:
    hooks, records = tmp_path / "hooks", tmp_path / "modules"
    hooks.mkdir()
    records.mkdir()
    (hooks / "sitecustomize.py").write_text(RECORDER, "utf-8")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(hooks), str(rules.ROOT)]),
        "MODULES_OF": str(records),
    }
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    processes = [set(json.loads(record.read_text("utf-8"))["modules"]) for record in records.iterdir()]
    return Ran(done.returncode, done.stdout + done.stderr, processes)


def test_the_recorder_sees_children_too(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import asyncssh'], check=True)"
    ran = run(tmp_path, "-c", child)
    assert ran.code == 0, ran.output
    assert len(ran.processes) == 2
    assert "asyncssh" in ran.loaded


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import checks", {"textual", "torch", "asyncssh", "console", "remote", "safetensors", "numpy"}),
        ("import checks.catalog", {"textual", "torch", "asyncssh", "console", "remote", "safetensors"}),
        ("import remote", {"textual", "torch", "numpy", "console", "checks"}),
        ("import remote.host", {"textual", "torch", "numpy", "console", "checks"}),
        ("import console", {"textual", "torch", "numpy", "asyncssh"}),
        ("import console.session", {"textual", "torch"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_package_brings_only_its_own(tmp_path: Path, statement: str, absent: set[str]) -> None:
    ran = run(tmp_path, "-c", statement)
    assert ran.code == 0, ran.output
    assert not ran.loaded & absent


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], {"textual", "asyncssh", "numpy", "torch", "sqlite3"}),
        (["--version"], {"textual", "asyncssh", "numpy", "torch", "sqlite3"}),
        (["check", "--help"], {"textual", "asyncssh", "torch"}),
        (["draft", "--help"], {"textual", "asyncssh", "torch"}),
        (["tail", "--help"], {"textual", "asyncssh", "torch"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_help_is_cheap(tmp_path: Path, arguments: list[str], absent: set[str]) -> None:
    ran = run(tmp_path, "-m", "console", *arguments)
    assert ran.code == 0, ran.output
    assert not ran.loaded & absent


def test_a_check_on_headers_needs_numpy_alone(tmp_path: Path) -> None:
    draft = rules.ROOT / "console" / "demo" / "models" / "draft"
    ran = run(tmp_path, "-m", "console", "check", "--draft", str(draft), "--json")
    assert ran.code in (0, 1), ran.output
    assert any("checks.catalog" in process for process in ran.processes), "no process of the run was seen to check"
    assert not ran.loaded & {"textual", "torch", "asyncssh", "transformers", "safetensors"}
