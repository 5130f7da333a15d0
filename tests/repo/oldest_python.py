"""Runs the checks under Python 3.9 as a host would, and holds their findings against those of this Python.

`python -m tests.repo.oldest_python [PYTHON39]` makes `.venv-py39` with numpy alone. It exits 1 if a verdict differs, and
2 if no Python 3.9 is found.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import zipapp
from pathlib import Path
from typing import Any

from tests.repo import rules

VENV = rules.ROOT / ".venv-py39"
MODELS = rules.ROOT / "console" / "demo" / "models"
REQUEST = {
    "draft": str(MODELS / "draft"),
    "target": str(MODELS / "target"),
    "caches": [{"path": str(rules.ROOT / "console" / "demo" / "cache")}],
    "engines": [{"name": "sglang", "version": "0.5.12"}],
}


def oldest(named: list[str]) -> Path:
    """An interpreter with numpy that is Python 3.9, made from the one named or found."""
    found = named[0] if named else shutil.which("python3.9")
    if found is None:
        print("no Python 3.9 here: make test-py39 PYTHON39=/path/to/python3.9", file=sys.stderr)
        sys.exit(2)
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([found, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "numpy"], check=True)
    script = "import sys; sys.exit(sys.version_info[:2] != (3, 9))"
    if subprocess.run([str(python), "-c", script], check=False).returncode:
        sys.exit(f"{python} is not Python 3.9; remove {VENV.name} and name another one")
    return python


def archive(folder: Path) -> Path:
    """The package as the one file that travels to a host."""
    stage, built = folder / "stage", folder / "checks.pyz"
    shutil.copytree(rules.ROOT / "checks", stage / "checks", ignore=shutil.ignore_patterns("__pycache__"))
    zipapp.create_archive(stage, built, main="checks.__main__:main")
    return built


def findings(python: str, built: Path) -> list[dict[str, Any]]:
    """What the checks say under one interpreter, without the seconds they took."""
    done = subprocess.run(
        [python, str(built)], input=json.dumps(REQUEST), capture_output=True, text=True, cwd=built.parent, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = [line["finding"] for line in lines if "finding" in line]
    if done.returncode not in (0, 1) or not found:
        sys.exit(f"{python}: exit {done.returncode}, {len(found)} findings\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return [{key: value for key, value in finding.items() if key != "took_s"} for finding in found]


def main() -> None:
    """Run both interpreters on the same request and compare."""
    python = oldest(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        built = archive(Path(folder))
        old, new = findings(str(python), built), findings(sys.executable, built)
    verdicts = [(finding["check"], finding["verdict"]) for finding in old]
    if verdicts != [(finding["check"], finding["verdict"]) for finding in new]:
        sys.exit(f"Python 3.9 finds {old}\nthis Python finds {new}")
    print(f"Python 3.9 agrees with {sys.version.split()[0]} on {len(old)} findings")


if __name__ == "__main__":
    main()
