"""The release that serves: flags it has, and what is known to go wrong in it."""

from __future__ import annotations

from typing import Any

from checks.engines.sglang.defects import A2A, DP, GRAPHS, IMAGES, OVERLAP, OWN_IDS, RANKS, Defect, defects_of
from checks.engines.sglang.layers import family_of, table_rule
from checks.engines.sglang.options import NAMES, SINCE, canonical, known
from checks.engines.versions import Span, span
from checks.errors import CheckError
from checks.finding import Finding, FlagsFix, Verdict
from checks.flags.case import EAGLES, Case, flags_check, slips_of
from checks.rules import releases
from checks.similar import similar

# The algorithms, and the releases that have them; up to 0.5.11 the name had to be in capitals.
ALGORITHMS: dict[str, Span] = {
    "EAGLE": span(),
    "EAGLE3": span(),
    "NEXTN": span(),
    "STANDALONE": span("0.5.2"),
    "NGRAM": span("0.5.3"),
    "DFLASH": span("0.5.11"),
    "DSPARK": span("0.5.16"),
    "UNO": span("0.5.20"),
}
CAPITALS = span("", "0.5.11")

_INFERRED = "; inferred, not confirmed"


@flags_check("flags.parse", every=True)
def parse(case: Case) -> Finding | None:
    """The command line reads as it was meant, and the release has its flags.

    Read are both `--flag value` and `--flag=value`, aliases, the unique beginnings that argparse takes, variables in
    front of the command, and either way of starting the server. SGLang refuses what it does not know and does not start
    (exit 2), so a flag from another release stops an upgrade.

    FAIL: a speculative flag or algorithm that the named release does not have, or in small letters up to 0.5.11. INFO:
    a flag no inspected release has, with the nearest one. PASS: all are known. `evidence.parsed` shows what was read.
    UNKNOWN: another engine's command line.

    What to do: correct the flag, or take it out; of a slip the fix does both.
    """
    if not case.serving.is_sglang:
        said = f"the flags of {case.serving.words} are not judged here, but for its method (flags.algo_vs_arch)"
        return case.say(Verdict.UNKNOWN, said, {"needs": ["an eye on its flags: only SGLang's are known here"]})
    facts_ = case.launch.facts
    parsed = {name: value for name, value in sorted(facts_.flags.items()) if name not in ("api-key", "admin-api-key")}
    unknown = sorted(name for name in facts_.flags if not known(name))
    facts: dict[str, Any] = {"parsed": parsed, "unknown": unknown, "env": sorted(case.launch.env)}
    for spelt in facts_.written:
        name = spelt.replace("_", "-")
        place = name if name in SINCE else canonical(name)
        if place in SINCE and case.serving.within(SINCE[place]) is False:
            said = f"--{spelt} is in {releases(SINCE[place])} only: {case.serving.version} does not start with it"
            fix = FlagsFix(unset=(place,)) if canonical(name) == place else None
            return case.say(Verdict.FAIL, said, {**facts, "versions": releases(SINCE[place])}, fix)
    algorithm = facts_.algorithm
    if algorithm and algorithm.upper() in ALGORITHMS:
        if case.serving.within(ALGORITHMS[algorithm.upper()]) is False:
            said = f"--speculative-algorithm {algorithm} is in {releases(ALGORITHMS[algorithm.upper()])} only"
            return case.say(Verdict.FAIL, said, {**facts, "versions": releases(ALGORITHMS[algorithm.upper()])})
        if algorithm != algorithm.upper() and case.serving.within(CAPITALS):
            # Not against flags.algo_vs_arch, which asks for EAGLE3 with an EAGLE-3 draft.
            meant = "EAGLE3" if case.eagle3 and case.algorithm in EAGLES else case.algorithm
            fix = FlagsFix(set={"speculative-algorithm": meant})
            said = f"--speculative-algorithm {algorithm} has to be in capitals"
            return case.rule(Verdict.FAIL, said, CAPITALS, facts, fix)
    elif algorithm:
        said = f"--speculative-algorithm {algorithm!r:.40} is none of {', '.join(ALGORITHMS)}: a plug-in's, or a slip"
        return case.say(Verdict.INFO, said, facts)
    if unknown:
        slips = slips_of(case.launch)
        right = {name: facts_.flags[spelt] for spelt, name in slips.items()}
        mend = FlagsFix(set=right, unset=tuple(slips)) if slips else None
        near = {name: similar(name, NAMES, 0.8) for name in unknown}
        shown = ", ".join(f"--{name:.60}" + (f" (--{near[name]}?)" if near[name] else "") for name in unknown[:5])
        return case.say(Verdict.INFO, f"not a flag of any inspected release: {shown}", {**facts, "slips": slips}, mend)
    return case.say(Verdict.PASS, f"{len(facts_.flags)} flags, all known", facts)


