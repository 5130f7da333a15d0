"""`log.failure`: what the server died of, as far as its log says, and where to look for the fault."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from checks.draft_shapes import draft_vocab
from checks.engines.events import Decode, Error, Event, Other, Phase, Prefill
from checks.errors import CheckError
from checks.evidence import Evidence
from checks.finding import Finding, Verdict
from checks.log.case import log_check
from checks.log.read import Tail, log_name, read_tail

ID = "log.failure"

# Kinds of errors that say that something died, not of what.
_ENDS = frozenset({"exception", "child-died", "start-failed", "graph-capture", "unhealthy"})
# What a failing server prints before and after the line that says so.
_BEFORE, _LAST, _CLOSE = 200, 80, 3
_UP = ("ready", "serving", "draining", "stopped")
# What stands before a line of a traceback: a collector's time, processes, a level and its time, tags in brackets.
_FRONT = re.compile(
    r"^(?:\d{4}-\d\d-\d\d[T ][\d:.,+Z-]{8,30} +|\([A-Za-z][^()]{0,100}\) +|\[[^\]]{1,120}\] ?"
    r"|(?:INFO|WARNING|ERROR|DEBUG) [\d :.-]{1,30} *){0,6}"
)
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Exit|Interrupt))(?:: (.*))?$")
_ELSEWHERE = re.compile(
    r"[Ss]ee (?:root cause|stack trace)|EngineDeadError|(?:WorkerProc|Engine ?core) initialization failed"
)
_TRACEBACK = "Traceback (most recent call last)"
_KILLED = re.compile(r"^(?:.{0,200}: line \d+: +\d+ )?(Killed|Segmentation fault|Bus error|Aborted)\b")
_SIZES = re.compile(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)")

# What a cause points to, by its text and the source line above it: the first row that fits counts.
_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"no attribute '(?:set_embed|hot_token_id|set_embed_and_head)'",
        "the draft is an ordinary model: see flags.algo_vs_arch for its path and cfg.architectures for its class",
    ),
    (
        r"KeyError: '.{0,80}(?:midlayer|layers\.\d+|embed_tokens|fc|d2t|lm_head)",
        "the names of the weights do not fit the class that was built: see cfg.architectures and ckpt.names",
    ),
    (
        r"KeyError: '(?:factor|type|rope_type|low_freq_factor|original_max_position_embeddings)'",
        "the draft's rope scaling lacks a key: see cfg.rope_vs_target",
    ),
    (
        r"loaded_weight|param_data|size mismatch for|copying a param with shape|[Aa]ttempted to load weight",
        "a weight has another shape than the config says: see ckpt.shapes and cfg.head_dim",
    ),
    (
        r"hidden_states\.shape\[-1\] == \w*embeds\.shape",
        "the draft and the states it is fed have different widths: see cfg.hidden_vs_target and cfg.use_aux",
    ),
    (
        r"index out of bounds|srcIndex|device-side assert|index \d+ <= tmp",
        "an index ran out of its table: see ckpt.vocab_map and cfg.draft_window; if both pass, the engine is at fault",
    ),
    (r"speculative_(?:num_steps|eagle_topk|num_draft_tokens)", "the three speculative numbers: see flags.triple"),
    (
        r"can only be used with (?:non-)?MLA",
        "the draft inherits a backend of another attention: see flags.draft_backend",
    ),
    (r"q_lora_rank|kv_lora_rank", "the draft's class is of another attention than its weights: see cfg.architectures"),
)


@log_check(ID, lasts=True)
def failure(evidence: Evidence) -> Iterable[Finding]:
    """Whether the server's last life ended in a failure, and what the log says of its cause.

    A start that stops leaves no decode line, so nothing can be said of acceptance; the cause stands in its traceback.

    How it decides, over the end of the log since the last start. FAIL: a process of the server died, the log ends in a
    traceback, or the system killed it; the summary has the cause that is printed, the line it stands in, and the check
    that looks at it. WARN: a failure is printed, and no decode line comes after it. INFO: failures that the server
    outlived, a traceback of something else with no batch after it, an earlier life that ended in a failure, an orderly
    end, or a server that has ended and whose log does not say why. PASS: none. UNKNOWN: the log has no lines.

    What to do: mend what is named and start again; where the cause is the engine's own, look for its text among the
    engine's issues and compare the release.
    """
    tail = read_tail(evidence)
    life = tail.life
    facts: dict[str, Any] = {"engine": tail.engine, "phase": _phase(life), "log": log_name(evidence)}
    if not tail.events:
        yield Finding(ID, Verdict.UNKNOWN, "the log is empty", {**facts, "needs": ["a log with lines"]})
        return
    facts["earlier"] = earlier = sum(_crashed(event) for event in tail.events[: len(tail.events) - len(life)])
    ended = _ended(tail)
    if ended is not None:
        at, how = ended
        cause, line, hint = _cause(evidence, life, at)
        facts.update(cause=cause or None, line=line, hint=hint or None)
        words = f"{how} (line {life[at].line})" + (f": {cause} (line {line})" if cause else "")
        again = f"; so did {earlier} starts before it" if earlier else ""
        yield Finding(ID, Verdict.FAIL, f"{words}; {hint or 'the lines above it say where'}{again}", facts)
        return
    errors = [(at, event) for at, event in enumerate(life) if isinstance(event, Error)]
    if errors:
        kinds = facts["errors"] = {kind: sum(event.kind == kind for _, event in errors) for kind in _kinds(errors)}
        last, event = errors[-1]
        outlived = not any(item.fatal for _, item in errors) or any(isinstance(item, Decode) for item in life[last:])
        shown = ", ".join(f"{kind} {times} times" if times > 1 else kind for kind, times in kinds.items())
        words = f"{shown}, last in line {event.line}: {event.advice}"
        yield Finding(ID, Verdict.INFO if outlived else Verdict.WARN, words, facts)
    elif stray := _exceptions(_since_it_served(life)):
        text, line = stray[-1]
        facts.update(cause=text, line=line)
        words = f"a traceback of no known failure, last in line {line}, and no batch after it: {text}"
        yield Finding(ID, Verdict.INFO, words, facts)
    elif earlier:
        words = f"an earlier life in this log ended in a failure ({earlier} in all), the last one shows none"
        yield Finding(ID, Verdict.INFO, words, facts)
    elif facts["phase"] in ("draining", "stopped"):
        yield Finding(ID, Verdict.INFO, "the server was stopped, in order", facts)
    elif evidence.request.ended:
        yield Finding(ID, Verdict.INFO, f"its log does not say why, {len(life)} lines since the last start", facts)
    else:
        yield Finding(ID, Verdict.PASS, f"no failure is printed since the last start, {len(life)} lines ago", facts)


def _phase(life: Sequence[Event]) -> str | None:
    return next((event.phase for event in reversed(life) if isinstance(event, Phase)), None)


def _since_it_served(life: Sequence[Event]) -> Sequence[Event]:
    """The events after the last line of a batch."""
    last = max((at for at, event in enumerate(life) if isinstance(event, (Decode, Prefill))), default=-1)
    return life[last + 1 :]


def _crashed(event: Event) -> bool:
    return isinstance(event, Phase) and event.phase == "crashed"


def _kinds(errors: Sequence[tuple[int, Error]]) -> list[str]:
    return sorted({event.kind for _, event in errors})


def _ended(tail: Tail) -> tuple[int, str] | None:
    """(place in the last life, how it ended there), None when it did not end in a failure."""
    life = tail.life
    crash = next((at for at, event in enumerate(life) if _crashed(event)), None)
    if crash is not None:
        return crash, "the server died"
    if _phase(life) in _UP:
        return None  # a server that is up prints the tracebacks of requests it refuses
    for at in range(len(life) - 1, max(len(life) - _LAST, 0) - 1, -1):
        event = life[at]
        if isinstance(event, (Decode, Prefill, Phase)):
            return None
        if isinstance(event, Other) and _KILLED.match(event.text.strip()[:300]):
            return at, "the system ended the server, for want of memory more often than not"
        if _TRACEBACK in event.text:
            last = _exceptions(life[at:])[-1:]
            return (at, "the log ends in a traceback") if last and last[0][1] >= life[-_CLOSE:][0].line else None
    return None


def _cause(evidence: Evidence, life: Sequence[Event], at: int) -> tuple[str, int | None, str]:
    """(what was printed as the cause, its line, which check looks at it), of a life that ended at a place."""
    near = life[max(at - _BEFORE, 0) :]
    known = next((item for item in near if isinstance(item, Error) and item.fatal and item.kind not in _ENDS), None)
    if known is not None:
        text = _plain(_FRONT.sub("", known.text, count=1))
        return text, known.line, _hint(evidence, text) or known.advice
    # A process that only tells that another one failed prints its exception after the one that counts.
    after, before = _exceptions(life[at:]), _exceptions(life[max(at - _BEFORE, 0) : at])
    found = next((item for item in after if not _ELSEWHERE.search(item[0])), None)
    found = found or next((item for item in reversed(before) if not _ELSEWHERE.search(item[0])), None)
    text, line = found or next(iter(after), ("", 0))
    return text, line or None, _hint(evidence, text)


def _exceptions(events: Sequence[Event]) -> list[tuple[str, int]]:
    """The last lines of the tracebacks in events, and where; a bare assertion with the source line above it."""
    out, above = [], ""
    for event in events:
        text = _plain(_FRONT.sub("", event.text, count=1))
        found = _EXCEPTION.match(text.rstrip())
        if found is not None:
            said = text.strip() if found.group(2) or not above else f"{found.group(1)} at `{above}`"
            out.append((said, event.line))
        above = text.strip() if text.strip("^~ ") else above
    return out


def _hint(evidence: Evidence, text: str) -> str:
    sizes = _SIZES.search(text)
    if sizes is not None and str(_vocabulary(evidence)) in sizes.groups():
        return "one of them is the draft's vocabulary: see ckpt.vocab_map"
    return next((hint for pattern, hint in _HINTS if re.search(pattern, text)), "")


def _vocabulary(evidence: Evidence) -> int | None:
    try:
        return draft_vocab(evidence.draft.flat) if evidence.draft is not None else None
    except CheckError:
        return None


def _plain(text: str) -> str:
    """What a host printed, short and without what is no text."""
    return "".join(sign if sign.isprintable() else " " for sign in text)[:240]
