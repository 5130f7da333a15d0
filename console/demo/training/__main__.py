"""Owns the retraining command: `python -m console.demo.training [STEP…]`, by default every step in order.

The embedded host serves a real, tiny pair that this command made. To make it again, in an environment of its own:

    pip install torch numpy safetensors
    python -m console.demo.training

target   a byte-level Llama on the standard library's sources; about a quarter of an hour on two cores
draft    an EAGLE-3 drafter for it, on the states R_3, R_7, R_10 of the target as shipped (rounded to bf16)
samples  prompts.json and the training cache, from files that neither model has seen
measure  held-out loss, and the drafter's accuracy under right and wrong wiring

The steps are seeded. Another Python version has other library sources, so it gives another pair of the same quality.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from . import draft, export, measure, samples, target


def _say(line: str) -> None:
    print(line, flush=True)


def _train_target() -> None:
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "target.pt"
        target.train(weights, _say)
        export.write_target(export.load_fp32(weights))


STEPS: dict[str, Callable[[], None]] = {
    "target": _train_target,
    "draft": lambda: draft.train(_say),
    "samples": lambda: samples.write(export.read_target()),
    "measure": lambda: measure.report(_say),
}


def main() -> None:
    """Run the named steps in their natural order."""
    parser = argparse.ArgumentParser(prog="python -m console.demo.training", description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"one of {', '.join(STEPS)}; default: all")
    asked = parser.parse_args().steps
    if unknown := set(asked) - set(STEPS):
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    for name, step in STEPS.items():
        if asked and name not in asked:
            continue
        began = time.monotonic()
        step()
        _say(f"{name}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
