"""The demo played through: a wrong wiring on the embedded host, checks, fix, restart, and the measured difference."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from console.demo.setup import EMBEDDING, LATE, shipped
from console.demo.traffic import MAX_NEW_TOKENS, read_prompts
from console.embedded import Embedded, embedded_host
from console.errors import NotRun, Refused
from console.exits import Exit
from console.measure import Interval, accept_length, interval, paired
from console.plain import one_line
from console.report import fix_lines
from console.session import Session

CLAIMS: dict[str, float | None] = {EMBEDDING: 1.3, LATE: None}
"""What must hold of after against before for each wrong wiring: at least so many times the accept length; None: the
interval of the paired difference lies above 0, whatever its size."""

_CAUSE = "align.engine_pair"


@dataclass(frozen=True, slots=True)
class Measured:
    """Per-prompt accept lengths of one wiring, in the order of the prompts, from the engine's own drafts histograms."""

    values: tuple[float, ...]
    tokens: int
    rounds: int

    @property
    def mean(self) -> Interval:
        """The mean over prompts and its interval."""
        return interval(self.values)


@dataclass(frozen=True, slots=True)
class Told:
    """One wiring's story, all of it measured."""

    wiring: str
    before: Measured
    after: Measured
    verdict_before: str
    verdict_after: str
    finding: dict[str, Any]
    ids_before: Any
    ids_after: Any

    @property
    def difference(self) -> Interval:
        """After minus before, prompt by prompt."""
        return paired(self.after.values, self.before.values)

    @property
    def ratio(self) -> float:
        """Mean accept length after, in times the one before."""
        return self.after.mean.mean / self.before.mean.mean

    @property
    def claim(self) -> str:
        """What must hold of the two, in words."""
        factor = CLAIMS.get(self.wiring)
        return (
            f"after is at least {factor} times before"
            if factor
            else "the interval of the paired difference lies above 0"
        )

    @property
    def holds(self) -> bool:
        """Whether the claim holds: FAIL before, PASS after, and the numbers."""
        factor = CLAIMS.get(self.wiring)
        enough = self.ratio >= factor if factor else self.difference.low > 0
        return self.verdict_before == "FAIL" and self.verdict_after == "PASS" and enough


async def play(wiring: str | None, prompts: int = 0, as_json: bool = False) -> Exit:
    """Play the story for one wiring, or for each wrong one; prints a table (or JSON), notes go to stderr.

    Exit 0 when every claim holds, else 1.
    """
    if wiring is not None and wiring not in CLAIMS:
        raise Refused(f"the wiring {wiring!r} is not wrong, so there is no story to tell; choose {' or '.join(CLAIMS)}")
    told = []
    for one in [wiring] if wiring else list(CLAIMS):
        told.append(await play_one(one, prompts, _note))
    print(json.dumps([as_plain(item) for item in told], indent=1) if as_json else table(told))
    return Exit.OK if all(item.holds for item in told) else Exit.FINDINGS


async def play_one(wiring: str, prompts: int = 0, say: Callable[[str], None] = lambda _: None) -> Told:
    """One wrong wiring on an embedded host, over SSH: start, measure, check, fix, restart, measure, check."""
    with shipped("prompts.json") as path:
        texts = read_prompts(path, "held_out")
    texts = texts[:prompts] if prompts else texts
    say(f"— {wiring} —")
    with embedded_host(wiring) as embedded:
        session = await Session.open(embedded.folder.deployment)

        def step(name: str, detail: str) -> None:
            say(f"{name:<9} {one_line(detail)[:110]}")

        try:
            await session.draft.load()
            ids_before = _ids(session.draft.base)
            await session.start("story: wrong wiring", step)
            say(f"measure   {len(texts)} held-out prompts")
            before = await measure(session, texts)
            verdict_before, finding = await judged(session, say)
            if not finding.get("fix"):
                raise NotRun(f"{_CAUSE} is {finding['verdict']} and offers no fix: {finding['summary']}")
            for change in session.draft.stage_fix(finding["fix"], finding):
                say(f"fix       {change.words}")
            written = await session.draft.write(f"fix of {finding['check']}")
            say(f"write     version {written.version.id}; the previous one is kept at {written.backup_path}")
            await session.restart(f"fix of {finding['check']}", step)
            say(f"measure   {len(texts)} held-out prompts")
            after = await measure(session, texts)
            verdict_after, _ = await judged(session, say)
            ids_after = _ids(session.draft.base)
            await session.stop("story is over", step)
        finally:
            await session.close()
    return Told(wiring, before, after, verdict_before, verdict_after, finding, ids_before, ids_after)


