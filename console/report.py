"""A report of the checks as text, JSON, JUnit XML or Markdown, and the exit code it stands for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from console.exits import Exit
from console.masking import mask_json
from console.plain import one_line

VERDICTS = ("FAIL", "WARN", "UNKNOWN", "INFO", "PASS")
_COLOURS = {"FAIL": "31", "WARN": "33", "UNKNOWN": "35", "INFO": "36", "PASS": "32"}
_EVIDENCE_WIDTH = 160
_NEEDS_WIDTH = 80

Finding = Mapping[str, Any]


def exit_code(report: Mapping[str, Any], fail_on: str = "fail", strict: bool = False) -> Exit:
    """FINDINGS at or above `fail_on`, else NOT_PROVEN where UNKNOWN is left and `strict`, else OK."""
    summary = report["summary"]
    if summary.get("FAIL") or (fail_on == "warn" and summary.get("WARN")):
        return Exit.FINDINGS
    return Exit.NOT_PROVEN if strict and summary.get("UNKNOWN") else Exit.OK


def to_json(report: Mapping[str, Any]) -> str:
    """The report as the one JSON object scripts read; secrets masked, non-ASCII escaped so that any pipe carries it."""
    return json.dumps(mask_json(report), indent=1)


def to_text(report: Mapping[str, Any], colour: bool = False) -> str:
    """The report for a person: findings worst first, evidence and fix under each that asks for something.

    What passed without a number worth reading, and what lacks the same evidence, is folded into a line each; --json has
    every finding. The last line says `not proven: …` where UNKNOWN is left, and in short what it needs.
    """
    report = mask_json(report)
    lines: list[str] = []
    for finding in sorted(
        (item for item in report["findings"] if not _folds(item)), key=lambda item: _rank(item["verdict"])
    ):
        lines += finding_lines(finding, colour)
    lines += _folded([item for item in report["findings"] if _folds(item)], colour)
    counts = ", ".join(f"{report['summary'][name]} {name}" for name in VERDICTS if report["summary"].get(name))
    engines = ", ".join(_engine(item) for item in report.get("engines", []))
    lines.append("")
    lines.append(
        " · ".join(
            part
            for part in (
                _painted(str(report["verdict"]), colour),
                counts,
                f"host {one_line(str(report.get('host', '')))}",
                engines,
                f"{report.get('took_s', 0):.1f} s",
            )
            if part
        )
    )
    unproven = [item for item in report["findings"] if item["verdict"] == "UNKNOWN"]
    if unproven:
        groups = _grouped((_needs(item), str(item["check"])) for item in unproven)
        named = (f"{', '.join(checks)} ({needs})" if needs else ", ".join(checks) for needs, checks in groups.items())
        lines.append("not proven: " + "; ".join(named))
    return "\n".join(lines)


_TELLING = ("align", "replay", "log")
"""Families whose PASS carries what was measured, and is worth a line of its own."""

_NOT_CHECKED = "not checked: "


def _folds(finding: Finding) -> bool:
    family = str(finding["check"]).partition(".")[0]
    if finding["verdict"] == "PASS":
        return family not in _TELLING
    return finding["verdict"] == "UNKNOWN" and str(finding["summary"]).startswith(_NOT_CHECKED)


def _folded(findings: Sequence[Finding], colour: bool) -> list[str]:
    lines = []
    for reason, checks in _grouped(
        (str(item["summary"]), str(item["check"])) for item in findings if item["verdict"] == "UNKNOWN"
    ).items():
        lines.append(f"{_painted('UNKNOWN', colour)} {one_line(', '.join(checks))}: {one_line(reason)}")
    for family, names in _grouped(
        tuple(str(item["check"]).partition(".")[::2]) for item in findings if item["verdict"] == "PASS"
    ).items():
        lines.append(f"{_painted('PASS   ', colour, 'PASS')} {one_line(family)}: {one_line(', '.join(names))}")
    return lines


def _grouped(pairs: Iterable[tuple[str, ...]]) -> dict[str, list[str]]:
    """(key, value) pairs as one list of different values a key, in the order they came."""
    groups: dict[str, list[str]] = {}
    for key, value in pairs:
        if value not in groups.setdefault(key, []):
            groups[key].append(value)
    return groups


def finding_lines(finding: Finding, colour: bool = False) -> list[str]:
    """One finding as lines: the verdict and summary, and for what is not well the evidence, the fix and the help."""
    verdict, engine = str(finding["verdict"]), finding.get("engine")
    name = one_line(str(finding["check"])) + (f" [{one_line(str(engine))}]" if engine else "")
    lines = [f"{_painted(verdict.ljust(7), colour, verdict)} {name:<24} {one_line(str(finding['summary']))}"]
    if verdict not in ("FAIL", "WARN"):
        return lines
    lines += [f"        {key}: {value}" for key, value in evidence_rows(finding)]
    lines += [f"        fix: {line}" for line in fix_lines(finding.get("fix"))]
    if finding.get("help"):
        lines.append(f"        {one_line(str(finding['help']))}")
    return lines


def evidence_rows(finding: Finding) -> list[tuple[str, str]]:
    """The evidence as (name, value) rows, each on one line and cut at a readable width.

    What is nested (matrices, one object a slot) is for the screen and for --json, and left out here.
    """
    rows = []
    for key, value in (finding.get("evidence") or {}).items():
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, (list, dict)) for one in value)):
            continue
        shown = one_line(value) if isinstance(value, str) else one_line(json.dumps(value, ensure_ascii=False))
        rows.append(
            (one_line(str(key)), shown if len(shown) <= _EVIDENCE_WIDTH else shown[: _EVIDENCE_WIDTH - 1] + "…")
        )
    return rows


def fix_lines(fix: Mapping[str, Any] | None) -> list[str]:
    """What a fix changes, one line a change; nothing for no fix."""
    if not fix:
        return []
    if fix.get("kind") == "config":
        before = {step["path"]: step.get("value") for step in fix["patch"] if step["op"] == "test"}
        return [
            one_line(f"{fix.get('file', 'config.json')} {step['path']}: {_was(before, step)}{_becomes(step)}")
            for step in fix["patch"]
            if step["op"] != "test"
        ]
    lines = [f"--{key} {json.dumps(value)}" for key, value in (fix.get("set") or {}).items()]
    lines += [f"without --{key}" for key in fix.get("unset") or ()]
    lines += [f"{key}={value} in the environment" for key, value in (fix.get("env") or {}).items()]
    return [one_line(line) for line in lines]


def to_junit(report: Mapping[str, Any], fail_on: str = "fail") -> str:
    """JUnit XML: a test case a finding; UNKNOWN is skipped, what is below `fail_on` is noted in system-out."""
    report = mask_json(report)
    failing = ("FAIL", "WARN") if fail_on == "warn" else ("FAIL",)
    findings = report["findings"]
    suite = ElementTree.Element(
        "testsuite",
        name="console check",
        tests=str(len(findings)),
        failures=str(sum(item["verdict"] in failing for item in findings)),
        skipped=str(sum(item["verdict"] == "UNKNOWN" for item in findings)),
        time=f"{report.get('took_s', 0):.3f}",
    )
    for item in findings:
        family, _, name = str(item["check"]).partition(".")
        label = f"{name or family} [{item['engine']}]" if item.get("engine") else name or family
        case = ElementTree.SubElement(
            suite, "testcase", classname=one_line(family), name=one_line(label), time=f"{item.get('took_s', 0):.3f}"
        )
        summary, details = one_line(str(item["summary"])), "\n".join(finding_lines(item))
        if item["verdict"] in failing:
            ElementTree.SubElement(case, "failure", message=summary, type=item["verdict"]).text = details
        elif item["verdict"] == "UNKNOWN":
            ElementTree.SubElement(case, "skipped", message=summary)
        else:
            ElementTree.SubElement(case, "system-out").text = details
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, "unicode")


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report for an issue or a wiki: a table, then a section for each finding that asks for something."""
    report = mask_json(report)
    findings = sorted(report["findings"], key=lambda item: _rank(item["verdict"]))
    lines = [f"## {report['verdict']}", "", "| verdict | check | what it says |", "|---|---|---|"]
    for item in findings:
        name = f"{item['check']} [{item['engine']}]" if item.get("engine") else str(item["check"])
        lines.append(f"| {item['verdict']} | {_cell(name)} | {_cell(item['summary'])} |")
    for item in findings:
        if item["verdict"] not in ("FAIL", "WARN"):
            continue
        lines += ["", f"### {_cell(item['check'])}", "", _cell(item["summary"]), ""]
        lines += [f"- {_cell(key)}: {_cell(value)}" for key, value in evidence_rows(item)]
        lines += [f"- fix: {_cell(line)}" for line in fix_lines(item.get("fix"))]
        if item.get("help"):
            lines += ["", _cell(item["help"])]
    return "\n".join(lines)


