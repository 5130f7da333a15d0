"""`ckpt.vocab_map`: the map from the draft's reduced vocabulary to the target's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from checks.catalog import check
from checks.ckpt.names import foreign
from checks.draft import Draft
from checks.draft_shapes import draft_vocab, normal_names
from checks.evidence import Evidence, Need
from checks.finding import ConfigFix, Finding, Verdict
from checks.jsonfile import whole
from checks.launch import launch_of
from checks.patch import set_keys
from checks.tensors import Ids, TensorInfo, Values, read_rows
from checks.weights import Weights

VOCAB = "ckpt.vocab_map"

# A map's names; vLLM renames d2t to draft_id_to_target_id, and some checkpoints were saved after that.
_D2T = ("d2t", "draft_id_to_target_id")
_T2D = ("t2d",)


@check(VOCAB, needs=(Need.DRAFT, Need.DRAFT_WEIGHTS))
def vocab_map(evidence: Evidence) -> Iterable[Finding]:
    """The draft's reduced vocabulary and the map from it to the target's fit each other.

    A draft with `draft_vocab_size` below `vocab_size` predicts its own ids; `d2t` holds, for each, the offset to the
    target's: target id = draft id + d2t[draft id]. `t2d` marks the same ids among the target's; engines skip it.
    Four numbers have to be one: `draft_vocab_size`, rows of `lm_head`, length of `d2t`, number of marks in `t2d`.

    FAIL: they differ; a target id out of range or mapped twice; marks elsewhere than the offsets point; absolute ids in
    place of offsets; no map at all, so that engines take draft ids for target ids and nothing is accepted.
    WARN: every offset is zero, which is what an unfilled buffer holds.
    INFO: no map, and `--speculative-token-map` is given in its place.

    What to do: export the checkpoint again with its map; a `draft_vocab_size` that alone disagrees is corrected here.
    """
    draft = evidence.draft
    weights = draft.weights if draft is not None else None
    assert draft is not None and weights is not None
    if foreign(weights):
        said = "not checked: no tensor has a name that engines load, see ckpt.names"
        yield Finding(VOCAB, Verdict.UNKNOWN, said, {"needs": ["tensors under the names of an EAGLE-3 draft"]})
        return
    launch = launch_of(evidence)
    yield _Map(draft, weights, launch is not None and launch.has("speculative-token-map")).judge()


class _Map:
    """The vocabulary map of one draft, and the numbers it is judged by."""

    def __init__(self, draft: Draft, weights: Weights, token_map: bool) -> None:
        tensors = normal_names(weights.info)
        self._draft = draft
        self._token_map = token_map
        self._weights = weights
        self._d2t = find_map(weights)
        self._t2d = next((tensors[name] for name in _T2D if name in tensors), None)
        head = tensors.get("lm_head.weight")
        self.draft_vocab = draft_vocab(draft.flat)
        self.vocab = whole(draft.flat.get("vocab_size"))
        self.found: dict[str, Any] = {
            "draft_vocab_size": self.draft_vocab,
            "lm_head_rows": head.rows if head is not None and head.shape else None,
            "d2t_rows": self._d2t.rows if self._d2t is not None else None,
            "t2d_true": None,
            "t2d_rows": self._t2d.rows if self._t2d is not None else None,
            "vocab_size": self.vocab,
        }

    def judge(self) -> Finding:
        """The one finding."""
        if self._d2t is None:
            return self._without_map()
        offsets = row_of(self._d2t)
        marks = row_of(self._t2d) if self._t2d is not None else None
        if offsets is None or (self._t2d is not None and marks is None):
            wrong = self._d2t if offsets is None else self._t2d
            assert wrong is not None
            return self._say(
                Verdict.FAIL, f"{wrong.name} is {wrong.dtype} {list(wrong.shape)}, not a row of whole numbers"
            )
        if marks is not None:
            self.found["t2d_true"] = int(np.count_nonzero(marks))
        problems = self._counts()
        problems += self._targets(offsets.astype(np.int64), marks)
        if problems:
            return self._say(Verdict.FAIL, "; ".join(problems), self._size_fix())
        if self.vocab and offsets.size < self.vocab and not offsets.any():
            return self._say(
                Verdict.WARN,
                f"every offset in d2t is zero: the draft's {offsets.size} tokens are the first of {self.vocab}, which "
                "is also what a map that was never filled looks like",
            )
        return self._say(
            Verdict.PASS, f"{offsets.size} draft tokens map to distinct ids of {self.vocab or 'the target'}"
        )

    def _without_map(self) -> Finding:
        if self.draft_vocab is None or self.vocab is None:
            return self._say(Verdict.PASS, "no reduced vocabulary in the config, and no map: draft ids are target ids")
        if self.draft_vocab >= self.vocab:
            return self._say(Verdict.PASS, f"the draft has the whole vocabulary of {self.vocab}: no map is needed")
        without = f"no d2t, and the draft has {self.draft_vocab} of {self.vocab} tokens"
        if self._token_map:
            return self._say(
                Verdict.INFO,
                f"{without}: --speculative-token-map is given in its place; SGLang's EAGLE3 takes the map from the "
                "draft alone, so watch that acceptance is not near zero",
            )
        beside = next((note for note in self._weights.notes if "left out" in note), "")
        return self._say(
            Verdict.FAIL,
            f"{without}: engines would take draft ids for target ids"
            + (f"; the map may be in {beside}" if beside else ""),
        )

    def _counts(self) -> list[str]:
        """The four numbers that have to be one, and the length of t2d."""
        one = {key: self.found[key] for key in ("draft_vocab_size", "lm_head_rows", "d2t_rows", "t2d_true")}
        known = {key: value for key, value in one.items() if value is not None}
        problems = []
        if self.draft_vocab is None:
            problems.append(f"d2t has {self.found['d2t_rows']} rows and the config has no draft_vocab_size")
        if len(set(known.values())) > 1:
            problems.append("these have to be equal: " + ", ".join(f"{key} {value}" for key, value in known.items()))
        rows = self.found["t2d_rows"]
        if rows is not None and self.vocab is not None and rows != self.vocab:
            problems.append(f"t2d has {rows} rows for a vocab_size of {self.vocab}")
        return problems

    def _targets(self, offsets: Ids, marks: Values | None) -> list[str]:
        targets = np.arange(offsets.size, dtype=np.int64) + offsets
        limit = self.vocab or self.found["t2d_rows"]
        outside = int(np.count_nonzero((targets < 0) | (targets >= limit))) if limit else 0
        twice = int(np.count_nonzero(np.diff(np.sort(targets)) == 0))
        self.found |= {"out_of_range": outside, "mapped_twice": twice}
        problems = []
        if (outside or twice) and self._absolute(offsets, limit):
            return ["d2t holds absolute ids, where offsets are read: target id = draft id + d2t[draft id]"]
        if outside:
            first = int(np.flatnonzero((targets < 0) | (targets >= limit))[0])
            problems.append(
                f"{outside} of {offsets.size} target ids are outside the vocabulary of {limit} (draft id {first} maps "
                f"to {int(targets[first])})"
            )
        if twice:
            problems.append(f"{twice} target ids are mapped to twice")
        if marks is not None and not problems and self.found["t2d_true"] == offsets.size:
            strays = len(set(targets.tolist()).difference(np.flatnonzero(marks).tolist()))
            self.found["strays"] = strays
            if strays:
                problems.append(f"{strays} target ids of d2t are not marked in t2d: they are of different vocabularies")
        return problems

    def _absolute(self, values: Ids, limit: int) -> bool:
        return bool(np.diff(np.sort(values)).all() and values.min() >= 0 and values.max() < limit)

    def _size_fix(self) -> ConfigFix | None:
        """draft_vocab_size alone is wrong when the three counts of the weights agree."""
        rest = {self.found[key] for key in ("lm_head_rows", "d2t_rows", "t2d_true")} - {None}
        clean = not self.found.get("out_of_range") and not self.found.get("mapped_twice")
        if len(rest) != 1 or None in (self.found["lm_head_rows"], self.found["d2t_rows"]) or not clean:
            return None
        size = rest.pop()
        keys = [key for key in ("draft_vocab_size", "truncated_vocab_size") if self._draft.config.get(key) is not None]
        changes = {f"/{key}": size for key in keys or ["draft_vocab_size"]}
        return ConfigFix(set_keys(self._draft.config, changes)) if size != self.draft_vocab else None

    def _say(self, verdict: Verdict, summary: str, fix: ConfigFix | None = None) -> Finding:
        return Finding(VOCAB, verdict, summary, self.found, fix)


def find_map(weights: Weights) -> TensorInfo | None:
    """The tensor that maps draft ids to target ids, None when there is none. Raises BadTensors."""
    tensors = normal_names(weights.info)
    return next((tensors[name] for name in _D2T if name in tensors), None)


def row_of(info: TensorInfo) -> Values | None:
    """A row of whole numbers or marks `[rows]`, or None when the tensor is something else. Raises BadTensors."""
    if len(info.shape) != 1 or info.dtype[0] not in "IUB" or info.dtype == "BF16":
        return None
    return read_rows(info, 0, info.rows)
