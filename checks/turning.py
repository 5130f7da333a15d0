"""Whether a draft of latent attention was trained to turn its keys as its config says, or otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from checks.acceptance import Estimate, Hits, paired_gain
from checks.draft import Draft
from checks.eagle3 import DraftShape
from checks.patch import apply_patch, set_key
from checks.rotary import kind_of, rope_settings
from checks.stretches import Bench, Floats, Stretch

LOST_BASE = 10000.0
"""The base a trainer turns with that does not pass its config's on: TorchSpec's latent drafts under yarn, at 6f21829c
(`torchspec/models/draft/deepseek_eagle.py`, `_init_rope`). Engines turn with the config's."""


@dataclass(frozen=True)
class Turning:
    """Another way to turn: what it is in the config's words, the shape that has it, and the key that says it."""

    words: str
    shape: DraftShape
    pointer: str
    value: object


@dataclass(frozen=True)
class Tried:
    """A turning and what it gains over the config's own, in tokens a round, paired on the same anchors."""

    turning: Turning
    gain: Estimate


def turnings(draft: Draft, shape: DraftShape) -> Iterator[Turning]:
    """The other ways in which a trainer may have turned; none for grouped attention, where all known agree."""
    latent = shape.latent
    if latent is None:
        return
    where = "" if shape.rope is draft.config else "/transformer_layer_config"
    theta, scaling = rope_settings(shape.rope)
    if kind_of(scaling) == "yarn" and theta != LOST_BASE:
        pointer = where + _base_key(shape.rope)
        yield Turning("rope_theta 10000", _with_key(draft, shape, pointer, LOST_BASE), pointer, LOST_BASE)
    other = not latent.interleaved
    words = f"rope_interleave {str(other).lower()} (SGLang turns by this key, vLLM turns neighbours whatever it says)"
    key = f"{where}/rope_interleave"
    yield Turning(words, replace(shape, latent=replace(latent, interleaved=other)), key, other)


def tried_turnings(draft: Draft, board: Bench, hits: Sequence[Hits], aux: Callable[[Stretch], Floats]) -> list[Tried]:
    """The other turnings over the same rows, the best first; their intervals hold for all of them together."""
    ways = list(turnings(draft, board.drafter.shape))
    out = []
    for way in ways:
        other = replace(board, drafter=board.drafter.with_shape(way.shape)).run(aux)
        out.append(Tried(way, paired_gain(hits, other, board.valid, len(ways))))
    return sorted(out, key=lambda one: -one.gain.mean)


def _base_key(rope: Mapping[str, Any]) -> str:
    for key in ("rope_parameters", "rope_scaling"):
        held = rope.get(key)
        if isinstance(held, Mapping):
            return f"/{key}/rope_theta" if "rope_theta" in held else "/rope_theta"
    return "/rope_theta"


def _with_key(draft: Draft, shape: DraftShape, pointer: str, value: object) -> DraftShape:
    changed = apply_patch(draft.config, set_key(draft.config, pointer, value))
    return replace(shape, rope=changed if shape.rope is draft.config else changed["transformer_layer_config"])