def _cell(text: object) -> str:
    """Text that Markdown shows as it is: nothing in it becomes markup."""
    return "".join(f"\\{char}" if char in "\\`*_{}[]<>#|~!" else char for char in one_line(str(text)))


def _painted(text: str, colour: bool, verdict: str = "") -> str:
    code = _COLOURS.get(verdict or text.strip())
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text


def _rank(verdict: str) -> int:
    return VERDICTS.index(verdict) if verdict in VERDICTS else len(VERDICTS)


def _engine(item: Mapping[str, Any]) -> str:
    # What is assumed of a release that somebody named; where none was, the source says that it is an assumption.
    note = f"; {item['note']}" if item.get("note") and item.get("source") == "given" else ""
    return one_line(f"{item.get('name', '')} {item.get('version') or '?'} ({item.get('source', '')}{note})")


def _needs(item: Finding) -> str:
    """What would decide a finding, as one reads it in passing; empty where the line above says it at length."""
    stated: Sequence[Any] = (item.get("evidence") or {}).get("needs") or []
    needs = one_line(", ".join(str(need).removeprefix("needs ") for need in stated))
    if len(needs) > _NEEDS_WIDTH:
        needs = "" if needs in one_line(str(item["summary"])) else needs[: _NEEDS_WIDTH - 1] + "…"
    return f"needs {needs}" if needs else ""


def _was(before: Mapping[str, Any], step: Mapping[str, Any]) -> str:
    return f"{json.dumps(before[step['path']], ensure_ascii=False)} → " if step["path"] in before else ""


def _becomes(step: Mapping[str, Any]) -> str:
    return "removed" if step["op"] == "remove" else json.dumps(step.get("value"), ensure_ascii=False)
