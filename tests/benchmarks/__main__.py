"""Start-up cost as ratios between commands run in turn, then every other benchmark; prints, never asserts.

`python -m tests.benchmarks [--rounds N]`. Milliseconds of a shared machine say little; the ratio of two medians
that were measured in alternation says how much of the start is ours.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# What the installed command does; `-m console` would add the cost of runpy.
COMMAND = "import sys; from console.cli import main; sys.exit(main())"
DRAFT = ROOT / "console" / "demo" / "models" / "draft"


class Case(NamedTuple):
    """A command, what it is divided by, and the ratio it should stay under (None: for information)."""

    name: str
    arguments: tuple[str, ...]
    unit: str
    bound: float | None
    codes: tuple[int, ...] = (0,)


CASES = (
    Case("bare python", ("-c", "pass"), "bare python", None),
    Case("import textual.app", ("-c", "import textual.app"), "bare python", None),
    Case("console --help", ("-c", COMMAND, "--help"), "bare python", 3.0),
    Case("console check --help", ("-c", COMMAND, "check", "--help"), "bare python", None),
    # Exit 1 is a finding, and as good a run as 0.
    Case(
        "console check on headers",
        ("-c", COMMAND, "check", "--draft", str(DRAFT), "--json"),
        "import textual.app",
        1.0,
        (0, 1),
    ),
)


def run_once(case: Case, folder: str) -> float:
    """Seconds one run takes, or SystemExit with its output when it did not run as it should."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *case.arguments], capture_output=True, text=True, cwd=folder, env=environment
    )
    took = time.perf_counter() - start
    if done.returncode not in case.codes:
        sys.exit(f"{case.name}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return took


def main() -> None:
    """Run every case in turn, round after round, and print medians and ratios."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="start-up cost as ratios")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each command (default 15)")
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {case.name: [] for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:  # the first run of each compiles its modules
            run_once(case, folder)
        for _ in range(rounds):
            for case in CASES:
                times[case.name].append(run_once(case, folder))
    median = {name: statistics.median(taken) for name, taken in times.items()}
    print(f"{'command':<26}{'median ms':>10}{'ratio':>8}  of {'':<18}bound")
    for case in CASES:
        ratio = median[case.name] / median[case.unit]
        verdict = "-" if case.bound is None else f"{case.bound:.1f} {'ok' if ratio <= case.bound else 'OVER'}"
        print(f"{case.name:<26}{median[case.name] * 1e3:>10.1f}{ratio:>8.2f}  of {case.unit:<18}{verdict}", flush=True)
    # Each in a process of its own: what one has imported is no help to the next.
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        print(flush=True)
        command = [sys.executable, "-m", f"tests.benchmarks.{path.stem}", "--rounds", str(rounds)]
        if code := subprocess.run(command, cwd=ROOT).returncode:
            sys.exit(f"{path.name}: exit {code}")


if __name__ == "__main__":
    main()
