"""The shipped draft replayed in numpy beside the same forward in torch, one thread each, in one process.

`python -m tests.benchmarks.bench_replay [--rounds N]`. Runs under a python that has torch, see bench_tensors.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from checks.draft import open_draft
from checks.eagle3 import Drafter, load_drafter
from checks.tensors import read_header, read_rows
from checks.weights import open_weights

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "console" / "demo"
STEPS, BOUND = 5, 2.0


def texts() -> list[tuple[np.ndarray, np.ndarray]]:
    """(aux rows [S, m*H], embeddings [S, H]) of the shipped cache's texts."""
    weights = open_weights(DEMO / "models" / "target")
    assert weights is not None
    table = weights.read("model.embed_tokens.weight")
    out = []
    for path in sorted((DEMO / "cache").glob("hs_*.safetensors")):
        header = read_header(path)
        states = read_rows(header["hidden_states"], 0, header["hidden_states"].rows)
        ids = read_rows(header["token_ids"], 0, header["token_ids"].rows)
        out.append((np.ascontiguousarray(states[:, :-1].reshape(len(ids), -1)), table[ids]))
    return out


def replay(drafter: Drafter, held: list[tuple[Any, Any]]) -> None:
    """Every anchor of every text, five steps deep."""
    for aux, embedded in held:
        drafter.predict(drafter.fuse(aux), embedded, STEPS, 0, len(embedded) - STEPS)


def measure(rounds: int) -> float:
    """How many times longer numpy takes than torch: the least of each, in turn."""
    import torch

    torch.set_num_threads(1)
    ours = load_drafter(open_draft(DEMO / "models" / "draft"))
    weights = {name: torch.from_numpy(np.asarray(value)) for name, value in ours._w.items()}
    theirs = Drafter(ours.shape, weights, torch)
    held = texts()
    as_torch = [(torch.from_numpy(aux), torch.from_numpy(embedded)) for aux, embedded in held]
    took = [float("inf"), float("inf")]
    with torch.no_grad():
        for _ in range(rounds):
            for index, (drafter, rows) in enumerate(((ours, held), (theirs, as_torch))):
                start = time.process_time()
                replay(drafter, rows)
                took[index] = min(took[index], time.process_time() - start)
    return took[0] / took[1]


def main(arguments: list[str] | None = None) -> None:
    """Measure under a python that has torch, and print the ratio beside its bound."""
    from tests.benchmarks.bench_tensors import line, python_with

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_replay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--here", action="store_true", help="this python has torch: print the bare ratio")
    given = parser.parse_args(arguments)
    rounds = min(max(given.rounds, 3), 5)
    if given.here:
        print(f"{measure(rounds):.3f}")
        return
    python = python_with("torch")
    if python is None:
        print(
            f"{'draft replayed in numpy':<34}{'-':>10}  of {'torch, one thread':<34}not measured: no python with torch"
        )
        return
    command = [python, "-m", "tests.benchmarks.bench_replay", "--here", "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"replay: exit {done.returncode}\n{done.stdout}{done.stderr}")
    line("draft replayed in numpy", float(done.stdout), "torch, one thread", BOUND, least=False)


if __name__ == "__main__":
    main(sys.argv[1:])
