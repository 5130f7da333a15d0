"""Known defects of SGLang releases that make the draft see other states than its ids say, or end it, as data."""

from __future__ import annotations

from dataclasses import dataclass

from checks.engines.sglang.layers import family_of
from checks.engines.versions import Span, release, span

# What a defect needs beside the release and the family; the check on the launch flags knows how to tell each.
GRAPHS, OWN_IDS, RANKS, A2A, IMAGES = "graphs", "own ids", "ranks", "a2a", "images"
DP, OVERLAP = "data-parallel attention", "the overlapping worker"


@dataclass(frozen=True)
class Defect:
    """In these releases, for these families (empty: all), this goes wrong.

    `needs`: what else has to hold: CUDA graphs on, ids that are not the defaults, tensor parallelism, an all-to-all
    backend of the experts, images in the prompts, data-parallel attention, the worker that SGLANG_ENABLE_SPEC_V2 turns
    on. `avoided_by`: flags under which it does not happen. `confirmed`: seen by running it or fixed upstream; else it
    was inferred from the source, or its releases from a report. `source` says how it is known.
    """

    id: str
    versions: Span
    families: tuple[str, ...]
    effect: str
    way_out: str
    source: str
    confirmed: bool = True
    needs: tuple[str, ...] = ()
    avoided_by: tuple[str, ...] = ()
    certain: bool = False
    """It happens on every machine, not only on some GPUs."""


_FUSION = "enforce-disable-flashinfer-allreduce-fusion"
_NO_FUSION = f"launch with --{_FUSION} (0.5.10 and later)"
_NO_GRAPHS = ("disable-cuda-graph", "disable-decode-cuda-graph")


def _partial_sums(family: str, since: str, until: str) -> Defect:
    """A model that adds hidden and residual outside the fused all-reduce; by reading its source only."""
    return Defect(
        f"{family.replace('_', '-')}-partial-sums",
        span(since, until),
        (family,),
        "with tensor parallelism and fused all-reduce the captured sum is not reduced over the ranks",
        _NO_FUSION,
        f"reading of {family}.py, whose sum lies outside the fused path",
        confirmed=False,
        needs=(RANKS,),
        avoided_by=(_FUSION, "enable-dp-attention"),
    )


