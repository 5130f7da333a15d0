"""`log.graph_false`: whether decode steps are replayed from graphs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from checks.evidence import Evidence
from checks.finding import Finding, Verdict
from checks.launch import Launch, launch_of
from checks.log.case import log_check
from checks.log.read import ENOUGH, WINDOW, read_tail

ID = "log.graph_false"

SHARE = 0.5
"""Share of decode lines without a graph from which it is no accident of a few large batches."""


@log_check(ID)
def graph_false(evidence: Evidence) -> Iterable[Finding]:
    """Whether decode lines say `cuda graph: False`: every kernel of such a step is launched by itself.

    Speculation runs many small kernels a step, so without graphs it is slower than no speculation. The usual cause is
    more running requests than graphs were captured for; another is a capture that failed or was switched off.

    How it decides, over the latest decode lines that say it, of which there must be 8. WARN: half of them or more ran
    without. INFO: the same, and the flags say why (flags.cuda_graph, flags.graph_bs_vs_concurrency), or too few lines.
    PASS: fewer, or no line says it; a server on the CPU has none.

    What to do: raise --cuda-graph-max-bs to the requests that run, or lower --max-running-requests.
    """
    tail = read_tail(evidence)
    told = [
        event
        for event in tail.decodes
        if event.graph is not None and any(key.endswith(" graph") and key != "cpu graph" for key in event.fields)
    ][-WINDOW:]
    without = [event for event in told if event.graph is False]
    running = [event.running for event in without if event.running is not None]
    facts: dict[str, Any] = {
        "lines": len(told),
        "without": len(without),
        "running": [min(running), max(running)] if running else None,
    }
    if not without:
        words = "every decode line ran from a graph" if told else "no decode line says whether it ran from a graph"
        yield Finding(ID, Verdict.PASS, words, facts)
        return
    words = f"{len(without)} of {len(told)} decode lines ran without a graph"
    words += f", with {_span(running)} running requests" if running else ""
    if len(told) < ENOUGH:
        yield Finding(ID, Verdict.INFO, f"{words}: too few to judge", facts)
        return
    if len(without) < SHARE * len(told):
        yield Finding(ID, Verdict.PASS, words, facts)
        return
    why = _said_by_flags(launch_of(evidence), max(running, default=0))
    said = f"{words}; {why}" if why else f"{words}: more requests than graphs were captured for, or a failed capture"
    yield Finding(ID, Verdict.INFO if why else Verdict.WARN, said, facts)


def _said_by_flags(launch: Launch | None, running: int) -> str:
    """The check that says it of the flags already, in words; empty when they do not explain it."""
    if launch is None:
        return ""
    if launch.has("disable-cuda-graph") or launch.has("disable-decode-cuda-graph"):
        return "the flags switch them off, see flags.cuda_graph"
    largest = launch.number("cuda-graph-max-bs") or max(launch.numbers("cuda-graph-bs"), default=0)
    return "see flags.graph_bs_vs_concurrency" if 0 < largest < running else ""


def _span(values: list[int]) -> str:
    return f"{min(values)} to {max(values)}" if min(values) != max(values) else str(values[0])
