"""What the checks say of an engine and a cache, asked of the engine's own python as on a host of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from checks.caches import open_cache
from checks.capture_folder import ALL_STATES, Taken, write_capture
from tests.engines.pair import Pair, embedded_engine
from tests.engines.serving import ROOT, python_of


def cached_texts(cache: Path) -> list[list[int]]:
    """The heads of a few texts of a cache, as token ids."""
    return [sample.token_ids[:256].tolist() for sample in open_cache(cache).samples(4, 0)]


def all_states(pair: Pair, texts: Sequence[list[int]], folder: Path) -> Path:
    """Every state of some texts, by the embedded engine, as a capture."""
    engine = embedded_engine(pair)
    taken = [
        Taken(np.array(ids, dtype=np.int64), np.arange(len(ids)), engine.states(ids).astype(np.float32))
        for ids in texts
    ]
    write_capture(folder, {"kind": ALL_STATES}, taken)
    return folder


def checked(engine: str, pair: Pair, cache: Path, capture: Path) -> dict[str, Any]:
    """The finding on the pair of engine and cache."""
    request = {
        "schema": 1,
        "draft": str(pair.draft),
        "target": str(pair.target),
        "caches": [{"path": str(cache), "layout": "", "states": []}],
        "captures": [str(capture)],
        "engines": [{"name": engine, "version": ""}],
        "python": python_of(engine),
        "only": ["align.engine_pair"],
    }
    done = subprocess.run(
        [python_of(engine), "-m", "checks"],
        input=json.dumps(request).encode() + b"\n",
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = [line["finding"] for line in lines if line["event"] == "finding"]
    assert len(found) == 1, done.stderr.decode()[-2000:] + done.stdout.decode()[-2000:]
    return dict(found[0])
