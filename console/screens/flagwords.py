"""What is said of a launch flag: what sets it, what runs, how it is read, and what the checks found of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from textual.content import Content

from console.flags import ENV, STAGED, FlagRow, shown_value
from console.glyphs import glyphs
from console.plain import one_line

STYLES = {"FAIL": "$error", "WARN": "$warning"}
"""How a finding is drawn, the worst verdict first; others are not worth a mark."""
_NOT_NAMED = "the engine's source was not read, or does not name it"
_NAMED = re.compile(r"--([a-z0-9][a-z0-9-]*)")


def flag_findings(findings: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """What checks of flags.* found wrong, by each flag that their words or fixes name; the worst first."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    ours = (item for item in findings if str(item["check"]).startswith("flags.") and item["verdict"] in STYLES)
    for item in sorted(ours, key=lambda item: list(STYLES).index(item["verdict"])):
        fix = item.get("fix") or {}
        named = [*_NAMED.findall(str(item["summary"])), *(fix.get("set") or {}), *(fix.get("unset") or ())]
        for name in dict.fromkeys(str(name).lstrip("-") for name in named):
            found.setdefault(name, []).append(item)
    return found


def findings_of(row: FlagRow, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Sequence[Mapping[str, Any]]:
    bare = row.key.replace("_", "-")
    names = (bare, row.known.name, *row.known.aliases) if row.known else (bare,)
    return next((found[name] for name in names if name in found), ())


def about_content(row: FlagRow, findings: Iterable[Mapping[str, Any]], why: str = "") -> Content:
    """What is known of a flag: what sets it, what runs, its default and choices, what is wrong with it, its help.

    `why`: the reason that the engine's flags are not known.
    """
    g, known, muted = glyphs(), row.known, "$foreground-muted"
    facts: list[tuple[str, str, str]] = []
    if row.planned is not None:
        facts.append(("planned", f"{shown_value(row.key, row.planned)}  ({row.source})", ""))
    elif row.source == STAGED:
        facts.append(("planned", "dropped (staged here)", ""))
    elif row.difference is not None:
        facts.append(("planned", "absent", ""))
    if row.difference is not None:
        facts.append(("running", row.difference.running or "absent", "$error"))
    if known is not None and known.default:
        facts.append(("default", known.default_words or "none", ""))
    if known is not None and known.choices:
        facts.append(("one of", ", ".join(known.choices), ""))
    if known is not None and known.aliases:
        facts.append(("also", ", ".join(f"--{name}" for name in known.aliases), ""))
    lines = [Content.assemble((f"{name:<8} ", muted), (one_line(value), style)) for name, value, style in facts]
    if row.problem:
        lines.append(Content.styled(f"{g.bad} {one_line(row.problem)}", "$error"))
    for item in findings:
        said = f"{item['verdict']} {item['check']}: {item['summary']}"
        lines.append(Content.styled(one_line(said), STYLES[item["verdict"]]))
    if known is not None and known.help:
        lines += [Content(""), Content(one_line(known.help))]
    elif known is None and not row.key.startswith(ENV) and not row.problem:
        lines.append(Content.styled(f"no help: {one_line(why) or _NOT_NAMED}", muted))
    return Content("\n").join(lines)
