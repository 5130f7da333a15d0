"""Checks of the draft's checkpoint: its tensors against its config, and the map of its reduced vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from checks.catalog import check
from checks.draft import Draft
from checks.draft_shapes import (
    ATTENTION,
    FUSED,
    MLP,
    Expected,
    Sizes,
    draft_vocab,
    expected,
    family,
    is_extra,
    judgeable,
    normal_names,
    optional,
    sizes,
)
from checks.errors import BadTensors, CheckError
from checks.evidence import Evidence, Need
from checks.finding import ConfigFix, Finding, Verdict
from checks.jsonfile import whole
from checks.patch import set_key
from checks.tensors import Ids, TensorInfo, Values, read_rows
from checks.weights import Weights

SHAPES, VOCAB = "ckpt.shapes", "ckpt.vocab_map"

# A map's names; vLLM renames d2t to draft_id_to_target_id, and some checkpoints were saved after that.
_D2T = ("d2t", "draft_id_to_target_id")
_T2D = ("t2d",)
_TOKEN_MAP = ("--speculative-token-map", "--speculative_token_map")

# Enough to see the pattern; a wrong hidden_size alone makes every row wrong.
_SHOWN = 6


@check(SHAPES, needs=(Need.DRAFT,))
def shapes(evidence: Evidence) -> Iterable[Finding]:
    """The tensors of the draft's weights have the names and shapes its config calls for.

    Read from the headers alone. Above all the width of `fc`: number of slots times the target's hidden size. Engines
    are lenient where it hurts: SGLang skips names it does not know and leaves missing tensors as random numbers, both
    in silence, so a draft may load and accept nothing.

    FAIL: the file is damaged or truncated; a shape differs; a tensor is missing that engines do not get elsewhere.
    UNKNOWN: fused, latent-attention or quantised tensors, whose shapes these formulas do not give; the rest is judged.
    Legal: no `embed_tokens` (taken from the target), heads times head_dim other than hidden_size, a draft narrower than
    the target when `target_hidden_size` says so, a count of slots other than 3.

    What to do: correct the config key named beside the tensor, or export the checkpoint again.
    """
    draft = evidence.draft
    assert draft is not None
    try:
        weights = draft.weights
        tensors = normal_names(weights.info) if weights is not None else {}
    except BadTensors as error:
        yield Finding(SHAPES, Verdict.FAIL, str(error), {"file": str(draft.path), "problem": str(error)})
        return
    if weights is None:
        reason = evidence.missing(Need.DRAFT_WEIGHTS)
        yield Finding(SHAPES, Verdict.UNKNOWN, f"not checked: {reason}", {"needs": [Need.DRAFT_WEIGHTS.value]})
        return
    yield _judge_shapes(draft, weights, tensors, _target_hidden(evidence))


def _judge_shapes(draft: Draft, weights: Weights, tensors: dict[str, TensorInfo], target_hidden: int | None) -> Finding:
    size = sizes(draft)
    wanted = expected(size, draft.uses_aux, draft.flat)
    other, unjudged = _other_spellings(tensors, wanted)
    judged = [row for row in wanted if row.name in tensors and not other(row.name)]
    named = {row.name for row in wanted}
    spare = [row for row in optional(size) if row.name in tensors and row.name not in named]
    wrong = [(row, tensors[row.name]) for row in (*judged, *spare) if tensors[row.name].shape != row.shape]
    missing = [row.name for row in wanted if row.name not in tensors and not other(row.name)]
    if size.draft_vocab == size.vocab and "lm_head.weight" in missing:
        missing.remove("lm_head.weight")  # the target's own head fits, and engines share it
    extra = sorted(name for name in tensors if is_extra(name, named) and name not in unjudged)
    fc = tensors.get("fc.weight")
    found: dict[str, Any] = {
        "files": [file.name for file in weights.files],
        "names": family(weights.info),
        "slots": size.slots if draft.uses_aux else 1,
        "slots_from": size.slots_from,
        "target_hidden": size.target_hidden,
        "fc": list(fc.shape) if fc is not None else None,
        "checked": len(judged) + len(spare),
        "wrong": [
            {"tensor": info.name, "shape": list(info.shape), "expected": list(row.shape), "because": row.because}
            for row, info in wrong
        ],
        "missing": missing,
        "not_judged": sorted(unjudged),
        "skipped_by_engines": extra,
        "notes": list(weights.notes),
    }
    if found["names"] == "unknown":
        names = ", ".join(sorted(tensors)[:5])
        said = f"none of its tensors has an EAGLE-3 draft's name (it has {names}); what serves it cannot be judged here"
        return Finding(SHAPES, Verdict.UNKNOWN, said, found)
    problems = [_shape_words(row, info) for row, info in wrong]
    if not draft.uses_aux and fc is not None and size.target_hidden and fc.shape[-1] > size.target_hidden:
        problems.insert(0, _one_state_words(fc, size.target_hidden))
    if target_hidden and size.target_hidden and target_hidden != size.target_hidden:
        key = "target_hidden_size" if whole(draft.flat.get("target_hidden_size")) else "hidden_size"
        problems.insert(
            0, f"each slot is {size.target_hidden} wide ({key}) and the target's states are {target_hidden}"
        )
    if missing:
        problems.append(f"{_few(missing)} missing: engines would leave random numbers there")
    if problems:
        return Finding(SHAPES, Verdict.FAIL, "; ".join(_shown(problems)), found, _head_dim_fix(draft, size, wrong))
    if unjudged:
        said = f"{found['checked']} tensors fit the config; not judged: {_few(sorted(unjudged))}"
        return Finding(SHAPES, Verdict.UNKNOWN, said, {**found, "needs": ["shapes of fused or quantised tensors"]})
    fits = f"{found['checked']} tensors fit the config"
    if fc is not None:
        fits += f"; fc reads {found['slots']} slots of {size.target_hidden}"
    if extra:
        return Finding(SHAPES, Verdict.INFO, f"{fits}; engines skip {_few(extra)}", found)
    return Finding(SHAPES, Verdict.PASS, fits, found)


def _other_spellings(tensors: Mapping[str, TensorInfo], wanted: list[Expected]) -> tuple[Any, set[str]]:
    """(whether an expected name is not to be judged, the tensors that stand in its place).

    A layer with fused or latent attention has no q_proj of the usual shape, and nothing is missing from it.
    """
    unjudged = {name for name in tensors if any(f".{part}." in name for part in FUSED)}
    groups: set[str] = set()
    for name in unjudged:
        block, part = name.rsplit(".", 2)[:2]
        groups |= {f"{block}.{each}.weight" for each in (MLP if part == "gate_up_proj" else ATTENTION)}
    for row in wanted:
        stem = row.name[: -len(".weight")]
        packed = {name for name in tensors if name.startswith(stem + ".") and not judgeable(tensors[name])}
        if packed:
            groups.add(row.name)
            unjudged |= packed
    return lambda name: name in groups, unjudged


def _shape_words(row: Expected, info: TensorInfo) -> str:
    return f"{info.name} is {list(info.shape)}, the config calls for {list(row.shape)} ({row.because})"


def _one_state_words(fc: TensorInfo, width: int) -> str:
    return (
        f"fc.weight is {list(fc.shape)}: it reads {fc.shape[-1] / width:g} states of {width}, and use_aux_hidden_state "
        "is false"
    )


def _head_dim_fix(draft: Draft, size: Sizes, wrong: list[tuple[Expected, TensorInfo]]) -> ConfigFix | None:
    """Without head_dim engines divide; where the attention shows another number, that number is the fix."""
    attention = [(row, info) for row, info in wrong if ".self_attn." in row.name]
    rows = next((info.shape[0] for row, info in attention if row.name.endswith("q_proj.weight")), 0)
    # Only when it explains every difference: half a fix would hide the other half.
    if size.head_dim_given or not size.heads or not rows or rows % size.heads or len(attention) != len(wrong):
        return None
    return ConfigFix(set_key(draft.config, _pointer(draft, "head_dim"), rows // size.heads))


def _pointer(draft: Draft, key: str) -> str:
    nested = draft.config.get("transformer_layer_config")
    return f"/transformer_layer_config/{key}" if isinstance(nested, dict) else f"/{key}"


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
    yield _Map(draft, weights, evidence.request.args).judge()


class _Map:
    """The vocabulary map of one draft, and the numbers it is judged by."""

    def __init__(self, draft: Draft, weights: Weights, args: Sequence[str]) -> None:
        tensors = normal_names(weights.info)
        self._draft = draft
        self._args = args
        self._weights = weights
        self._d2t = next((tensors[name] for name in _D2T if name in tensors), None)
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
        offsets = self._vector(self._d2t)
        marks = self._vector(self._t2d) if self._t2d is not None else None
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
        if any(item.partition("=")[0] in _TOKEN_MAP for item in self._args):
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
        twice = offsets.size - int(np.unique(targets).size)
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
            strays = int(np.setdiff1d(targets, np.flatnonzero(marks)).size)
            self.found["strays"] = strays
            if strays:
                problems.append(f"{strays} target ids of d2t are not marked in t2d: they are of different vocabularies")
        return problems

    def _absolute(self, values: Ids, limit: int) -> bool:
        return bool(np.unique(values).size == values.size and values.min() >= 0 and values.max() < limit)

    def _size_fix(self) -> ConfigFix | None:
        """draft_vocab_size alone is wrong when the three counts of the weights agree."""
        rest = {self.found[key] for key in ("lm_head_rows", "d2t_rows", "t2d_true")} - {None}
        clean = not self.found.get("out_of_range") and not self.found.get("mapped_twice")
        if len(rest) != 1 or None in (self.found["lm_head_rows"], self.found["d2t_rows"]) or not clean:
            return None
        size = rest.pop()
        return ConfigFix(set_key(self._draft.config, "/draft_vocab_size", size)) if size != self.draft_vocab else None

    def _vector(self, info: TensorInfo) -> Values | None:
        """A row of whole numbers or marks, or None when the tensor is something else."""
        if len(info.shape) != 1 or info.dtype[0] not in "IUB" or info.dtype == "BF16":
            return None
        return read_rows(info, 0, info.rows)

    def _say(self, verdict: Verdict, summary: str, fix: ConfigFix | None = None) -> Finding:
        return Finding(VOCAB, verdict, summary, self.found, fix)


def _target_hidden(evidence: Evidence) -> int | None:
    try:
        return evidence.target.hidden if evidence.target is not None else None
    except CheckError:
        return None


def _shown(problems: list[str]) -> list[str]:
    return problems[:_SHOWN] + ([f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else [])


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
