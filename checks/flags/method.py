"""vLLM's side of `flags.algo_vs_arch`: the method that its speculative config names, for this draft."""

from __future__ import annotations

import json
from typing import Any

from checks.engines.vllm.launch import METHOD, SPECULATION, parse_argv
from checks.finding import Finding, FlagsFix, Verdict
from checks.flags.case import Case, other_family


def method_vs_arch(case: Case) -> Finding:
    """Whether --speculative-config names the method that this draft is made for."""
    server, by = case.evidence.request.server, case.eagle3
    words = server.argv or case.evidence.request.args
    facts_ = parse_argv([str(word) for word in words], server.cwd)
    method, given = facts_.algorithm.lower(), facts_.flags.get(SPECULATION)
    facts: dict[str, Any] = {"method": method or None, "draft": facts_.draft or None, "eagle3_by": by or None}
    if given is None:
        own = case.draft is not None and case.draft.is_speculators
        how = "a draft of speculators may be served by its own path" if own else "the server runs without a draft"
        return case.say(Verdict.INFO, f"no --{SPECULATION}: {how}", facts)
    if not method:
        return case.say(Verdict.INFO, f"no method: {case.serving.words} guesses it from the path of the draft", facts)
    if by and method != METHOD:
        said = (
            f"an EAGLE-3 draft ({by}) under method {method:.40}: another class is built, or one state fed; use {METHOD}"
        )
        return case.say(Verdict.FAIL, said, facts, _fix(given, METHOD))
    if (other := other_family(case)) is not None and method in ("eagle", METHOD):
        name, right = other
        use = f"; use {right.lower()}" if right else ""
        said = f"a draft of {name} under method {method:.40}: another class is built, and stops or proposes noise{use}"
        return case.say(Verdict.FAIL, said, facts, _fix(given, right.lower()) if right else None)
    return case.say(Verdict.PASS, f"method {method:.40} for {by or 'this draft'}", facts)


def _fix(given: object, method: str) -> FlagsFix | None:
    """The same object with the right method; None where it is not one that can be read."""
    try:
        held = json.loads(given) if isinstance(given, str) else None
    except (ValueError, RecursionError):
        held = None
    return FlagsFix(set={SPECULATION: json.dumps({**held, "method": method})}) if isinstance(held, dict) else None
