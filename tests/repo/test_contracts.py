"""Every import contract is kept by the tree, and is seen to fail when one forbidden import is planted in a copy."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.repo import rules

# contract, the file planted, the line in it. At least one for every contract of pyproject.toml.
PLANTED = [
    ("direction", "remote/planted.py", "import console"),
    ("direction", "remote/planted.py", "from checks import layers"),
    ("direction", "checks/planted.py", "def late():\n    import remote"),
    ("direction", "checks/planted.py", "from console import cli"),
    ("checks-no-terminal", "checks/planted.py", "import textual.app"),
    ("checks-no-terminal", "checks/engines/planted.py", "def late():\n    import asyncssh"),
    ("checks-no-terminal", "checks/planted.py", "import curses"),
    ("checks-no-connection", "checks/planted.py", "import urllib.request"),
    ("checks-no-connection", "checks/caches/planted.py", "from http import client"),
    ("checks-no-connection", "checks/planted.py", "def late():\n    import socket"),
    ("checks-one-module", "checks/planted.py", "def late():\n    import torch"),
    ("checks-one-module", "checks/caches/planted.py", "import safetensors.numpy"),
    ("checks-one-module", "checks/planted.py", "import pyarrow.parquet"),
    ("checks-one-module", "checks/planted.py", "from transformers import AutoModel"),
    ("torch-never-in-the-app", "console/planted.py", "def late():\n    import torch"),
    ("torch-never-in-the-app", "console/demo/engine/planted.py", "import torch.nn"),
    ("remote-moves-bytes", "remote/planted.py", "import numpy"),
    ("remote-moves-bytes", "remote/planted.py", "from textual.message import Message"),
    ("remote-moves-bytes", "remote/planted.py", "import torch"),
    ("textual-at-the-top", "console/planted.py", "from textual.app import App"),
    ("textual-at-the-top", "console/demo/planted.py", "def late():\n    import textual"),
    ("demo-no-checks", "console/demo/planted.py", "from checks import layers"),
    ("demo-no-checks", "console/demo/planted.py", "def late():\n    import checks.tensors"),
]

# The rules of the tree that import-linter cannot express, by the function that holds them.
PLANTED_AGAINST_RULES = [
    (rules.standard_library_only, "checks/planted.py", "import requests"),
    (rules.standard_library_only, "checks/planted.py", "import importlib\nimportlib.import_module('torch')"),
    (rules.standard_library_only, "remote/planted.py", "import yaml"),
    (rules.carried_files_stand_alone, "remote/on_host/planted.py", "import asyncssh"),
    (rules.carried_files_stand_alone, "remote/on_host/planted.py", "from remote.errors import RemoteError"),
    (rules.themes_hold_data, "themes/planted.py", '"""Colours computed."""'),
    (rules.themes_hold_data, "themes/__init__.py", "import colorsys"),
    (rules.packages_are_whole, "checks/bare/planted.py", '"""Owns a folder without its marker."""'),
    (rules.short_files, "console/planted.py", "\n" * 501),
    (rules.short_files, "console/app.py", "\n" * 251),
    (rules.no_drawers, "remote/ssh_utils.py", '"""Owns what has no place."""'),
    (rules.no_drawers, "console/manager.py", '"""Owns what has no place."""'),
    (rules.first_line_says_what, "checks/planted.py", "import os"),
    (rules.own_words, "console/planted.py", "# see /work" + "/main"),
    (rules.own_words, "CHANGELOG.md", "closes issue" + " 2"),
]


def contracts() -> list[dict[str, object]]:
    settings = tomllib.loads((rules.ROOT / "pyproject.toml").read_text("utf-8"))
    return settings["tool"]["importlinter"]["contracts"]


def lint_imports(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache", "--no-logo", *arguments],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages and their settings, without data and caches, where a line may be planted."""
    for package in (*rules.PACKAGES, "themes"):
        shutil.copytree(
            rules.ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
        )
    shutil.copy(rules.ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def plant(tree: Path, name: str, line: str) -> None:
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "__init__.py").touch()
    path.write_text(line + "\n", "utf-8")


def test_the_tree_keeps_every_contract() -> None:
    result = lint_imports(rules.ROOT)
    assert result.returncode == 0, result.stdout


def test_every_contract_has_a_planted_import() -> None:
    assert {contract["id"] for contract in contracts()} == {contract for contract, _, _ in PLANTED}


@pytest.mark.parametrize(("contract", "name", "line"), PLANTED, ids=lambda value: value.replace("\n", " "))
def test_a_planted_import_breaks_its_contract(copy: Path, contract: str, name: str, line: str) -> None:
    plant(copy, name, line)
    result = lint_imports(copy, "--contract", contract)
    assert result.returncode == 1, result.stdout + result.stderr
    assert name.removesuffix(".py").replace("/", ".") in result.stdout


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps_every_rule(rule) -> None:
    assert list(rule(rules.ROOT)) == []


def test_every_rule_has_a_planted_offence() -> None:
    assert set(rules.RULES) == {rule for rule, _, _ in PLANTED_AGAINST_RULES}


@pytest.mark.parametrize(("rule", "name", "text"), PLANTED_AGAINST_RULES)
def test_a_planted_offence_breaks_its_rule(copy: Path, rule, name: str, text: str) -> None:
    path = copy / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", "utf-8")
    place = path.parent.name if rule is rules.packages_are_whole else name
    assert any(place in offence for offence in rule(copy))