@flags_check("flags.known_defect")
def known_defect(case: Case) -> Finding | None:
    """Nothing known to go wrong in this release concerns this deployment.

    The table of defects holds, for ranges of releases and families of targets, what makes the draft see other states
    than the ids say, or ends the server, and what it takes: CUDA graphs, ids other than the defaults, tensor
    parallelism, data-parallel attention.

    FAIL: a confirmed one that happens on every machine. WARN: a confirmed one that depends on the GPU, or was seen on
    one. INFO: inferred from the source or a report and not confirmed, which the text says; or no release is known, and
    the defects to watch for. PASS: none. UNKNOWN: no target given.

    What to do: the way out stands with each; most are an upgrade.
    """
    target = case.target
    if case.algorithm not in EAGLES:
        return case.say(Verdict.PASS, "no speculation of this family")
    if target is None:
        needs = "the target (--target DIR)"
        return case.say(Verdict.UNKNOWN, f"not checked: needs {needs}", {"needs": [needs]})
    family = family_of(target.architecture)
    if not case.serving.version:
        watched = defects_of("", target.architecture)
        told = ", ".join(f"{item.id} ({releases(item.versions)})" for item in watched if item.confirmed)
        said = f"the release is not known, and so not whether one of these concerns it: {told}"
        return case.say(Verdict.INFO, said, {"family": family, "defects": [item.id for item in watched]})
    here = defects_of(case.serving.version, target.architecture)
    met = [item for item in here if _is_met(case, item)]
    facts: dict[str, Any] = {
        "family": family,
        "defects": [
            {
                "id": item.id,
                "versions": str(item.versions),
                "confirmed": item.confirmed,
                "effect": item.effect,
                "way_out": item.way_out,
                "source": item.source,
            }
            for item in met
        ],
        "not_met": [item.id for item in here if item not in met],
    }
    if not met:
        return case.say(Verdict.PASS, f"none known of {case.serving.version} concerns this deployment", facts)
    sure = [item for item in met if item.confirmed]
    first = next((item for item in sure if item.certain), (sure or met)[0])
    said = "; ".join(
        f"{item.id} ({releases(item.versions)}{'' if item.confirmed else _INFERRED}): {item.effect}; {item.way_out}"
        for item in (sure or met)
    )
    verdict = (Verdict.FAIL if first.certain else Verdict.WARN) if sure else Verdict.INFO
    facts["versions"] = releases(first.versions)
    return case.say(verdict, said, facts, _fix(first) if sure else None)


def _is_met(case: Case, item: Defect) -> bool:
    """Whether the deployment has what the defect needs; what cannot be told is taken as met."""
    launch = case.launch
    if any(launch.has(flag) for flag in item.avoided_by):
        return False
    ranks = (launch.number("tp-size") or 1) > 1
    wide = launch.text("moe-a2a-backend") not in ("", "none") or launch.has("enable-deepep-moe")
    held = {
        GRAPHS: True,
        OWN_IDS: _own_ids(case),
        RANKS: ranks,
        A2A: wide,
        IMAGES: True,
        DP: launch.has("enable-dp-attention"),
        OVERLAP: launch.switched_on("SGLANG_ENABLE_SPEC_V2"),
    }
    return all(held[need] for need in item.needs)


def _own_ids(case: Case) -> bool:
    """Whether the config's ids feed other states than the defaults."""
    draft, target = case.draft, case.target
    ids = draft.aux_ids.in_eagle_config if draft is not None else None
    if draft is None or target is None:
        return True
    if not isinstance(ids, list):
        return False
    rule, _ = table_rule(case.serving.version, target.architecture)
    if rule is None:
        return True
    try:
        return rule.served(ids, target.n).states != rule.served(None, target.n).states
    except CheckError:
        return True


def _fix(item: Defect) -> FlagsFix | None:
    """A flag that avoids it, where one is worth taking without an upgrade."""
    flag = next((name for name in item.avoided_by if name.startswith("enforce-")), None)
    return FlagsFix(set={flag: True}) if flag is not None else None
