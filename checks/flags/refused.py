"""`flags.refused`: flags that a release refuses beside speculation, so that the server does not start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from checks.engines.versions import Span, span
from checks.finding import Finding, Verdict
from checks.flags.case import EAGLES, Case, flags_check
from checks.launch import Launch
from checks.rules import releases


@dataclass(frozen=True)
class Refusal:
    """A flag that these releases refuse beside EAGLE and EAGLE3, and what they say.

    `value`: the one value that is refused; "" = any. `unless`: a value that is the flag's way of being off. `above`: a
    number above which it counts.
    """

    flag: str
    versions: Span
    says: str
    value: str = ""
    unless: str = ""
    above: int | None = None

    def is_on(self, launch: Launch) -> bool:
        """Whether the command line has it."""
        if self.above is not None:
            return (launch.number(self.flag) or 0) > self.above
        if self.value:
            return launch.text(self.flag) == self.value
        return launch.has(self.flag) and launch.text(self.flag) != (self.unless or None)


_LORA = "LoRA is served beside NGRAM alone (ValueError)"

# Read in server_args.py and arg_groups of the wheels from 0.5.2 to 0.5.23.
REFUSALS: tuple[Refusal, ...] = (
    Refusal("enable-lora", span("0.5.6", "0.5.18"), _LORA),
    Refusal("lora-paths", span("0.5.6", "0.5.18"), _LORA),
    Refusal("attention-backend", span("0.5.3"), "it has no speculation (AssertionError)", value="flex_attention"),
    Refusal("dcp-size", span("0.5.15", "0.5.16"), "on CUDA it takes no speculation (ValueError)", above=1),
    Refusal("enable-unified-memory", span("0.5.15", "0.5.17"), "it takes no speculation (AssertionError)"),
    Refusal("weight-cache-mode", span("0.5.17"), "the draft's weights are not cached (ValueError)", unless="off"),
    Refusal(
        "speculative-moe-runner-backend",
        span("0.5.7", "0.5.9"),
        "it is refused for drafts (AssertionError)",
        value="flashinfer_trtllm",
    ),
)


@flags_check("flags.refused")
def refused(case: Case) -> Finding | None:
    """No flag is one that this release refuses beside speculation.

    SGLang checks its flags against each other before it loads anything. LoRA (0.5.6 to 0.5.18), flex attention, decode
    context parallelism (0.5.15 and 0.5.16), unified memory (0.5.15 to 0.5.17) and the weight cache stop the start with
    an error that names the flag and not always the speculation.

    FAIL: such a flag, and a release that refuses it. UNKNOWN: such a flag, and no release named. PASS: none.

    What to do: leave the flag out, or the speculation, or take a release that has both.
    """
    met = [item for item in REFUSALS if item.is_on(case.launch)] if case.algorithm in EAGLES else []
    facts: dict[str, Any] = {"refused": [item.flag for item in met]}
    if not met:
        return case.say(Verdict.PASS, "no flag is refused beside speculation", facts)
    here = [item for item in met if case.serving.within(item.versions) is not False]
    first = (here or met)[0]
    value = f" {case.launch.text(first.flag)}" if first.value or first.unless or first.above is not None else ""
    said = f"--{first.flag}{value} beside --speculative-algorithm {case.algorithm}: {first.says}, and the start stops"
    others = sorted({item.flag for item in here} - {first.flag, *(("lora-paths",) if first.says is _LORA else ())})
    said += f"; so do {', '.join(f'--{name}' for name in others)} ({releases(first.versions)})" if others else ""
    return case.rule(Verdict.FAIL, said, first.versions, facts)
