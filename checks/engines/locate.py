"""Where the source of an engine lies on this machine: found through an interpreter, without importing the engine.

The interpreter of the running server is asked (its argv[0], working folder and PYTHONPATH), because only it resolves
the virtual environment and the editable installs that the server resolved. `/proc/PID/exe` is never used: it is the
base interpreter, which has lost the environment.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.regular import open_regular

TIMEOUT_S = 30.0
MAX_VERSION_BYTES = 64 << 10

# Run by the other interpreter. Only the top-level name is looked up: find_spec of a dotted name imports its parents.
# sys.path[0] is the working folder under -c; it is taken out while the standard library is imported, and kept out for a
# console script, whose own sys.path[0] is the script's folder.
_ASK = """
import sys
first = sys.path.pop(0) if sys.path else ""
import importlib.machinery, importlib.util, json
name, with_cwd = sys.argv[1], sys.argv[2] == "1"
if with_cwd:
    sys.path.insert(0, first)
spec = importlib.util.find_spec(name)
places = list(spec.submodule_search_locations or []) if spec else []
if spec and not places and spec.origin:
    places = [spec.origin]
version = ""
if spec:
    try:
        import importlib.metadata
        version = importlib.metadata.version(name)
    except Exception:
        pass
print(json.dumps({"places": places, "version": version}))
"""


@dataclass(frozen=True)
class Entry:
    """How a server was started: the interpreter and the module it ran, dotted; `script` when a console script did."""

    python: str
    module: str
    script: bool = False

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.module.split(".")[0]


@dataclass(frozen=True)
class Located:
    """The package folders found, nearest to the module first, and the distribution's version ("" unknown)."""

    folders: tuple[Path, ...]
    version: str
    python: str


def entry_of(argv: Sequence[str], cwd: str = "") -> Entry | None:
    """The interpreter and module of a server's command line, None when it is not a Python module or console script.

    `python … -m a.b …` names both. A console script shows as `python /venv/bin/NAME …`, or as the script alone when it
    was started through a wrapper; its package is taken to be called like it.
    """
    if not argv:
        return None
    first = Path(argv[0]).name
    if re.fullmatch(r"(python|pypy)[\d.]*t?", first):
        rest = list(argv[1:])
        while rest and rest[0].startswith("-"):
            option = rest.pop(0)
            if option == "-m" and rest:
                return Entry(argv[0], rest[0])
            if option.startswith("-m") and not option.startswith("--") and len(option) > 2:
                return Entry(argv[0], option[2:])
            if option in ("-W", "-X") and rest:
                rest.pop(0)
            if option == "-c":
                return None
        script = Path(rest[0]).name if rest else ""
        return Entry(argv[0], script, script=True) if script.isidentifier() else None
    if first.isidentifier():
        shebang = _shebang(Path(cwd, argv[0]))
        return Entry(shebang, first, script=True) if shebang else None
    return None


def locate(entry: Entry, cwd: str = "", pythonpath: str = "") -> tuple[Located | None, str]:
    """Ask the interpreter of `entry` where its module lies; the reason when it cannot say."""
    if not all(part.isidentifier() for part in entry.module.split(".")):
        return None, f"{entry.module!r} is not a module name"
    python = _executable(entry.python, cwd)
    if python is None:
        return None, f"no interpreter {entry.python} here"
    answer, why = _ask(python, entry, cwd, pythonpath)
    if answer is None:
        return None, why
    places = [Path(cwd, place) for place in answer.get("places", []) if isinstance(place, str)]
    if not places:
        return None, f"{entry.python} has no package {entry.package}"
    version = answer.get("version", "")
    return Located(_folders(places[0], entry.module), version if isinstance(version, str) else "", python), ""


def version_beside(package: Path) -> str:
    """The version of a package: from the dist-info beside it, else a literal in its version file, else ""."""
    for metadata in sorted(package.parent.glob(f"{package.name}-*.dist-info/METADATA")):
        found = re.search(r"^Version:\s*(\S+)", _head(metadata), re.MULTILINE)
        if found:
            return found.group(1)
    for name in ("_version.py", "version.py", "__init__.py"):
        version = _literal_version(_head(package / name))
        if version:
            return version
    return ""


def _ask(python: str, entry: Entry, cwd: str, pythonpath: str) -> tuple[dict[str, Any] | None, str]:
    import subprocess

    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    environment.pop("PYTHONHOME", None)
    if pythonpath:
        environment["PYTHONPATH"] = pythonpath
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    try:
        done = subprocess.run(
            [python, "-c", _ASK, entry.package, "0" if entry.script else "1"],
            cwd=cwd or None,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return None, f"{python} could not be asked: {error}"
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit {done.returncode}"]
        return None, f"{python} could not be asked: {last[0][:200]}"
    try:
        # A noisy site may print before; the answer is the last line.
        answer = json.loads(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None, f"{python} gave no answer"
    return (answer, "") if isinstance(answer, dict) else (None, f"{python} gave no answer")


def _executable(python: str, cwd: str) -> str | None:
    if os.sep in python:
        # Not resolved: the link's own place is what makes a virtual environment.
        path = os.path.join(cwd, os.path.expanduser(python))
        return path if os.access(path, os.X_OK) else None
    return shutil.which(python)


def _shebang(script: Path) -> str:
    line = _head(script).split("\n", 1)[0]
    words = line[2:].split() if line.startswith("#!") else []
    if words and Path(words[0]).name == "env" and len(words) > 1:
        words = words[1:]
    return words[0] if words and Path(words[0]).name.startswith("python") else ""


def _folders(top: Path, module: str) -> tuple[Path, ...]:
    """The folder of the module, then its parents up to the top-level package."""
    if top.is_file():
        return (top.parent,)
    folders = [top]
    for part in module.split(".")[1:]:
        inner = folders[0] / part
        if not inner.is_dir():
            break
        folders.insert(0, inner)
    return tuple(folders)


def _head(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.read(MAX_VERSION_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _literal_version(text: str) -> str:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        named = any(isinstance(target, ast.Name) and target.id == "__version__" for target in node.targets)
        if named and isinstance(node.value.value, str):
            return node.value.value
    return ""
