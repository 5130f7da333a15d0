"""Keys that change what the draft computes, and the releases that read them: `cfg.forward`, `cfg.use_aux`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from checks.cfg.case import Case, cfg_check
from checks.cfg.layouts import names_of
from checks.cfg.model import LATENT
from checks.engines.versions import Span, span
from checks.finding import Finding, Verdict
from checks.rules import Serving, releases

READS_USE_AUX = span("0.5.8")
VLLM_READS_USE_AUX = span("0.12")
VLLM_SECOND_RUNNER = span("0.29")
"""Releases of vLLM that serve by model runner V2, which feeds several states whatever the key says (read in 0.32)."""
COUNTS_SLOTS = span("0.5.12")


@dataclass(frozen=True)
class Reading:
    """Releases of vLLM that read a key, and those that are known not to; of one between them nothing is known."""

    since: Span | None = None
    unread: Span | None = None

    def read_by(self, serving: Serving) -> bool | None:
        """Whether this release reads it; None where that is not known."""
        if self.unread is not None and serving.within(self.unread):
            return False
        return True if self.since is not None and serving.within(self.since) else None

    @property
    def words(self) -> str:
        """The releases that read it."""
        return releases(self.since, "vLLM") if self.since is not None else "no release of vLLM that was looked into"


@dataclass(frozen=True)
class Switch:
    """A key that changes the forward: where it may stand, and the releases that read it.

    `versions`: of SGLang (None: none do). `flat`, `nested_layout`: of vLLM, for a config of the flat layout and one of
    speculators, whose keys it copies one by one; `latent`: for a draft of latent attention, where that differs.
    `also`: keys that say the same.
    """

    key: str
    versions: Span | None
    effect: str
    nested: bool = False
    note: str = ""
    flat: Reading = Reading()
    nested_layout: Reading = Reading()
    latent: Reading | None = None
    also: tuple[str, ...] = ()

    def reading(self, case: Case) -> Reading:
        """How vLLM reads it for a draft of this layout and attention."""
        if case.draft.is_speculators:
            return self.nested_layout
        return self.latent if self.latent is not None and LATENT in names_of(case.draft.config) else self.flat


# Read in llama_eagle3.py, deepseek_eagle3.py and speculators/algos.py of the wheels of vLLM 0.8.5 to 0.11.2 and 0.22.0
# to 0.33.0.
_OLD, _READ = span("", "0.11.2"), Reading(span("0.22"), span("", "0.11.2"))
_COPIED_LATE = Reading(span("0.25.1"), span("", "0.24"))
_RESIDUAL = Reading(span("0.10.1"), span("", "0.10.0"))
_NEVER = Reading(None, span("", "0.33"))

SWITCHES: tuple[Switch, ...] = (
    Switch(
        "fc_norm",
        span("0.5.12"),
        "a norm on each state before fc",
        flat=_READ,
        nested_layout=_COPIED_LATE,
        latent=Reading(span("0.23"), span("", "0.22")),
    ),
    Switch("use_aux_norm", span("0.5.12"), "a norm on each state before fc", flat=_NEVER, nested_layout=_NEVER),
    Switch(
        "norm_output",
        span("0.5.12"),
        "the state fed to the next draft step is normed",
        note="a trainer that means the norm before the head by it (SpecForge since 2026-07) trains another feedback",
        flat=_READ,
        nested_layout=_COPIED_LATE,
    ),
    Switch(
        "norm_before_fc",
        span("0.5.17"),
        "a norm on all states before fc",
        nested=True,
        flat=_READ,
        nested_layout=_READ,
        latent=_NEVER,
    ),
    Switch(
        "norm_before_residual",
        None,
        "the residual is the normed state",
        nested=True,
        flat=_RESIDUAL,
        nested_layout=_RESIDUAL,
    ),
    Switch(
        "parallel_drafting",
        None,
        "all tokens are drafted in one pass, as P-EAGLE is trained",
        note="vLLM drafts so only where its speculative config says parallel_drafting",
        flat=Reading(span("0.22"), _OLD),
        nested_layout=Reading(span("0.22"), _OLD),
        also=("ptd_token_id", "pard_token"),
    ),
)


@cfg_check("cfg.forward", by_engine=True)
def forward(case: Case) -> Finding | None:
    """Keys that change the draft's forward are read by the engine's release.

    A release that does not know a key passes over it, drops the tensors that belong to it, and computes another draft
    than the trained one, without a word. SGLang reads `fc_norm`, `use_aux_norm`, `norm_output` and another count of
    states than 3 since 0.5.12, `norm_before_fc` since 0.5.17; `norm_before_residual` and P-EAGLE's `parallel_drafting`
    in no release. vLLM reads `norm_before_residual` since 0.10.1, the others at the latest since 0.22, none of them in
    0.11.2; from a config of speculators it copies `fc_norm` and `norm_output` only from 0.25.1 on, and a draft of
    latent attention gets no `norm_before_fc` in any release that was looked into. vLLM builds `fc` for 3 states unless
    `num_aux_hidden_states` or the ids in `eagle_config` say another count; ids at the top level it feeds and does not
    count, and for a config of speculators it counts nothing.

    FAIL: a key that is on and not read by this release; another count of states than this release builds `fc` for;
    a `hidden_act` other than silu, on which either engine stops.
    INFO: keys that are on, with the releases that read them, where no release is named or that one was not looked into,
    and what `norm_output` may mean. PASS: none is on, or all are read.

    What to do: upgrade, or retrain without it; drafts with `norm_before_residual` and of P-EAGLE are for vLLM.
    """
    on = [switch for switch in SWITCHES if _is_on(case, switch)]
    slots = _slots(case)
    facts: dict[str, Any] = {"on": [switch.key for switch in on], "slots": slots}
    unread: list[str] = []
    told: list[str] = []
    for switch in on:
        read, words = _reading(case, switch)
        note = switch.note if read is not False else ""
        if read is not True or note:
            (unread if read is False else told).append(words + (f"; {note}" if note else ""))
    act = case.config.get("hidden_act")
    if isinstance(act, str) and act != "silu":
        said = f"hidden_act is {act!r:.40}, and the MLP of a draft knows silu alone, in every release of either engine"
        return case.say(Verdict.FAIL, f"{said}: the start stops (Unsupported activation)", {**facts, "hidden_act": act})
    read, words = _counted(case, slots)
    if words:
        (unread if read is False else told if read is None else []).append(words)
    facts["unread"] = unread
    if unread:
        stops = read is False and len(unread) == 1 and bool(words) and not case.serving.is_sglang
        effect = "stops" if stops else "computes another draft"
        return case.say(Verdict.FAIL, f"{'; '.join(unread)}; {case.serving.words} {effect}", facts)
    if told:
        return case.say(Verdict.INFO, "; ".join(told), facts)
    return case.say(Verdict.PASS, f"{', '.join(facts['on']) or 'no such key'}: nothing is passed over", facts)


def _reading(case: Case, switch: Switch) -> tuple[bool | None, str]:
    """Whether the release reads a key, and which do, in words."""
    if case.serving.is_sglang:
        read = case.serving.within(switch.versions) if switch.versions is not None else False
        by = releases(switch.versions) if switch.versions is not None else "no release of SGLang"
    else:
        reading = switch.reading(case)
        read, by = reading.read_by(case.serving), reading.words
    return read, f"{switch.key} ({switch.effect}) is read by {by}"


def _counted(case: Case, slots: int | None) -> tuple[bool | None, str]:
    """Whether the release builds fc for as many states as the config says, and why not; no words for the usual 3.

    vLLM feeds what the ids at the top level name, and counts only those in eagle_config (llama_eagle3.py).
    """
    if case.serving.is_sglang:
        said = f"{slots} states are read by {releases(COUNTS_SLOTS)}; before, fc has 3"
        return case.serving.within(COUNTS_SLOTS), said if slots not in (None, 3) else ""
    known = _READ.read_by(case.serving)
    if slots is None or known is not True:
        return known, f"{slots} states are read by {_READ.words}; before, fc has 3" if slots not in (None, 3) else ""
    nested = case.draft.aux_ids.in_eagle_config
    named = len(nested) if isinstance(nested, list) and nested else None
    built = 3 if case.draft.is_speculators else case.number("num_aux_hidden_states") or named or 3
    ids = _ids(case)
    fed = len(ids) if ids else 3
    if built == fed:
        return True, ""
    why = (
        "of a config of speculators it counts none"
        if case.draft.is_speculators
        else "it counts num_aux_hidden_states, else the ids in eagle_config, and none at the top level"
    )
    return False, f"{fed} states are fed, and fc is built for {built}: {why}"


def _is_on(case: Case, switch: Switch) -> bool:
    nested = case.draft.config.get("eagle_config")
    inner = nested.get(switch.key) if switch.nested and isinstance(nested, dict) else None
    return any(bool(case.config.get(key)) for key in (switch.key, *switch.also)) or bool(inner)


def _slots(case: Case) -> int | None:
    """How many states the config says are read, None where it does not say or reads only the last."""
    if not case.draft.uses_aux:
        return None
    return case.number("num_aux_hidden_states") or len(_ids(case)) or None


def _ids(case: Case) -> set[str]:
    """The ids that this engine takes: SGLang those in eagle_config, vLLM those at the top level where there are any."""
    found = case.draft.aux_ids
    ids = found.in_eagle_config if case.serving.is_sglang or not isinstance(found.top_level, list) else found.top_level
    return set(map(str, ids)) if isinstance(ids, list) else set()


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
