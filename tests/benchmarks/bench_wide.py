"""The verdict on a cache of real width against a bare read of the rows it looks at, each in a process of its own.

Once for the alignment alone, and once for all checks, as the default is.

`python -m tests.benchmarks.bench_wide [--rounds N]`. 300 files of 600 tokens, 3 slots and a final state of 7168 in
bfloat16: 10 GB by their size. Only the files that are sampled have their rows written; of the others the states are
holes, which are never read. The capture has all 28 states of four texts, 128 tokens each, of which the verdict takes
64. Processor time of the whole process, interpreter and imports included, on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

from checks.caches import open_cache
from checks.capture_folder import open_capture
from checks.data.scan import stretches
from checks.naming import ROWS as COMPARED
from checks.request import CacheRequest, EngineRequest, Request
from checks.tensors import TensorInfo, itemsize, read_header

ROOT = Path(__file__).resolve().parents[2]
FILES, TOKENS, SLOTS, WIDTH = 300, 600, 3, 7168
LAYERS, TEXTS, ROWS = 27, 4, 128
STATES = (3, 13, 24)
BLOCK = slice((TOKENS - ROWS) // 2, (TOKENS + ROWS) // 2)
LEAST_FREE = 4 * 2**30


def write(folder: Path) -> None:
    """The cache, the capture, and the configs of draft and target."""
    chance = np.random.default_rng(0)
    cache = folder / "cache"
    cache.mkdir()
    states = {"dtype": "BF16", "shape": [TOKENS, SLOTS + 1, WIDTH]}
    size = TOKENS * (SLOTS + 1) * WIDTH * 2
    header = json.dumps(
        {
            "hidden_states": {**states, "data_offsets": [0, size]},
            "token_ids": {"dtype": "I64", "shape": [TOKENS], "data_offsets": [size, size + 8 * TOKENS]},
        }
    ).encode()
    for index in range(FILES):
        with (cache / f"hs_{index}.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.seek(size, os.SEEK_CUR)
            file.write(chance.integers(0, 150_000, TOKENS).astype("<i8").tobytes())
    sampled = [sample.name for sample in open_cache(cache).samples(16, 0)]
    (folder / "capture").mkdir()
    for number, name in enumerate(sampled):
        path = cache / name
        walk = _walk(chance) if number < TEXTS else None
        held = (chance.standard_normal((TOKENS, SLOTS + 1, WIDTH), dtype=np.float32).view(np.uint32) >> 16).astype(
            "<u2"
        )
        if walk is not None:
            for slot, k in enumerate((*STATES, LAYERS)):
                held[BLOCK, slot] = (walk[k].view(np.uint32) >> 16).astype("<u2")
            ids = np.fromfile(path, "<i8", offset=path.stat().st_size - 8 * TOKENS)
            _sample(folder / "capture" / f"sample_{number}.safetensors", ids, walk)
        with path.open("r+b") as file:
            file.seek(8 + len(header))
            file.write(held.tobytes())
    manifest = {"schema": 1, "kind": "all-states", "engine": "sglang", "states": list(range(LAYERS + 1)), "ids": None}
    (folder / "capture" / "manifest.json").write_text(json.dumps(manifest))
    draft = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": WIDTH, "num_hidden_layers": 1}
    draft["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [k - 1 for k in STATES]}
    target = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": LAYERS}
    target |= {"hidden_size": WIDTH, "vocab_size": 151_936, "rms_norm_eps": 1e-6, "num_attention_heads": 56}
    for name, config in (("draft", draft), ("target", target)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))


def _walk(chance: np.random.Generator) -> np.ndarray:
    """States that grow by a fifth of their length a layer, [n+1, ROWS, WIDTH]."""
    out = np.empty((LAYERS + 1, ROWS, WIDTH), np.float32)
    out[0] = chance.standard_normal((ROWS, WIDTH), dtype=np.float32)
    for k in range(LAYERS):
        size = 0.2 * float(np.sqrt(np.mean(out[k] ** 2)))
        out[k + 1] = out[k] + size * chance.standard_normal((ROWS, WIDTH), dtype=np.float32)
    return out


def _sample(path: Path, ids: np.ndarray, walk: np.ndarray) -> None:
    parts = {
        "token_ids": ("I64", ids.astype("<i8")),
        "positions": ("I64", np.arange(BLOCK.start, BLOCK.stop, dtype="<i8")),
        "hidden_states": ("F32", np.ascontiguousarray(walk.transpose(1, 0, 2))),
    }
    header, at = {}, 0
    for name, (dtype, values) in parts.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, values in parts.values():
            file.write(values.tobytes())


Bytes = Iterator[tuple[Path, int, int]]
"""File, offset, number."""


def compared(folder: Path) -> Bytes:
    """Every row of a slot that the alignment looks at, once: its distances, not its lean."""
    for info in list(_cached(folder))[:TEXTS]:
        yield from _rows(info, range(TOKENS // 2 - COMPARED // 2, TOKENS // 2 + COMPARED // 2), range(SLOTS))
    for captured in open_capture(folder / "capture").samples:
        rows = range((ROWS - COMPARED) // 2, (ROWS + COMPARED) // 2)
        yield from _rows(captured.states, rows, range(LAYERS + 1))


def sampled(folder: Path) -> Bytes:
    """Every row of a slot that all checks together look at: what is compared, and what is looked through."""
    yield from compared(folder)
    for info in _cached(folder):
        for start, stop in stretches(TOKENS, thorough=False):
            yield from _rows(info, range(start, stop), range(SLOTS + 1))


def _cached(folder: Path) -> Iterator[TensorInfo]:
    for place in open_cache(folder / "cache").samples(16, 0).places:
        yield read_header(place.path)["hidden_states"]


def _rows(info: TensorInfo, rows: range, slots: range) -> Bytes:
    size = WIDTH * itemsize(info)
    for row, slot in product(rows, slots):
        yield info.file, info.start + (row * info.shape[1] + slot) * size, size


BARE = """
import os, sys, json
import numpy
piece = bytearray(1 << 16)
view, name, handle = memoryview(piece), "", -1
for line in open(sys.argv[1]):
    path, at, size = line.rsplit(" ", 2)
    if path != name:
        handle, name = os.open(path, os.O_RDONLY), path
    os.preadv(handle, [view[: int(size)]], int(at))
