"""What a wheel holds: every file of the four packages, nothing else, and a command that starts from it alone.

`python -m tests.repo.wheel FILE.whl` prints what is wrong and exits 1, or says what it saw. The build needs a
registry, so this is a step of `.ci/run` and no test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.repo import rules

SHIPPED = (*rules.PACKAGES, "themes")


def missing_and_extra(wheel: zipfile.ZipFile) -> tuple[set[str], set[str]]:
    """(files of the tree the wheel lacks, files of the wheel the tree does not have), metadata aside."""
    packed = {name for name in wheel.namelist() if not name.partition("/")[0].endswith(".dist-info")}
    tree = {
        path.relative_to(rules.ROOT).as_posix()
        for package in SHIPPED
        for path in (rules.ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return tree - packed, packed - tree


def starts_from(unpacked: Path) -> str:
    """What `console --version` prints when only the wheel's files are in reach, or SystemExit with its output."""
    script = (
        "import console, runpy, sys; print(console.__file__, file=sys.stderr); "
        "runpy.run_module('console', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--version"],
        cwd=unpacked,
        env=os.environ | {"PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or str(unpacked) not in done.stderr:
        sys.exit(f"the command does not start from the wheel alone:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def main() -> None:
    """Check the wheel named on the command line."""
    with zipfile.ZipFile(sys.argv[1]) as wheel, tempfile.TemporaryDirectory() as folder:
        missing, extra = missing_and_extra(wheel)
        if missing or extra:
            sys.exit(f"the wheel lacks {sorted(missing)}, and should not have {sorted(extra)}")
        wheel.extractall(folder)
        size = sum(entry.compress_size for entry in wheel.infolist())
        print(f"{len(wheel.namelist())} files, {size / 2**20:.1f} MiB, starts: {starts_from(Path(folder).resolve())}")


if __name__ == "__main__":
    main()
