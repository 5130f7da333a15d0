"""States taken by our hook inside the engine: each text asked for once, and what the hook wrote for it read back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from checks.capture import MAX_TOKENS, EngineServer, cached_texts, each_text, fresh_folder, hidden_of, manifest_of
from checks.capture_folder import ENGINE, Capture, Ids, Taken, write_capture
from checks.capture_ranks import LONG, at_once, compares_long, long_text, longest_prompt, ranks_of
from checks.capture_ways import reads_normed
from checks.errors import CaptureFailed, CheckError
from checks.hooks.fc_input import EVERY_RANK, FILE, WANTED
from checks.tensors import read_header, read_rows

if TYPE_CHECKING:
    from checks.evidence import Evidence

BUDGET = 1 << 30
"""Bytes of states in all: they go to files of this machine, not over a line."""
WRITTEN_S = 20.0
"""How long the hook's file may come after the answer: it is written before it, but a disk may be slow."""


def hook_capture(evidence: Evidence, most: int, folder: str, tokens: int = MAX_TOKENS) -> Capture:
    """What the draft's `fc` reads for `most` cached texts of at most `tokens` tokens.

    `folder` is the one the server's hook was started with. Each text goes under a cache key of its own, so that every
    token is computed. Of a server of several ranks, every rank shows the first text, and the first one shows it again
    at the head of a long text. Raises CaptureFailed.
    """
    _refuse_normed(evidence)
    server = EngineServer(evidence.request.server)
    info = server.info()
    hidden = hidden_of(evidence)
    texts = cached_texts(evidence, 3 * hidden * 4, most, min(tokens, longest_prompt(info)), BUDGET)
    place, ranks = Path(folder), ranks_of(info)

    def shown(ids: Ids, by: int = 1) -> dict[int, Taken]:
        before = _files(place)
        (place / WANTED).write_text(f"{len(ids)} {EVERY_RANK if by > 1 else ''}", "ascii")
        body = {
            "input_ids": ids.tolist(),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "extra_key": uuid.uuid4().hex,
        }
        try:
            answer = server.post("/generate", body, 1 << 20)
        finally:
            (place / WANTED).write_text("0", "ascii")
        return {rank: _read(path, ids, hidden) for rank, path in sorted(_await(place, before, answer, by).items())}

    taken = each_text(evidence, texts, lambda ids: shown(ids)[0], "what the draft's fc reads")
    if ranks > 1:
        evidence.progress(len(texts), len(texts), f"capturing on {ranks} ranks")
        taken += [replace(item, again=f"rank {rank}") for rank, item in shown(texts[0], ranks).items() if rank]
    if compares_long(info):
        taken.append(replace(shown(long_text(texts))[0], again=at_once(LONG)))
    return write_capture(fresh_folder(evidence, ENGINE), manifest_of(evidence, ENGINE, info, taken), taken)


def _refuse_normed(evidence: Evidence) -> None:
    """A draft that norms its input before `fc` shows the hook normed states, which no cache holds."""
    try:
        config = evidence.draft.flat if evidence.draft is not None else {}
    except CheckError:
        return
    named = reads_normed(config)
    if named:
        raise CaptureFailed(
            f"the draft's config has {named}: its fc reads normed states, so a hook there shows no R_k; "
            "take them by return_hidden_states (--how states)"
        )


def _files(place: Path) -> dict[Path, int]:
    """What the hook has written, and of which rank."""
    named = ((item, FILE.fullmatch(item.name)) for item in place.iterdir())
    return {item: int(found.group(1)) for item, found in named if found is not None}


def _await(place: Path, before: Mapping[Path, int], answer: Mapping[str, Any], ranks: int) -> dict[int, Path]:
    """The files of so many ranks, or of those that write here: a rank on another host does not."""
    deadline = time.monotonic() + WRITTEN_S
    while True:
        fresh = {rank: item for item, rank in _files(place).items() if item not in before}
        late = time.monotonic() > deadline
        if len(fresh) >= ranks or (late and 0 in fresh):
            return fresh
        if late:
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
