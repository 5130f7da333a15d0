"""Reading and comparing cached tensors, as ratios in one run: to a bare read, `cat`, torch, SGLang's own.

`python -m tests.benchmarks.bench_tensors [--rounds N]`. Processor time, because a shared machine's clock says little.
What takes torch or SGLang runs under a python that has them: TORCH_PYTHON and SGLANG_PYTHON, else the environments that
`make test-torch` and `make test-engines` create; without one its line says so.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from checks.caches import open_cache
from checks.caches.container import prove
from checks.tensors import read_header
from checks.tiles import difference, look_through

ROOT = Path(__file__).resolve().parents[2]
ROWS, WIDTH = 8192, 4096
"""64 MB of bfloat16."""

FILES = 10_000
BIG_ROWS = 2**30 // (2 * WIDTH)
"""1 GB of bfloat16."""


def write(path: Path, rows: int = ROWS, seed: int = 0) -> Path:
    """A file with `x` [rows, WIDTH] in bfloat16, written piece by piece."""
    chance = np.random.default_rng(seed)
    header = json.dumps({"x": {"dtype": "BF16", "shape": [rows, WIDTH], "data_offsets": [0, rows * WIDTH * 2]}})
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        for _ in range(0, rows, 1024):
            values = chance.standard_normal((1024, WIDTH), dtype=np.float32)
            file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())
    return path


def write_files(folder: Path) -> None:
    """A cache of many small files, as speculators lays it out."""
    for index in range(FILES):
        rows = 8 + index % 61
        states = {"dtype": "BF16", "shape": [rows, 4, 16], "data_offsets": [0, rows * 128]}
        ids = {"dtype": "I64", "shape": [rows], "data_offsets": [rows * 128, rows * 136]}
        header = json.dumps({"hidden_states": states, "token_ids": ids, "__metadata__": {"format": "pt"}}).encode()
        path = folder / f"hs_{index}.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(rows * 136))


def spent(work: Callable[[], object]) -> float:
    """Seconds of the processor, here and in finished children."""
    start = time.process_time() + _children()
    work()
    return time.process_time() + _children() - start


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def best(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least time of each, taken in turn."""
    took = {name: float("inf") for name in works}
    for _ in range(max(rounds, 2)):
        for name, work in works.items():
            took[name] = min(took[name], spent(work))
    return took


def line(name: str, ratio: float, of: str, bound: float, least: bool = True) -> None:
    """One ratio beside its bound: at least, or at most."""
    fits = ratio >= bound if least else ratio <= bound
    word = "ok" if fits else ("UNDER" if least else "OVER")
    print(f"{name:<34}{ratio:>10.2f}  of {of:<34}{'≥' if least else '≤'} {bound} {word}", flush=True)


def lint(folder: Path) -> None:
    """Every file's header proven: its length, its JSON, each shape against its bytes, the offsets against the size."""
    for entry in os.scandir(folder):
        prove(Path(entry.path))


def samples(folder: Path) -> None:
    """Every file found and opened as a sample of its cache: the shapes held to the first's as well."""
    for sample in open_cache(folder).samples(0, 0):
        assert sample.dtype


def looked_through(path: Path) -> None:
    """A file's header and shapes proven, and that every number is finite, as `ckpt.numbers` does for all samples."""
    for info in read_header(path).values():
        assert not look_through(info, [(0, info.rows)]).bad


def bare(folder: Path) -> None:
    """Every file opened, its length and header read."""
    for entry in os.scandir(folder):
        with open(entry.path, "rb") as file:
            file.read(int.from_bytes(file.read(8), "little"))


def read(path: Path) -> None:
    """The bytes through one buffer."""
    piece = bytearray(1 << 18)
    with path.open("rb", buffering=0) as file:
        while file.readinto(piece):
            pass


def grown(path: Path) -> float:
    """MB of memory that comparing and scanning a file takes beyond what the modules do, in a process of its own."""
    code = (
        "import sys; from pathlib import Path\n"
        "from checks.tensors import read_header; from checks.tiles import difference, look_through\n"
        # Not ru_maxrss, which a process has from the one it was started by.
        "def peak(): return int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])\n"
        "before = peak(); x = read_header(Path(sys.argv[1]))['x']; difference(x, x)\n"
        "look_through(x, [(0, x.rows)])\n"
        "print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, cwd=ROOT)
    return int(done.stdout) / 1024


def python_with(library: str) -> str | None:
    """A python that has a library, or None."""
    name = f"{library.upper()}_PYTHON"
    for candidate in (os.environ.get(name, ""), str(ROOT / f".venv-{library}" / "bin" / "python")):
        if candidate and Path(candidate).exists():
            return candidate
    return None


def rival(library: str, name: str, paths: tuple[Path, Path], rounds: int, bound: float) -> None:
    """Run the comparison in a python that has the library, in turn with ours, and print the ratio."""
    python = python_with(library)
    what = {"torch": "plain torch .float()", "sglang": "SGLang's compare_tensor_pair"}[library]
    if python is None:
        print(f"{name:<34}{'-':>10}  of {what:<34}not measured: no python with {library} ({library.upper()}_PYTHON)")
        return
    command = [python, "-m", "tests.benchmarks.rivals", library, *map(str, paths), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{what}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    line(name, float(done.stdout.split()[-1]), what, bound)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print each ratio beside its bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_tensors", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = min(max(parser.parse_args(arguments).rounds, 2), 5)
    print(f"{'tensors':<34}{'ratio':>10}     {'':<34}bound")
    with tempfile.TemporaryDirectory() as folder:
        a, b = write(Path(folder, "a.safetensors")), write(Path(folder, "b.safetensors"), seed=1)
        x, y = read_header(a)["x"], read_header(b)["x"]
        took = best(
            {
                "ours": lambda: difference(x, y),
                "read": lambda: (read(a), read(b)),
                "scan": lambda: looked_through(a),
                "cat": lambda: subprocess.run(["cat", str(a)], stdout=subprocess.DEVNULL, check=True),
            },
            rounds,
        )
        print(f"{'two tensors of 64 MB compared':<34}{128 / 1024 / took['ours']:>10.2f}  GB/s")
        rival("torch", "two tensors of 64 MB compared", (a, b), 2, 4)
        rival("sglang", "two tensors of 64 MB compared", (a, b), 2, 20)
        line("a file proven finite", took["cat"] / took["scan"], "cat file > /dev/null", 0.7)
        files = Path(folder, "files")
        files.mkdir()
        write_files(files)
        works = {"lint": lambda: lint(files), "samples": lambda: samples(files), "bare": lambda: bare(files)}
        took = best(works, min(rounds, 3))
        line(f"headers of {FILES} files proven", took["bare"] / took["lint"], "opening and reading them", 0.25)
        print(f"{'as samples of a cache':<34}{took['bare'] / took['samples']:>10.2f}  of opening and reading them")
        big = write(Path(folder, "big.safetensors"), BIG_ROWS)
        line("MB held, comparing 1 GB", grown(big), "memory beyond the modules", 64, least=False)


if __name__ == "__main__":
    main(sys.argv[1:])
