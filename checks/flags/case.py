"""One command line under one engine: what every question on the launch flags is asked about."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional

from checks.catalog import CheckFunction, check
from checks.cfg.case import layout_for, target_of
from checks.cfg.layouts import EAGLE_ONE, names_of
from checks.draft import Draft
from checks.draft_shapes import normal_names
from checks.engines.sglang.flags import Effective, effective
from checks.engines.sglang.options import NAMES, canonical, known
from checks.engines.versions import Span, span
from checks.errors import CheckError
from checks.evidence import Evidence
from checks.finding import Finding, Fix, Verdict
from checks.launch import Launch, launch_of
from checks.rules import Serving, releases, servings
from checks.similar import similar
from checks.target import Target

EVERY = span()
EAGLES = ("EAGLE", "EAGLE3", "NEXTN")
# Nearer than the flags of one family are to each other.
_NEAR = 0.93
_NEEDS = "the launch flags (--args, or a running server)"
_RELEASE = "the engine's release (--engine sglang==VERSION)"


@dataclass(frozen=True)
class Case:
    """A command line as one release of SGLang takes it, and the models it is for."""

    id: str
    evidence: Evidence
    launch: Launch
    serving: Serving

    @property
    def draft(self) -> Draft | None:
        """The draft; None when it is not given or its config cannot be used."""
        try:
            draft = self.evidence.draft
            return draft if draft is not None and draft.config_error is None else None
        except CheckError:
            return None

    @property
    def target(self) -> Target | None:
        """The target, None when it is not given or cannot be used."""
        return target_of(self.evidence)

    @property
    def algorithm(self) -> str:
        """The speculative algorithm in capitals; empty without speculation."""
        return self.launch.facts.algorithm.upper()

    @property
    def effective(self) -> Effective | None:
        """Steps, topk and draft tokens as the server takes them; None where it would not start."""
        target = self.target
        return effective(self.launch.facts, self.serving.version, target.architecture if target is not None else "")

    @property
    def eagle3(self) -> str:
        """By what the draft is an EAGLE-3 draft: its class, or a tensor only they have; empty when nothing says so."""
        draft = self.draft
        if draft is None:
            return ""
        named = next((name for name in names_of(draft.config) if "eagle3" in name.lower()), "")
        if named:
            return named
        # DFlash drafts have a map of the vocabulary as well.
        layout = layout_for(draft)
        if layout is not None and not layout.eagle3:
            return ""
        try:
            names = normal_names(draft.weights.info) if draft.weights is not None else {}
        except CheckError:
            return ""
        return next((name for name in ("d2t", "layers.0.hidden_norm.weight") if name in names), "")

    def say(
        self, verdict: Verdict, text: str, facts: Mapping[str, Any] | None = None, fix: Fix | None = None
    ) -> Finding:
        """A finding that no release decides: PASS, INFO, UNKNOWN."""
        return Finding(self.id, verdict, text, {"launch": self.launch.source, **(facts or {})}, fix)

    def rule(
        self,
        verdict: Verdict,
        text: str,
        versions: Span = EVERY,
        facts: Mapping[str, Any] | None = None,
        fix: Fix | None = None,
    ) -> Finding:
        """A WARN or FAIL of a rule that holds for some releases, which the summary names.

        Another release: PASS. A release that is not known: UNKNOWN, unless the rule holds for every one.
        """
        found = {**(facts or {}), "versions": releases(versions)}
        said = f"{text} ({releases(versions)})"
        known = self.serving.within(versions)
        if known is None:
            return self.say(Verdict.UNKNOWN, f"{said}: the release is not known", {**found, "needs": [_RELEASE]})
        if not known:
            return self.say(Verdict.PASS, f"only in {releases(versions)}: {text}", found)
        return self.say(verdict, said, found, fix)


def other_family(case: Case) -> tuple[str, str] | None:
    """(what the draft is, its algorithm or "") where it is of a family that is neither EAGLE-3 nor EAGLE; else None."""
    draft = case.draft
    layout = layout_for(draft) if draft is not None else None
    if draft is None or layout is None or layout.eagle3 or layout is EAGLE_ONE:
        return None
    said = " ".join((*names_of(draft.config), str(draft.config.get("speculators_model_type", "")))).lower()
    return layout.name, next((name for name in ("DFLASH", "DSPARK") if name.lower() in said), "")


def slips_of(launch: Launch) -> dict[str, str]:
    """Flags that no inspected release has, and the flag each nearly is, where that one is not given."""
    found = {}
    for name in launch.facts.flags:
        near = similar(name, NAMES, _NEAR) if not known(name) else ""
        if near and canonical(near) not in launch.facts.flags:
            found[name] = canonical(near)
    return found


Judge = Callable[[Case], Optional[Finding]]


def flags_check(id: str, every: bool = False) -> Callable[[Judge], CheckFunction]:
    """Register a question on the launch flags, asked once for every engine; without flags it is UNKNOWN, once.

    Most ask for SGLang's flags: of another engine's command line they say so, and `flags.parse` alone says what is not
    known of it. `every`: the question is asked of every engine.
    """

    def register(judge: Judge) -> CheckFunction:
        @check(id)
        @functools.wraps(judge)
        def asked(evidence: Evidence) -> Iterable[Finding]:
            launch, engines = launch_of(evidence), servings(evidence)
            asked_of = [serving for serving in engines if serving.is_sglang or every]
            if launch is None and asked_of:
                yield Finding(id, Verdict.UNKNOWN, f"not checked: needs {_NEEDS}", {"needs": [_NEEDS]})
                return
            for serving in engines:
                if launch is None or serving not in asked_of:
                    said = f"not asked of {serving.words}: a question on SGLang's flags"
                    yield Finding(id, Verdict.INFO, said, {"asked_of": "sglang"}, engine=serving.label)
                    continue
                found = judge(Case(id, evidence, launch, serving))
                if found is not None:
                    yield replace(found, engine=serving.label)

        return asked

    return register
