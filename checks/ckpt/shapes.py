"""`ckpt.shapes`: the tensors of the draft's weights have the names and shapes its config calls for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from checks.catalog import check
from checks.cfg.case import layout_for
from checks.ckpt.vocab_map import find_map
from checks.draft import Draft
from checks.draft_shapes import (
    ATTENTION,
    FUSED,
    MLP,
    Expected,
    Sizes,
    expected,
    family,
    is_extra,
    judgeable,
    layers_in,
    normal_names,
    optional,
    sizes,
)
from checks.errors import BadTensors, CheckError
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict
from checks.tensors import TensorInfo
from checks.weights import Weights

SHAPES, HEAD = "ckpt.shapes", "lm_head.weight"

# Enough to see the pattern; a wrong hidden_size alone makes every row wrong.
_SHOWN = 6


@check(SHAPES, needs=(Need.DRAFT,))
def shapes(evidence: Evidence) -> Iterable[Finding]:
    """The tensors of the draft's weights have the names and shapes its config calls for.

    Read from the headers alone. Above all the width of `fc`: number of slots times the target's hidden size. Engines
    are lenient where it hurts: SGLang skips names it does not know and leaves missing tensors as random numbers, both
    in silence, so a draft may load and accept nothing.

    FAIL: a shape differs; a tensor is missing that engines do not get elsewhere. UNKNOWN: fused, latent-attention or
    quantised tensors, whose shapes these formulas do not give; the rest is judged. What another check says is not said
    twice: damaged files (ckpt.container), another head_dim (cfg.head_dim), rows of the head against a map
    (ckpt.vocab_map), a target of another width (cfg.hidden_vs_target).
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
        yield Finding(SHAPES, Verdict.UNKNOWN, f"not checked: {error}", {"needs": ["whole files: see ckpt.container"]})
        return
    if weights is None:
        reason = evidence.missing(Need.DRAFT_WEIGHTS)
        yield Finding(SHAPES, Verdict.UNKNOWN, f"not checked: {reason}", {"needs": [Need.DRAFT_WEIGHTS.value]})
        return
    yield _judge_shapes(draft, weights, tensors, _target_hidden(evidence))


def _judge_shapes(draft: Draft, weights: Weights, tensors: dict[str, TensorInfo], target_hidden: int | None) -> Finding:
    size = sizes(draft)
    # How many layers there are is ckpt.layers' question; here each one that is there is held to its shapes.
    size = replace(size, layers=layers_in(tensors) or size.layers)
    wanted = expected(size, draft.uses_aux, draft.flat)
    other, unjudged = _other_spellings(tensors, wanted)
    judged = [row for row in wanted if row.name in tensors and not other(row.name)]
    named = {row.name for row in wanted}
    spare = [row for row in optional(size) if row.name in tensors and row.name not in named]
    known = named | {row.name for row in spare}
    wrong = [(row, tensors[row.name]) for row in (*judged, *spare) if tensors[row.name].shape != row.shape]
    if find_map(weights) is not None:
        wrong = [(row, info) for row, info in wrong if row.name != HEAD or info.shape[1:] != row.shape[1:]]
    missing = [row.name for row in wanted if row.name not in tensors and not other(row.name)]
    if size.draft_vocab == size.vocab and HEAD in missing:
        missing.remove(HEAD)  # the target's own head fits, and engines share it
    extra = sorted(name for name in tensors if is_extra(name, known) and name not in unjudged)
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
    layout = layout_for(draft)
    if layout is not None and not layout.eagle3:
        found["needs"] = ["an EAGLE-3 draft"]
        return Finding(SHAPES, Verdict.UNKNOWN, f"a draft of {layout.name}: its tensors cannot be judged here", found)
    problems = [_shape_words(row, info) for row, info in wrong]
    if not draft.uses_aux and fc is not None and size.target_hidden and fc.shape[-1] > size.target_hidden:
        problems.insert(0, _one_state_words(fc, size.target_hidden))
    if missing:
        problems.append(f"{_few(missing)} missing: engines would leave random numbers there")
    if wrong and len(problems) == len(wrong) and _by_head_dim(size, draft, tensors, wrong):
        said = "the shapes of attention are those of another head_dim: see cfg.head_dim"
        return Finding(SHAPES, Verdict.UNKNOWN, said, {**found, "needs": ["the right head_dim"]})
    if problems:
        return Finding(SHAPES, Verdict.FAIL, "; ".join(_shown(problems)), found)
    if unjudged:
        said = f"{found['checked']} tensors fit the config; not judged: {_few(sorted(unjudged))}"
        return Finding(SHAPES, Verdict.UNKNOWN, said, {**found, "needs": ["shapes of fused or quantised tensors"]})
    fits = f"{found['checked']} tensors fit the config"
    if fc is not None:
        fits += f"; fc reads {found['slots']} slots of {size.target_hidden}"
    if target_hidden and size.target_hidden and target_hidden != size.target_hidden:
        said = f"{fits}, and the target's states are {target_hidden} wide: see cfg.hidden_vs_target"
        return Finding(SHAPES, Verdict.INFO, said, {**found, "target_states": target_hidden})
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


def _by_head_dim(
    size: Sizes, draft: Draft, tensors: Mapping[str, TensorInfo], wrong: list[tuple[Expected, TensorInfo]]
) -> bool:
    """Whether another head_dim, by the rows of q_proj, explains every difference."""
    rows = next((info.shape[0] for row, info in wrong if row.name.endswith("q_proj.weight")), 0)
    if not size.heads or not rows or rows % size.heads:
        return False
    other = replace(size, head_dim=rows // size.heads)
    right = {row.name: row.shape for row in expected(other, draft.uses_aux, draft.flat)}
    return all(tensors[row.name].shape == right.get(row.name) for row, _ in wrong)


def _target_hidden(evidence: Evidence) -> int | None:
    try:
        return evidence.target.hidden if evidence.target is not None else None
    except CheckError:
        return None


def _shown(problems: list[str]) -> list[str]:
    return problems[:_SHOWN] + ([f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else [])


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
