"""Answering a request for captures: states taken for cached texts, written to folders, and what each of them proves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from checks.capture import MAX_SAMPLES, MAX_TOKENS, live_captures, reference_capture
from checks.capture_folder import ALL_STATES, ENGINE, REFERENCE, Capture
from checks.capture_ranks import FUSED, LONG, Difference, at_once, differences
from checks.errors import NotRunnable
from checks.evidence import Evidence
from checks.naming import number
from checks.request import SCHEMA, Request

LIVE, HOOK = "live", "hook"

_PROVES = {
    ENGINE: "what this server feeds its draft, slot by slot, as its config stood when it started",
    ALL_STATES: "every state of the target as this engine computes it: names each slot of a cache made from it",
    REFERENCE: "R_0 … R_{last} of the target itself: names each slot of a cache made from it; it says "
    "nothing of what an engine feeds",
}
_PARTLY = (
    "R_0 … R_{last} of {n} layers: names the slots of a cache that hold one of these, and so a shift of all slots "
    "alike; a slot that fits none of them may hold a higher state or another model's, and what an engine feeds is not "
    "shown"
)


def answer(request: Mapping[str, Any], emit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Take the captures asked for; `progress` events on the way. The request is that of the checks and, beside it:

    `how`: live, hook or reference; `most`: texts to ask for, and `tokens` of each, 0 for what is usual; `layers`: of a
    reference, 0 for all; `hook_dir`.
    Raises NotRunnable, CaptureFailed, NeedsLibrary.
    """
    raw = {key: value for key, value in request.items() if key != "task"}
    how, hook_dir = str(raw.pop("how", LIVE)), str(raw.pop("hook_dir", ""))
    most, layers = int(raw.pop("most", 0)) or MAX_SAMPLES, int(raw.pop("layers", 0))
    tokens = int(raw.pop("tokens", 0)) or MAX_TOKENS
    started = time.monotonic()
    evidence = Evidence(
        Request.from_json(raw),
        lambda _, done, total, note: emit(
            {"event": "progress", "check": "capture", "done": done, "total": total, "note": note}
        ),
    )
    if how == REFERENCE:
        captures: tuple[Capture, ...] = (reference_capture(evidence, most, layers, tokens),)
    elif not evidence.caches:
        raise NotRunnable("a capture needs a cache to take texts from; name one: [[cache]] in the deployment")
    elif how == HOOK:
        from checks.capture_hook import hook_capture

        captures = (hook_capture(evidence, most, hook_dir, tokens),)
    else:
        captures = live_captures(evidence, most, tokens)
    if not captures:
        raise NotRunnable("no server answers, so there is nothing to capture from; start it, or use --reference")
    n = evidence.target.n if evidence.target is not None else 0
    return {
        "schema": SCHEMA,
        "captures": [told_of(item, n) for item in captures],
        "took_s": round(time.monotonic() - started, 3),
    }


def told_of(capture: Capture, n: int) -> dict[str, Any]:
    """What a capture is and what it proves, as JSON; `n` is the number of the target's layers."""
    last = capture.slots - 1
    words = _PARTLY if capture.kind == REFERENCE and last < n else _PROVES[capture.kind]
    again = differences(capture)
    return {
        "path": str(capture.path),
        "kind": capture.kind,
        "engine": capture.engine,
        "version": capture.version,
        "slots": capture.slots,
        "samples": len(capture.samples),
        "positions": sum(len(sample.positions) for sample in capture.samples),
        "proves": words.format(last=last, n=n) + "".join(_compared(capture, again)),
        "again": [{"how": item.how, "distance": [number(each) for each in item.slots]} for item in again],
    }


def _compared(capture: Capture, again: Sequence[Difference]) -> Iterator[str]:
    """What the other ways of taking a text say, and which of them there was not."""
    for item in again:
        if item.rows:
            distances = ", ".join(f"{each:.4f}" for each in item.slots)
            told = "its ranks do not feed it the same" if item.apart else "the same"
            yield f"; {item.how}: {told}, by slots {distances} apart"
    if (
        capture.kind == ENGINE
        and capture.ranks > 1
        and not any(item.rows and item.how == at_once(LONG) for item in again)
    ):
        yield (
            f"; not compared with more than {FUSED} tokens at once, which are summed over the ranks in another way: "
            "the answer would be too large (--how hook takes it), or the server cuts prompts into smaller chunks"
        )
