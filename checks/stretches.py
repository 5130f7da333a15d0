"""Replaying a draft over cached texts: stretches of anchors, what the teacher says there, and which proposals hit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from checks.acceptance import Flags, Hits
from checks.distance import SameText, readable
from checks.eagle3 import CannotReplay, Drafter
from checks.errors import BadTensors
from checks.evidence import Evidence
from checks.teacher import final_norm, greedy_tokens, is_normed
from checks.tensors import take_rows

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

ANCHORS, LEAST_ANCHORS = 256, 64
"""Anchors a text: a window keeps memory and time bounded however long the texts are. A large draft gets fewer."""

MOST = 512
"""Texts a replay holds at once; over this many its interval is narrower than any difference that matters."""

CONTEXT = 256
"""Rows before the first anchor that attention may look back to."""

BUDGET = 10**13
"""Floating-point operations of one replay, which decide the window of a large draft: seconds on a server's CPUs."""

GREEDY, NEXT_TOKEN = "the target's greedy token", "the next token of the text"

_EMBEDDING = ("embed_tokens.weight", "model.embed_tokens.weight")


@dataclass(frozen=True)
class Stretch:
    """A piece of one text: rows start … stop-1 of it, of which `first` … `last`-1 (counted from start) are anchors.

    `ids` [stop - start] are its tokens; `embedded` [stop - start, H] their embeddings; `labels` [steps, last - first]
    what each step of each anchor should propose; `valid` [last - first] where a verify round may start. `rows` gives
    the aux rows [last, m*Ht] as cached. `text` ties it to a capture, where it is made for one.
    """

    sample: Any
    start: int
    first: int
    last: int
    ids: Ints
    embedded: Floats
    labels: Ints
    valid: Flags
    text: SameText | None = None

    def cached(self, slots: int) -> Floats:
        """The cached slots side by side, [last, m*Ht]."""
        stop = self.start + self.last
        return np.concatenate([self.sample.slot(slot, self.start, stop) for slot in range(slots)], axis=1)

    def captured(self, slots: Sequence[int]) -> Floats:
        """These slots of the capture side by side, [last, len*Ht]."""
        if self.text is None:
            raise ValueError("this stretch was made without a capture")
        row = int(np.searchsorted(self.text.positions, self.start))
        base, capture = int(self.text.captured[row]), self.text.capture
        return np.concatenate([capture.slot(slot, base, base + self.last) for slot in slots], axis=1)


@dataclass(frozen=True)
class Bench:
    """A draft and the stretches it is run over. `teacher` is what a hit agrees with; `masked`: a loss mask chose."""

    drafter: Drafter
    stretches: tuple[Stretch, ...]
    steps: int
    teacher: str
    masked: bool
    damaged: tuple[str, ...] = ()

    @property
    def valid(self) -> list[Flags]:
        """Where a round may start, per stretch."""
        return [stretch.valid for stretch in self.stretches]

    @property
    def anchors(self) -> int:
        """How many places that is in all."""
        return int(sum(flags.sum() for flags in self.valid))

    @property
    def cost(self) -> int:
        """Floating-point operations of one run, about."""
        return self.drafter.cost * self.steps * sum(stretch.last - stretch.first for stretch in self.stretches)

    def run(self, aux: Callable[[Stretch], Floats], tell: Callable[[int, int], None] | None = None) -> list[Hits]:
        """Hits [steps, A] of every stretch when `fc` reads the rows `aux` gives, [last, m*Ht]."""
        out = []
        for done, stretch in enumerate(self.stretches):
            fused = self.drafter.fuse(aux(stretch))
            said = self.drafter.predict(fused, stretch.embedded, self.steps, stretch.first, stretch.last)
            out.append(said == stretch.labels)
            if tell is not None:
                tell(done + 1, len(self.stretches))
        return out

    def constant(self) -> float:
        """How often the most frequent label is the right one at the first step: accuracy without any knowledge."""
        labels = np.concatenate([stretch.labels[0][stretch.valid] for stretch in self.stretches])
        return float(np.unique(labels, return_counts=True)[1].max() / len(labels)) if len(labels) else float("nan")


