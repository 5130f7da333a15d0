"""What was left on: switches that invent numbers, slow the server down, or do nothing at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from checks.cfg.layouts import names_of
from checks.cfg.model import LATENT
from checks.engines.versions import Span, span
from checks.finding import Finding, FlagsFix, Verdict
from checks.flags.case import EAGLES, EVERY, Case, flags_check
from checks.launch import Launch
from checks.rules import releases


@dataclass(frozen=True)
class Left:
    """A switch for debugging: a flag or a variable, what it does, and how bad that is for a server that is used."""

    name: str
    verdict: Verdict
    effect: str
    versions: Span = EVERY
    variable: bool = False
    value: str = ""
    off: str = "0"

    def is_on(self, launch: Launch) -> bool:
        """Whether it is on: a number counts above 0 only, and some flags by one value."""
        if not self.variable:
            return launch.text(self.name) == self.value if self.value else launch.has(self.name)
        held = launch.env.get(self.name, "").strip()
        try:
            return float(held) > 0
        except ValueError:
            return launch.switched_on(self.name)


_FAKE = "the acceptance is invented: texts and numbers are not the draft's"
_SLOW = "slows every step down"
_DUMPS = "writes tensors to disk on every step"

LEFT: tuple[Left, ...] = (
    Left("SGLANG_SIMULATE_ACC_LEN", Verdict.FAIL, _FAKE, span("0.5.3"), variable=True, off="-1"),
    Left("SIMULATE_ACC_LEN", Verdict.FAIL, _FAKE, span("", "0.5.2"), variable=True, off="-1"),
    Left("speculative-draft-load-format", Verdict.FAIL, "the draft's weights are random", span("0.5.4"), value="dummy"),
    Left("load-format", Verdict.FAIL, "the weights are random", value="dummy"),
    Left("CUDA_LAUNCH_BLOCKING", Verdict.WARN, _SLOW, variable=True),
    Left("TORCH_SHOW_CPP_STACKTRACES", Verdict.INFO, "for debugging", variable=True),
    Left("NCCL_DEBUG_SUBSYS", Verdict.INFO, "fills the log", variable=True),
    Left("DUMPER_ENABLE", Verdict.WARN, _DUMPS, span("0.5.10"), variable=True),
    Left("SGLANG_DUMPER_ENABLE", Verdict.WARN, _DUMPS, span("", "0.5.9"), variable=True),
    Left("debug-tensor-dump-output-folder", Verdict.WARN, _DUMPS),
    Left("debug-tensor-dump-inject", Verdict.WARN, "replaces computed tensors", span("", "0.5.13")),
    Left("debug-cuda-graph", Verdict.WARN, _SLOW),
    Left("enable-nan-detection", Verdict.INFO, "checks every output"),
    Left("enable-torch-compile-debug-mode", Verdict.WARN, _SLOW),
    Left("log-level", Verdict.INFO, "fills the log", value="debug"),
    Left("disable-overlap-schedule", Verdict.INFO, "scheduling waits for every step"),
)


@flags_check("flags.debug")
def debug(case: Case) -> Finding | None:
    """No switch for debugging was left on.

    SGLANG_SIMULATE_ACC_LEN (SIMULATE_ACC_LEN up to 0.5.2) makes the server accept an invented number of tokens: the
    output is not the target's, and every number of acceptance is the variable's. A `dummy` load format fills a model
    with random weights.

    FAIL: invented acceptance or random weights. WARN: dumps, and what blocks every step. INFO: switches that only talk.
    `evidence.on` lists all that are on.

    What to do: stage the fix, which turns them off.
    """
    on = [item for item in LEFT if item.is_on(case.launch) and case.serving.within(item.versions) is not False]
    facts: dict[str, Any] = {"on": [item.name for item in on]}
    loud = [item for item in on if item.verdict is not Verdict.INFO]
    if not loud:
        said = "; ".join(f"{_name(item)} {item.effect}" for item in on) or "none is on"
        return case.say(Verdict.INFO if on else Verdict.PASS, said, facts)
    fix = FlagsFix(
        unset=tuple(item.name for item in loud if not item.variable),
        env={item.name: item.off for item in loud if item.variable},
    )
    worst = Verdict.FAIL if any(item.verdict is Verdict.FAIL for item in loud) else Verdict.WARN
    said = "; ".join(f"{_name(item)}: {item.effect} ({releases(item.versions)})" for item in loud)
    facts["versions"] = {item.name: releases(item.versions) for item in loud}
    return case.say(worst, said, facts, fix)


def _name(item: Left) -> str:
    return item.name if item.variable else f"--{item.name}" + (f" {item.value}" if item.value else "")


@flags_check("flags.cuda_graph")
def cuda_graph(case: Case) -> Finding | None:
    """Decoding replays CUDA graphs.

    Speculation runs many small kernels a step; without graphs the launches cost more than a draft saves. Up to 0.5.10
    switching graphs off is the way out of a defect (flags.known_defect), and so only told.

    WARN: --disable-cuda-graph. INFO: the same in a release up to 0.5.10. PASS: graphs are on.

    What to do: take the flag out; for memory lower --cuda-graph-max-bs instead.
    """
    names = ("disable-cuda-graph", "disable-decode-cuda-graph")
    off = [name for name in names if case.launch.has(name)]
    if not off:
        return case.say(Verdict.PASS, "graphs are not switched off", {"off": off})
    said = f"--{off[0]}: every step launches its kernels one by one"
    if case.serving.within(span("0.5.11")) is False:
        return case.say(Verdict.INFO, f"{said}; up to 0.5.10 that is the way out of a defect", {"off": off})
    return case.rule(Verdict.WARN, said, EVERY, {"off": off}, FlagsFix(unset=tuple(off)))


@flags_check("flags.spec_v2_env")
def spec_v2_env(case: Case) -> Finding | None:
    """SGLANG_ENABLE_SPEC_V2 means something in this release.

    From 0.5.5 to 0.5.10 it turns the overlapping worker on (topk 1 only), in 0.5.11 and 0.5.12 that is the default and
    0 turns it off, from 0.5.13 on there is no other worker: 0.5.14 to 0.5.20 say that it was removed, later ones
    nothing. There --disable-overlap-schedule is what 0 meant.

    WARN: set for a release where it does nothing any more; on with topk above 1, where it needs 1. INFO: set and
    effective, or no release named. PASS: not set.

    What to do: take it out of the environment.
    """
    variable = "SGLANG_ENABLE_SPEC_V2"
    value = case.launch.env.get(variable)
    facts = {"value": value}
    if value is None:
        return case.say(Verdict.PASS, f"{variable} is not set", facts)
    if not case.serving.version:
        said = f"{variable}={value!r:.20}: effective in {releases(span('0.5.5', '0.5.12'))}, nothing from 0.5.13 on"
        return case.say(Verdict.INFO, said, facts)
    gone = span("0.5.13")
    if case.serving.within(gone):
        said = f"{variable}={value!r:.20} does nothing any more; --disable-overlap-schedule is what 0 meant"
        return case.rule(Verdict.WARN, said, gone, facts)
    early, now = span("0.5.5", "0.5.10"), case.effective
    if case.serving.within(early) and case.launch.switched_on(variable) and now is not None and now.topk > 1:
        said = f"{variable} is on and topk is {now.topk}: this worker takes topk 1 only"
        return case.rule(Verdict.WARN, said, early, facts)
    if case.serving.within(span("0.5.5")):
        return case.say(Verdict.INFO, f"{variable}={value!r:.20} chooses the worker in {case.serving.version}", facts)
    return case.say(Verdict.INFO, f"{variable} is unknown to {case.serving.version}: nothing changes", facts)


@flags_check("flags.ignored")
def ignored(case: Case) -> Finding | None:
    """No flag is given that this draft or algorithm passes over.

    EAGLE3 takes its token map from the draft, never from --speculative-token-map. A draft of latent attention ignores
    --speculative-draft-window-size without a word; one of dense attention --speculative-draft-sink-size.

    WARN: a draft window that is ignored. INFO: the others. PASS: none.

    What to do: take the flag out, or do not rely on it.
    """
    latent = case.draft is not None and LATENT in names_of(case.draft.config)
    launch = case.launch
    told = []
    if case.algorithm == "EAGLE3" and launch.has("speculative-token-map"):
        told.append("--speculative-token-map: EAGLE3 takes the map from the draft")
    if case.algorithm in EAGLES and not latent and launch.has("speculative-draft-sink-size"):
        told.append("--speculative-draft-sink-size: only drafts of latent attention use it")
    if case.algorithm == "EAGLE3" and launch.has("enable-multi-layer-eagle"):
        told.append("--enable-multi-layer-eagle: for a model's own prediction layers, not EAGLE-3")
    facts = {"ignored": told}
    if latent and launch.has("speculative-draft-window-size"):
        said = f"--speculative-draft-window-size is passed over by {LATENT}: the draft keeps its whole context"
        fix = FlagsFix(unset=("speculative-draft-window-size",))
        return case.rule(Verdict.WARN, said, span("0.5.12"), facts, fix)
    return case.say(Verdict.INFO if told else Verdict.PASS, "; ".join(told) or "none", facts)