async def judged(session: Session, say: Callable[[str], None]) -> tuple[str, dict[str, Any]]:
    """The overall verdict of all checks, run on the host, and the finding on the engine's states."""
    async with aclosing(session.check()) as steps:
        async for _ in steps:
            pass
    report = session.report
    found = report.find(_CAUSE) if report is not None else None
    if report is None or found is None:
        raise NotRun(f"the checks gave no {_CAUSE}")
    counts = ", ".join(f"{count} {name}" for name, count in report.raw["summary"].items() if count)
    say(f"check     {report.verdict} ({counts})")
    for item in report.findings:
        if item["verdict"] in ("FAIL", "WARN", "UNKNOWN"):
            say(f"          {item['verdict']} {item['check']}: {one_line(item['summary'])}")
    say(
        f"          {found['verdict']} {found['check']}: {one_line(found['summary'])}"
        if found["verdict"] == "PASS"
        else ""
    )
    return report.verdict, found


async def measure(session: Session, prompts: Sequence[str]) -> Measured:
    """Send each prompt once through the host and read the accept length out of the answer's drafts histogram."""
    from remote import http

    url = session.deployment.server.url.rstrip("/") + "/generate"
    values, tokens, rounds = [], 0, 0
    for prompt in prompts:
        params = {"temperature": 0, "max_new_tokens": MAX_NEW_TOKENS, "ignore_eos": True}
        body = {"text": prompt, "sampling_params": params}
        answer = await http.post(session.host, url, body, headers=session.server.headers, timeout=120)
        meta = answer.json()["meta_info"] if answer.ok else {}
        histogram: list[int] = meta.get("spec_correct_drafts_histogram") or []
        value = accept_length(histogram)
        if value is None:
            raise NotRun(f"the engine answered a prompt with status {answer.status} and no drafts histogram")
        session.serving.add_histogram(histogram)
        values.append(value)
        tokens += sum(count * (drafts + 1) for drafts, count in enumerate(histogram))
        rounds += sum(histogram)
    return Measured(tuple(values), tokens, rounds)


def table(told: Sequence[Told]) -> str:
    """Before, finding, fix and after, one block a wiring; every number is a measured one."""
    lines: list[str] = []
    for item in told:
        lines += [
            f"wiring: {item.wiring}",
            f"  before   ids {item.ids_before}  checks {item.verdict_before}  accept length {item.before.mean.words()}",
            f"  finding  {item.finding['check']}: {one_line(item.finding['summary'])}",
            *(f"  fix      {line}" for line in fix_lines(item.finding.get("fix"))),
            f"  after    ids {item.ids_after}  checks {item.verdict_after}  accept length {item.after.mean.words()}",
            f"  ratio    {item.ratio:.2f}  paired difference {item.difference.words(sign=True)}"
            f"  over {item.difference.count} held-out prompts, 95% intervals (Student's t)",
            f"  claim    {'holds' if item.holds else 'DOES NOT HOLD'}: FAIL before, PASS after, and {item.claim}",
            "",
        ]
    return "\n".join(lines).rstrip()


def as_plain(item: Told) -> dict[str, Any]:
    """One wiring's story as a JSON object."""

    def measured(value: Measured, verdict: str, ids: Any) -> dict[str, Any]:
        mean = value.mean
        return {
            "ids": ids,
            "verdict": verdict,
            "accept_len": mean.mean,
            "interval_95": [mean.low, mean.high],
            "tokens": value.tokens,
            "rounds": value.rounds,
            "per_prompt": list(value.values),
        }

    difference = item.difference
    return {
        "wiring": item.wiring,
        "before": measured(item.before, item.verdict_before, item.ids_before),
        "finding": {key: item.finding[key] for key in ("check", "verdict", "summary", "fix")},
        "after": measured(item.after, item.verdict_after, item.ids_after),
        "ratio": item.ratio,
        "paired_difference": {"mean": difference.mean, "interval_95": [difference.low, difference.high]},
        "claim": item.claim,
        "holds": item.holds,
    }


def open_demo(wiring: str, read_only: bool) -> Exit:
    """The app on an embedded host whose server is up and busy; everything is gone when it closes."""
    from console.app import run

    with embedded_host(wiring) as embedded:
        asyncio.run(begin(embedded))
        embedded.begin_traffic()
        return Exit(run(embedded.folder.deployment, read_only=read_only))


async def begin(embedded: Embedded) -> None:
    """Start the engine through a session, so that it is recorded as ours."""
    session = await Session.open(embedded.folder.deployment)
    try:
        await session.start("demo", lambda name, detail: _note(f"{name:<9} {one_line(detail)[:110]}"))
    finally:
        await session.close()


def _ids(config: str) -> Any:
    from console.wiring import ids_in

    return ids_in(json.loads(config))


def _note(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)