DEFECTS: tuple[Defect, ...] = (
    Defect(
        "graph-default-layers",
        span("0.4.9", "0.5.10"),
        (),
        "graphs are captured with the default layers before the configured ids are applied: replayed decode feeds "
        "k=2, n//2, n-3 while eager prefill feeds the configured states, so a capture of the prompt looks right",
        "upgrade to 0.5.11 or later, or compare accept length with --disable-cuda-graph",
        "upstream pull request 22836",
        needs=(GRAPHS, OWN_IDS),
        avoided_by=_NO_GRAPHS,
        certain=True,
    ),
    Defect(
        "graph-marks-stay",
        span("0.5.5", "0.5.10"),
        ("qwen2_moe", "qwen3_moe"),
        "the marks of the default layers are never taken off: eager prefill captures default and configured states "
        "together, more than fc takes",
        "upgrade to 0.5.11 or later",
        "reading of qwen2_moe.py and qwen3_moe.py",
        confirmed=False,
        needs=(GRAPHS, OWN_IDS),
        avoided_by=_NO_GRAPHS,
    ),
    Defect(
        "graph-marks-stay",
        span("0.5.9", "0.5.10"),
        ("qwen3_next",),
        "the marks of the default layers are never taken off: eager prefill captures default and configured states "
        "together, more than fc takes",
        "upgrade to 0.5.11 or later",
        "reading of qwen3_next.py",
        confirmed=False,
        needs=(GRAPHS, OWN_IDS),
        avoided_by=_NO_GRAPHS,
    ),
    Defect(
        "gemma3-mlp-share",
        span("0.5.17", "0.5.23"),
        ("gemma3",),
        "the captured tensor is the MLP's share of the layer, without the residual stream: no R_k at all",
        "use 0.5.16 or earlier, or a build with upstream pull request 39286",
        "run on 0.5.23; upstream pull request 39286",
        certain=True,
    ),
    Defect(
        "gemma4-by-reference",
        span("0.5.12", "0.5.21"),
        ("gemma4",),
        "the captured states are kept by reference and may be overwritten in place by the next layer",
        "upgrade to 0.5.22 or later",
        "reading of gemma4_causal.py",
        confirmed=False,
    ),
    Defect(
        "minimax-m3-captures-nothing",
        span("0.5.16", "0.5.17"),
        ("minimax_m3",),
        "the list of layers is set and the marks the loop tests are not: no state is captured",
        "upgrade to 0.5.18 or later",
        "reading of minimax_m3.py",
        confirmed=False,
    ),
    Defect(
        "deepseek-partial-sums",
        span("0.5.5", "0.5.13"),
        ("deepseek_v2",),
        "with tensor parallelism and fused all-reduce the captured sum is not reduced over the ranks",
        f"upgrade to 0.5.14 or later, or {_NO_FUSION}",
        "upstream pull request 28343",
        needs=(RANKS,),
        avoided_by=(_FUSION, "enable-dp-attention"),
    ),
    Defect(
        "deepseek-a2a-gather",
        span("0.5.7", "0.5.13"),
        ("deepseek_v2",),
        "with an all-to-all backend of the experts only states beyond the first dense layers are gathered over the "
        "ranks",
        "upgrade to 0.5.14 or later, or launch without the all-to-all backend",
        "upstream pull request 14280",
        needs=(RANKS, A2A),
    ),
    Defect(
        "overlap-dp-attention",
        span("0.5.6", "0.5.7"),
        (),
        "with data-parallel attention the overlapping worker extends the draft over one token a request instead of all "
        "that were verified: accept length fell from 2.35 to 1.48 in the report",
        "upgrade to 0.5.8 or later, or unset SGLANG_ENABLE_SPEC_V2",
        "upstream issue 16274 and pull request 16310; the releases by reading eagle_worker_v2.py, whose extension of "
        "the draft counts 1 token in these and steps + 1 in later ones",
        needs=(DP, OVERLAP),
        avoided_by=("disable-overlap-schedule",),
    ),
    Defect(
        "gpt-oss-draft-graph",
        span("0.5.13", "0.5.14"),
        ("gpt_oss",),
        "replaying the draft's graphs ends the server with an illegal memory access, once many running requests become "
        "few",
        "launch with --disable-cuda-graph to see whether it is this, and try a later release",
        "upstream issue 28569, a reproduction on the main branch between these releases, closed without a fix",
        confirmed=False,
        needs=(GRAPHS,),
        avoided_by=_NO_GRAPHS,
    ),
    _partial_sums("gpt_oss", "0.5.1", "0.5.20"),
    _partial_sums("glm4_moe", "0.5.5", "0.5.20"),
    _partial_sums("glm4_moe_lite", "0.5.13", "0.5.20"),
    _partial_sums("minimax_m2", "0.5.6", "0.5.10"),
    _partial_sums("bailing_moe", "0.5.9", "0.5.20"),
    _partial_sums("exaone_moe", "0.5.9", "0.5.21"),
    _partial_sums("qwen3_vl", "0.5.11", "0.5.20"),
    _partial_sums("qwen3_moe", "0.4.9", "0.5.4"),
    _partial_sums("qwen2_moe", "0.5.2", "0.5.4"),
    Defect(
        "qwen3-vl-deepstack",
        span("0.5.8", "0.5.18"),
        ("qwen3_vl",),
        "for prompts with images the captured states lack the image features of the layer below; earlier and later "
        "releases include them, so a draft trained on the one is served the other",
        "train and serve on the same side of 0.5.19; text alone is not concerned",
        "reading of qwen3_vl.py",
        confirmed=False,
        needs=(IMAGES,),
    ),
)


def defects_of(version: str, architecture: str) -> tuple[Defect, ...]:
    """The defects of a release for a target's architecture, confirmed or inferred; of every release for version ""."""
    asked, family = release(version), family_of(architecture)
    return tuple(
        item
        for item in DEFECTS
        if (not asked or asked in item.versions) and (not item.families or family in item.families)
    )
