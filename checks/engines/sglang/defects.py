"""Known defects of SGLang releases that make the fed states differ from what the ids say."""

from __future__ import annotations

from dataclasses import dataclass

from checks.engines.sglang.layers import family_of
from checks.engines.versions import Span, release, span


@dataclass(frozen=True)
class Defect:
    """In these releases, for these families (empty: all), this goes wrong; `source` says how it is known."""

    id: str
    versions: Span
    families: tuple[str, ...]
    effect: str
    way_out: str
    source: str


DEFECTS: tuple[Defect, ...] = (
    Defect(
        "graph-default-layers",
        span("0.4.9", "0.5.10"),
        (),
        "graphs are captured with the default layers before the configured ids are applied: replayed decode feeds "
        "k=2, n//2, n-3 while eager prefill feeds the configured states, so a capture of the prompt looks right",
        "upgrade to 0.5.11 or later, or compare accept length with --disable-cuda-graph",
        "upstream pull request 22836",
    ),
    Defect(
        "gemma3-mlp-share",
        span("0.5.17", "0.5.23"),
        ("gemma3",),
        "the captured tensor is the MLP's share of the layer, without the residual stream: no R_k at all",
        "use 0.5.16 or earlier, or a build with upstream pull request 39286",
        "upstream pull request 39286",
    ),
    Defect(
        "deepseek-partial-sums",
        span("0.5.5", "0.5.13"),
        ("deepseek_v2",),
        "with tensor parallelism and fused all-reduce the captured sum is not reduced over the ranks",
        "upgrade to 0.5.14 or later, or launch with --enforce-disable-flashinfer-allreduce-fusion (0.5.10 and later)",
        "upstream pull request 28343",
    ),
)


def defects_of(version: str, architecture: str) -> tuple[Defect, ...]:
    """The known defects of a release for a target's architecture."""
    asked, family = release(version), family_of(architecture)
    return tuple(
        item for item in DEFECTS if asked and asked in item.versions and (not item.families or family in item.families)
    )