def bench(
    evidence: Evidence, cache: Any, drafter: Drafter, steps: int, texts: Sequence[SameText] | None = None
) -> Bench:
    """Stretches of the cached samples, or of the texts shared with a capture. Raises CannotReplay, BadTensors."""
    embed = _embedding(evidence, drafter.shape.hidden)
    pieces: list[Any] = []
    damaged: tuple[str, ...] = ()
    if texts is None:
        samples = cache.samples(min(evidence.request.samples or MOST, MOST), evidence.request.seed)
        ids, broken = readable(samples)
        damaged = tuple(broken.values())
        windows: Iterator[tuple[Any, int, int, SameText | None]] = (
            (samples[index], 0, len(tokens), None) for index, tokens in ids.items()
        )
    else:
        windows = ((text.open(), *_contiguous(text.positions), text) for text in texts)
    weight = _norm_weight(evidence, cache)
    masked = False
    count = len(ids) if texts is None else len(texts)
    anchors = int(np.clip(BUDGET // (drafter.cost * steps * max(count, 1)), LEAST_ANCHORS, ANCHORS))
    for sample, low, high, text in windows:
        piece = _cut(sample, (low, high), steps, weight is not None, anchors)
        if piece is not None:
            masked = masked or sample.loss_mask is not None
            pieces.append((sample, text, *piece))
    labels = _labels(evidence, pieces, steps, weight)
    stretches = []
    for (sample, text, start, first, last, flags), marks in zip(pieces, labels):
        ids_here = sample.token_ids[start : start + last + steps]
        stretches.append(Stretch(sample, start, first, last, ids_here, embed(ids_here), marks, flags, text))
    teacher = GREEDY if weight is not None else NEXT_TOKEN
    return Bench(drafter, tuple(stretches), steps, teacher, masked, damaged)


def _cut(
    sample: Any, rows: tuple[int, int], steps: int, has_teacher: bool, anchors: int
) -> tuple[int, int, int, Flags] | None:
    """(start, first, last, valid) of the stretch of these rows that is replayed, or None when too short.

    The anchor t needs rows up to t + steps, and one token more where the text itself is the teacher.
    """
    low, high = rows
    end = high - steps - (0 if has_teacher else 1)
    if end <= low:
        return None
    mask = sample.loss_mask
    anchor = low
    if mask is not None:
        trained = np.flatnonzero(mask[low + 2 : high])
        if not len(trained):
            return None
        anchor = low + int(trained[0])
    stop = min(anchor + anchors, end)
    if stop <= anchor:
        return None
    start = max(low, anchor - CONTEXT)
    flags = np.ones(stop - anchor, dtype=bool)
    if mask is not None:
        # A round at anchor t proposes token t+2 first: it counts where training looked at that token.
        flags = mask[anchor + 2 : stop + 2] != 0
        flags = np.concatenate([flags, np.zeros(stop - anchor - len(flags), dtype=bool)])
    return start, anchor - start, stop - start, flags


def _labels(evidence: Evidence, pieces: Sequence[Any], steps: int, weight: Floats | None) -> list[Ints]:
    """Per piece [steps, A]: what the target says after token t+1+j, or the token that came."""
    if weight is None:
        return [
            np.stack([sample.token_ids[start + first + 2 + j : start + last + 2 + j] for j in range(steps)])
            for sample, _, start, first, last, _ in pieces
        ]
    target = evidence.target
    assert target is not None
    blocks, sizes = [], []
    for sample, _, start, first, last, _ in pieces:
        rows = sample.final(start + first + 1, start + last + steps)
        blocks.append(rows if is_normed(rows, weight)[0] else final_norm(rows, weight, target.rms_eps))
        sizes.append(len(rows))
    if not blocks:
        return []
    said = greedy_tokens(target, np.concatenate(blocks), lambda done, of: evidence.progress(done, of, "the teacher"))
    out, at = [], 0
    for (_, _, _, first, last, _), size in zip(pieces, sizes):
        tokens = said[at : at + size]
        out.append(np.stack([tokens[j : j + last - first] for j in range(steps)]))
        at += size
    return out


def _norm_weight(evidence: Evidence, cache: Any) -> Floats | None:
    """The final norm's weight when the target can be asked what it would say, else None."""
    target = evidence.target
    if target is None or cache.final == "none":
        return None
    try:
        if target.weights is None:
            return None
        target.head()
        weight: Floats = target.final_norm()
    except BadTensors:
        return None
    return weight if len(weight) == cache.hidden else None


def _embedding(evidence: Evidence, hidden: int) -> Callable[[Ints], Floats]:
    """Token ids -> embedding rows [S, hidden]: the draft's own matrix, else the target's. Raises CannotReplay."""
    draft, target = evidence.draft, evidence.target
    assert draft is not None
    weights = draft.weights
    own = next((name for name in _EMBEDDING if weights is not None and name in weights.info), None)
    if weights is not None and own is not None:
        info = weights.info[own]
        if info.row_shape != (hidden,):
            raise CannotReplay(f"its {own} is {list(info.shape[:8])}, and its layers are {hidden} wide")
        return lambda ids: np.asarray(take_rows(info, ids), dtype=np.float32)
    if target is None or target.weights is None:
        raise CannotReplay(
            "it has no embedding of its own and the target's weights are not there; give the target's folder with "
            "weights (--target DIR)"
        )
    if target.hidden != hidden:
        raise CannotReplay(
            f"it has no embedding of its own, and the target's is {target.hidden} wide where its layers are {hidden}"
        )
    return target.embedding


def _contiguous(positions: Ints) -> tuple[int, int]:
    """(first, last + 1) of the longest run of neighbouring positions."""
    if not len(positions):
        return 0, 0
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    edges = [0, *breaks.tolist(), len(positions)]
    low, high = max(zip(edges, edges[1:]), key=lambda edge: edge[1] - edge[0])
    return int(positions[low]), int(positions[high - 1]) + 1
