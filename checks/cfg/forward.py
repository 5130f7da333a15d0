"""Keys that change what the draft computes, and the releases that read them: `cfg.forward`, `cfg.use_aux`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from checks.cfg.case import Case, cfg_check
from checks.engines.versions import Span, span
from checks.finding import Finding, Verdict
from checks.rules import releases

READS_USE_AUX = span("0.5.8")
VLLM_READS_USE_AUX = span("0.12")
VLLM_SECOND_RUNNER = span("0.29")
"""Releases of vLLM that serve by model runner V2, which feeds several states whatever the key says (read in 0.32)."""
COUNTS_SLOTS = span("0.5.12")


@dataclass(frozen=True)
class Switch:
    """A key that changes the forward: where it may stand, and the releases of SGLang that read it (None: none do)."""

    key: str
    versions: Span | None
    effect: str
    nested: bool = False
    note: str = ""


SWITCHES: tuple[Switch, ...] = (
    Switch("fc_norm", span("0.5.12"), "a norm on each state before fc"),
    Switch("use_aux_norm", span("0.5.12"), "a norm on each state before fc"),
    Switch(
        "norm_output",
        span("0.5.12"),
        "the state fed to the next draft step is normed",
        note="a trainer that means the norm before the head by it (SpecForge since 2026-07) trains another feedback",
    ),
    Switch("norm_before_fc", span("0.5.17"), "a norm on all states before fc", nested=True),
    Switch("norm_before_residual", None, "the residual is the normed state", nested=True),
)


@cfg_check("cfg.forward", by_engine=True)
def forward(case: Case) -> Finding | None:
    """Keys that change the draft's forward are read by the engine's release.

    A release that does not know a key passes over it, drops the tensors that belong to it, and computes another draft
    than the trained one, without a word: `fc_norm`, `use_aux_norm`, `norm_output` and another count of states than 3
    are read since SGLang 0.5.12, `norm_before_fc` since 0.5.17, `norm_before_residual` by none.

    FAIL: a key that is on and not read by this release. INFO: keys that are on, with the releases that read them, where
    no release is named, and what `norm_output` may mean. PASS: none is on, or all are read.

    What to do: upgrade, or retrain without it; `norm_before_residual` drafts are for vLLM.
    """
    on = [switch for switch in SWITCHES if _is_on(case, switch)]
    slots = _slots(case)
    facts: dict[str, Any] = {"on": [switch.key for switch in on], "slots": slots}
    if not case.serving.is_sglang:
        said = f"on: {', '.join(facts['on'])}" if on else "no key that changes the forward is on"
        return case.say(Verdict.INFO if on else Verdict.PASS, said, facts)
    unread: list[str] = []
    told: list[str] = []
    for switch in on:
        read = case.serving.within(switch.versions) if switch.versions is not None else False
        by = releases(switch.versions) if switch.versions is not None else "no release of SGLang"
        words = f"{switch.key} ({switch.effect}) is read by {by}"
        (unread if read is False else told if read is None or switch.note else []).append(
            words + (f"; {switch.note}" if switch.note and read is not False else "")
        )
    if slots not in (None, 3):
        read = case.serving.within(COUNTS_SLOTS)
        words = f"{slots} states are read by {releases(COUNTS_SLOTS)}; before, fc has 3"
        (unread if read is False else told if read is None else []).append(words)
    facts["unread"] = unread
    if unread:
        return case.say(Verdict.FAIL, f"{'; '.join(unread)}; {case.serving.words} computes another draft", facts)
    if told:
        return case.say(Verdict.INFO, "; ".join(told), facts)
    return case.say(Verdict.PASS, f"{', '.join(facts['on']) or 'no such key'}: nothing is passed over", facts)


def _is_on(case: Case, switch: Switch) -> bool:
    nested = case.draft.config.get("eagle_config")
    inner = nested.get(switch.key) if switch.nested and isinstance(nested, dict) else None
    return bool(case.config.get(switch.key)) or bool(inner)


def _slots(case: Case) -> int | None:
    """How many states the config says are read, None where it does not say or reads only the last."""
    if not case.draft.uses_aux:
        return None
    ids = case.draft.aux_ids.in_eagle_config
    return case.number("num_aux_hidden_states") or (len(set(map(str, ids))) if isinstance(ids, list) and ids else None)


@cfg_check("cfg.use_aux", by_engine=True)
def use_aux(case: Case) -> Finding | None:
    """`eagle_config.use_aux_hidden_state` says what `fc` is made for.

    False means that the draft reads the target's last state alone, and then `fc` has one state's width or is absent;
    there are no layer ids to check. True, or absent, means several states side by side. SGLang reads the key since
    0.5.8, vLLM since 0.12; before, three states are fed whatever it says, and so in vLLM's model runner V2.

    FAIL: false, and `fc` is several states wide; false, and a release that does not read it; neither true nor false
    (a text such as "false" counts as true). WARN: false, and a release of vLLM that takes model runner V2 by default.

    What to do: correct the key to what the draft was trained for; upgrade where it is not read.
    """
    nested = case.draft.config.get("eagle_config")
    given = nested.get("use_aux_hidden_state") if isinstance(nested, dict) else None
    fc = case.tensors.get("fc.weight")
    width, columns = case.draft.target_hidden, fc.shape[-1] if fc is not None and fc.shape else None
    facts: dict[str, Any] = {"use_aux_hidden_state": given, "fc_columns": columns, "state_width": width}
    if given is not None and not isinstance(given, bool):
        said = f"use_aux_hidden_state is {given!r:.40}, not true or false; engines take it for {bool(given)}".lower()
        return case.say(Verdict.FAIL, said, facts)
    if given is not False:
        return case.say(Verdict.PASS, "the draft reads several states", facts)
    if columns and width and columns > width:
        said = f"use_aux_hidden_state is false, and fc has {columns} columns, {columns / width:g} states of {width}"
        return case.say(Verdict.FAIL, said, facts)
    if case.serving.is_sglang and case.serving.within(READS_USE_AUX) is False:
        said = (
            f"use_aux_hidden_state is false, which {releases(READS_USE_AUX)} reads: {case.serving.version} feeds three"
        )
        return case.say(Verdict.FAIL, said, facts)
    if case.serving.is_sglang and case.serving.within(READS_USE_AUX) is None:
        return case.say(
            Verdict.INFO, f"the draft reads the last state alone; {releases(READS_USE_AUX)} knows that", facts
        )
    said = "the draft reads the last state alone, and so fc has one state's width or is absent"
    if not case.serving.is_sglang and case.serving.within(VLLM_READS_USE_AUX) is False:
        before = f"use_aux_hidden_state is false, which {releases(VLLM_READS_USE_AUX, 'vLLM')} reads"
        return case.say(Verdict.FAIL, f"{before}: {case.serving.words} feeds three states", facts)
    if not case.serving.is_sglang and case.serving.within(VLLM_SECOND_RUNNER):
        runner = f"model runner V2, the default of {releases(VLLM_SECOND_RUNNER, 'vLLM')}, feeds several all the same"
        return case.say(Verdict.WARN, f"{said}; {runner}: start with VLLM_USE_V2_MODEL_RUNNER=0", facts)
    return case.say(Verdict.PASS, said, facts)
