"""States taken by our hook inside the engine: each text asked for once, and what the hook wrote for it read back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from checks.capture import EngineServer, cached_texts, each_text, fresh_folder, hidden_of, manifest_of
from checks.capture_folder import ENGINE, Capture, Ids, Taken, write_capture
from checks.errors import CaptureFailed, CheckError
from checks.hooks.fc_input import WANTED
from checks.tensors import read_header, read_rows

if TYPE_CHECKING:
    from checks.evidence import Evidence

BUDGET = 1 << 30
"""Bytes of states in all: they go to files of this machine, not over a line."""
WRITTEN_S = 20.0
"""How long the hook's file may come after the answer: it is written before it, but a disk may be slow."""
_NORMED = ("fc_norm", "use_aux_norm", "norm_before_fc")


def hook_capture(evidence: Evidence, most: int, folder: str) -> Capture:
    """What the draft's `fc` reads for `most` cached texts; `folder` is the one the server's hook was started with.

    Each text goes under a cache key of its own, so that every token is computed. Raises CaptureFailed.
    """
    _refuse_normed(evidence)
    server = EngineServer(evidence.request.server)
    info = server.info()
    hidden = hidden_of(evidence)
    texts = cached_texts(evidence, 3 * hidden * 4, most, BUDGET)
    place = Path(folder)

    def ask(ids: Ids) -> Taken:
        before = set(_files(place))
        (place / WANTED).write_text(str(len(ids)), "ascii")
        body = {
            "input_ids": ids.tolist(),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "extra_key": uuid.uuid4().hex,
        }
        try:
            answer = server.post("/generate", body, 1 << 20)
        finally:
            (place / WANTED).write_text("0", "ascii")
        return _read(_await(place, before, answer), ids, hidden)

    taken = each_text(evidence, texts, ask, "what the draft's fc reads")
    return write_capture(fresh_folder(evidence, ENGINE), manifest_of(evidence, ENGINE, info, taken), taken)


def _refuse_normed(evidence: Evidence) -> None:
    """A draft that norms its input before `fc` shows the hook normed states, which no cache holds."""
    try:
        config = evidence.draft.flat if evidence.draft is not None else {}
    except CheckError:
        return
    nested = config.get("eagle_config")
    places = [config, nested if isinstance(nested, dict) else {}]
    named = next((key for key in _NORMED if any(item.get(key) for item in places)), None)
    if named is not None:
        raise CaptureFailed(
            f"the draft's config has {named}: its fc reads normed states, so a hook there shows no R_k; "
            "take them by return_hidden_states (--how states)"
        )


def _files(place: Path) -> Sequence[str]:
    return [item.name for item in place.glob("fc_*.safetensors")]


def _await(place: Path, before: set[str], answer: dict[str, Any]) -> Path:
    deadline = time.monotonic() + WRITTEN_S
    while True:
        fresh = sorted(set(_files(place)) - before)
        if fresh:
            return place / fresh[0]
        if time.monotonic() > deadline:
            meta = answer.get("meta_info")
            cached = meta.get("cached_tokens") if isinstance(meta, dict) else None
            raise CaptureFailed(
                f"the hook wrote nothing ({cached} tokens came from the prefix cache): was the prompt cut in chunks, "
                "or its pass replayed from a graph? take the states by return_hidden_states (--how states)"
            )
        time.sleep(0.05)


def _read(path: Path, ids: Ids, hidden: int) -> Taken:
    info = read_header(path).get("states")
    if info is None or len(info.shape) != 2 or info.shape[0] != len(ids) or info.shape[1] % hidden:
        shape = list(info.shape) if info is not None else "nothing"
        raise CaptureFailed(f"{path}: the hook wrote {shape} for {len(ids)} tokens of a target {hidden} wide")
    rows = np.asarray(read_rows(info, 0, info.rows), dtype=np.float32)
    return Taken(ids, np.arange(len(ids), dtype=np.int64), rows.reshape(len(ids), -1, hidden))
