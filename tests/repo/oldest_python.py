"""Runs the checks under Python 3.9 as a host would, and holds their findings against those of this Python.

`python -m tests.repo.oldest_python [PYTHON39]` makes `.venv-py39` with numpy alone. It exits 1 if a verdict differs
and 2 if no Python 3.9 is found.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from console.zipapp import checks_zipapp
from tests.repo import rules

VENV = rules.ROOT / ".venv-py39"
MODELS = rules.ROOT / "console" / "demo" / "models"
REQUEST = {
    "draft": str(MODELS / "draft"),
    "target": str(MODELS / "target"),
    "caches": [{"path": str(rules.ROOT / "console" / "demo" / "cache")}],
    "engines": [{"name": "sglang", "version": "0.5.12"}],
}


def is_oldest(python: str | Path) -> bool:
    """Whether this starts, and is Python 3.9: a version manager's stand-in may be on PATH and start nothing."""
    script = "import sys; sys.exit(sys.version_info[:2] != (3, 9))"
    try:
        return subprocess.run([str(python), "-c", script], check=False, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def oldest(named: list[str]) -> Path:
    """An interpreter with numpy that is Python 3.9, made from the one named or found."""
    python = VENV / "bin" / "python"
    if not is_oldest(python):
        found = named[0] if named else shutil.which("python3.9")
        if found is None or not is_oldest(found):
            print("no Python 3.9 here: make test-py39 PYTHON39=/path/to/python3.9", file=sys.stderr)
            sys.exit(2)
        subprocess.run([found, "-m", "venv", "--clear", str(VENV)], check=True)
    if subprocess.run([str(python), "-c", "import numpy"], check=False, stderr=subprocess.DEVNULL).returncode:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "numpy"], check=True)
    return python


def findings(python: str, built: Path) -> list[dict[str, Any]]:
    """What the checks say under one interpreter, without the seconds they took."""
    done = subprocess.run(
        [python, str(built)], input=json.dumps(REQUEST), capture_output=True, text=True, cwd=built.parent, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = [line["finding"] for line in lines if "finding" in line]
    if done.returncode != 0 or not found:
        sys.exit(f"{python}: exit {done.returncode}, {len(found)} findings\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return [{key: value for key, value in finding.items() if key != "took_s"} for finding in found]


def main() -> None:
    """Run both interpreters on the same request and compare."""
    python = oldest(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "checks.pyz"
        built.write_bytes(checks_zipapp())
        old, new = findings(str(python), built), findings(sys.executable, built)
    verdicts = [(finding["check"], finding["verdict"]) for finding in old]
    if verdicts != [(finding["check"], finding["verdict"]) for finding in new]:
        sys.exit(f"Python 3.9 finds {old}\nthis Python finds {new}")
    print(f"Python 3.9 agrees with {sys.version.split()[0]} on {len(old)} findings")


if __name__ == "__main__":
    main()