"""

OURS = """
import json, sys, time
begin = time.process_time()
from checks.answer import answer
from checks.catalog import choose
request = json.loads(sys.argv[1])
choose(request["only"])
loaded = time.process_time()
report = answer(request, lambda event: None)
took = {"imports": loaded - begin, "checks": time.process_time() - loaded}
peak = int(next(row.split()[1] for row in open("/proc/self/status") if row.startswith("VmHWM"))) // 1024
found = report["findings"]
assert not [f for f in found if f["check"] == "internal"], found
assert all(f["verdict"] == "PASS" for f in found if f["check"] == "align.engine_pair"), found
longest = sorted(found, key=lambda f: -f["took_s"])[:4]
wall = {f["check"]: round(f["took_s"], 2) for f in longest}
print(json.dumps({**{name: round(s, 2) for name, s in took.items()}, "longest (wall)": wall, "peak MB": peak}))
"""


def asked(folder: Path, *only: str) -> str:
    """The request for the checks of these families, or for all."""
    request = Request(
        draft=str(folder / "draft"),
        target=str(folder / "target"),
        caches=(CacheRequest(str(folder / "cache")),),
        captures=(str(folder / "capture"),),
        engines=(EngineRequest("sglang", "0.5.21"),),
        only=only,
    )
    return json.dumps(request.as_json())


def once(command: list[str], compiled: str) -> tuple[float, str]:
    """Seconds of the processor of one process, and what it printed."""
    from tests.benchmarks.bench_tensors import spent

    out: list[str] = []
    # Modules compiled once, as they are where a package is installed.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    own |= {"PYTHONPYCACHEPREFIX": compiled, "OPENBLAS_NUM_THREADS": "1"}

    def work() -> None:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=own)
        if done.returncode:
            sys.exit(f"exit {done.returncode}\n{done.stdout}{done.stderr}")
        out.append(done.stdout)

    return spent(work), out[0]


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print the ratio and the breakdown."""
    from tests.benchmarks.bench_tensors import line

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_wide", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = min(max(parser.parse_args(arguments).rounds, 2), 3)
    with tempfile.TemporaryDirectory() as name:
        if shutil.disk_usage(name).free < LEAST_FREE:
            print(f"{'a cache of 10 GB':<34}{'-':>10}  not measured: it takes 4 GB of disk in {name}")
            return
        folder = Path(name)
        write(folder)
        bare = [sys.executable, "-c", BARE]
        ours = [sys.executable, "-c", OURS]
        for name, rows, only in (("alignment of", compared, ("align",)), ("all checks on", sampled, ())):
            listed = folder / "rows.txt"
            listed.write_text("".join(f"{path} {at} {size}\n" for path, at, size in rows(folder)))
            took: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds):
                took[0].append(once([*bare, str(listed)], str(folder))[0])
                spent, told = once([*ours, asked(folder, *only)], str(folder))
                took[1].append(spent)
            least = [min(each) for each in took]
            line(f"{name} a cache of 10 GB", least[1] / least[0], "bare read of its rows, and numpy", 3, least=False)
            line("its peak memory, MB", json.loads(told)["peak MB"], "memory", 500, least=False)
            print(f"  bare {least[0]:.2f} s, ours {least[1]:.2f} s: {told.strip()}")


if __name__ == "__main__":
    main(sys.argv[1:])
