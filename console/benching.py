"""Measuring a running server: prompts sent one at a time, and what each of them accepted and how fast it came."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.errors import NotRun, Refused, UsageError
from console.launch import flags_of
from console.measure import Interval, accept_length, interval
from console.startup import NO_KEY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from console.interim import StandIn
    from console.runs import Run
    from console.session import Session

NEUTRAL = (
    "List the planets of the solar system with one fact about each.",
    "Explain how a bicycle stays upright, in plain words.",
    "Write a Python function that merges two sorted lists.",
    "Translate into French: The library opens at nine and closes at six.",
    "Write a short story about a lighthouse keeper and a storm.",
    "A train travels 180 km in two and a half hours. What is its mean speed? Show the steps.",
    "Summarise the causes of the French Revolution in five sentences.",
    "Write a SQL query that counts orders per customer and month.",
)
"""Prompts of many kinds, for a first number; your own traffic says more."""
MAX_PROMPTS = 10_000
_ANSWER_S = 600.0
_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""Accepted drafts a verify step, by SGLang's names of 0.5.12 and newer, and of 0.5.9 to 0.5.20."""
_COUNTS = ("spec_num_correct_drafts", "spec_accept_token_num")
"""Accepted drafts of the whole request, by SGLang's names of 0.5.12 and newer, and of 0.5.6 to 0.5.10."""
_DRAFTS = "1 + accepted drafts / verify steps"
_TOKENS = "generated tokens / verify steps"


@dataclass(frozen=True, slots=True)
class Bench:
    """One measurement. Per prompt: tokens a verify step (bonus included), and generated tokens a second.

    `key` is the same for the same prompts and length. `exact`: from the accepted drafts; otherwise the prefill's own
    token is counted in, which is a little too much.
    """

    key: str
    accept_lens: tuple[float, ...]
    speeds: tuple[float, ...]
    tokens: int
    seconds: float
    exact: bool = True
    run: int = 0
    time: float = 0.0

    @property
    def accept(self) -> Interval:
        """Mean accept length over prompts, with its 95% interval."""
        return interval(self.accept_lens)

    @property
    def formula(self) -> str:
        """What the accept length is computed from; the two differ by a percent or so, and do not check each other."""
        return _DRAFTS if self.exact else _TOKENS

    @property
    def speed(self) -> Interval:
        """Mean tokens a second of one request alone, with its 95% interval."""
        return interval(self.speeds)

    def as_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {
            "run": self.run,
            "prompts": len(self.accept_lens),
            "prompts_sha256": self.key,
            "accept_len": self.accept.mean,
            "accept_len_95": [self.accept.low, self.accept.high],
            "accept_len_formula": self.formula,
            "tokens_per_s": self.speed.mean,
            "tokens_per_s_95": [self.speed.low, self.speed.high],
            "exact": self.exact,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "per_prompt": {"accept_len": list(self.accept_lens), "tokens_per_s": list(self.speeds)},
        }


def read_prompts(path: str) -> list[str]:
    """Prompts of a file: a JSON list of texts, JSON lines with `prompt` or `text`, or a prompt a line.

    Raises NotRun, UsageError.
    """
    try:
        text = Path(path).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotRun(f"--prompts {path}: {error}") from None
    try:
        whole = json.loads(text)
    except ValueError:
        whole = [_prompt(line) for line in text.splitlines() if line.strip()]
    values = whole if isinstance(whole, list) else [whole]
    found = [item.get("prompt") or item.get("text") if isinstance(item, dict) else item for item in values]
    prompts = [item for item in found if isinstance(item, str) and item]
    if not prompts or len(prompts) != len(found):
        raise UsageError(f"--prompts {path}: give a JSON list of texts, JSON lines with `prompt`, or a prompt a line")
    return prompts[:MAX_PROMPTS]


def _prompt(line: str) -> Any:
    try:
        value = json.loads(line)
    except ValueError:
        return line
    return value if isinstance(value, (dict, str)) else line


def built_in(session: Session) -> list[str]:
    """The prompts used when none are given: for the demo's pair those held out when it was trained, else NEUTRAL."""
    if session.deployment.server.entrypoint != "console.demo.engine":
        return list(NEUTRAL)
    from console.demo.setup import shipped
    from console.demo.traffic import read_prompts as read

    with shipped("prompts.json") as path:
        return read(path, "held_out")


async def bench(
    session: Session, prompts: Sequence[str], max_new_tokens: int, told: Callable[[int, int], None]
) -> Bench:
    """Send each prompt once, greedily and past end-of-text, and keep the result with the run that serves.

    `told(done, total)` is called in between. Other requests at the same time make it slower, and are not seen here.
    Raises Refused when nothing serves, NotRun when the server does not speculate, remote's errors.
    """
    seen = await session.status()
    if not seen.up or not seen.healthy:
        raise Refused(f"the server is {seen.phase}, so there is nothing to measure; start it first")
    engine = session.deployment.server.engine_name
    if engine != "sglang":
        raise Refused(f"{engine} does not say per request what was accepted; its log does: `console tail`")
    asked = [json.dumps([prompt, max_new_tokens]) for prompt in prompts]
    began, lens, speeds, tokens, exact = time.monotonic(), [], [], 0, True
    for index, prompt in enumerate(prompts):
        told(index, len(prompts))
        meta, took = await _ask(session, prompt, max_new_tokens)
        value, by_histogram = _accepted(meta)
        if value is None:
            raise NotRun("the server answered without a count of accepted drafts; does it run with a draft?")
        count = int(meta.get("completion_tokens") or 0)
        lens.append(value)
        speeds.append(count / took)
        tokens, exact = tokens + count, exact and by_histogram
        session.serving.add_histogram(_histogram(meta))
    told(len(prompts), len(prompts))
    digest = hashlib.sha256("\n".join(asked).encode()).hexdigest()
    found = Bench(digest, tuple(lens), tuple(speeds), tokens, time.monotonic() - began, exact)
    return await session.runs.keep_bench((await _run_of(session)).id, found)


async def _ask(session: Session, prompt: str, max_new_tokens: int) -> tuple[Mapping[str, Any], float]:
    """The answer's meta_info, and the seconds it took the server, which leave the way there out."""
    from remote import http

    url = session.deployment.server.url.rstrip("/") + "/generate"
    params = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True}
    body = {"text": prompt, "sampling_params": params}
    began = time.monotonic()
    answer = await http.post(session.host, url, body, headers=session.server.headers, timeout=_ANSWER_S)
    took = time.monotonic() - began
    found = answer.json() if answer.ok else None
    meta = found.get("meta_info") if isinstance(found, dict) else None
    if not isinstance(meta, dict):
        if answer.status in NO_KEY:
            raise NotRun(f"the server answers no prompt: it {session.server.refusal}")
        said = session.server.masked(answer.body.decode("utf-8", "replace"))[:200]
        raise NotRun(f"the server answered a prompt with status {answer.status}: {said}")
    own = meta.get("e2e_latency")
    return meta, float(own) if isinstance(own, (int, float)) and own > 0 else took


def _histogram(meta: Mapping[str, Any]) -> list[int]:
    value: list[Any] = next((meta[name] for name in _HISTOGRAMS if isinstance(meta.get(name), list)), [])
    return [int(item) for item in value]


def _accepted(meta: Mapping[str, Any]) -> tuple[float | None, bool]:
    """The accept length, and whether it is exact."""
    exact = accept_length(_histogram(meta))
    steps, tokens = meta.get("spec_verify_ct"), meta.get("completion_tokens")
    if exact is not None or not isinstance(steps, int) or steps <= 0:
        return exact, True
    drafts = next((meta[name] for name in _COUNTS if isinstance(meta.get(name), int)), None)
    if drafts is not None:
        return 1 + drafts / steps, True
    return (tokens / steps, False) if isinstance(tokens, int) else (None, True)


async def _run_of(session: Session) -> Run:
    """The run that serves; one begun now for a server that somebody else started."""
    seen, runs = session.last_status, session.runs
    name = session.deployment.name
    found = await runs.current(name, seen.pid) if seen.pid else None
    if found is not None:
        return found
    log = session.server.record.log if session.server.record is not None else ""
    begun = await runs.begin(name, session.host.name, "found running", seen.argv, {}, log, await session.snapshot())
    return await runs.update(begun.id, state="ready", ready=seen.since or time.time(), pid=seen.pid)


# -- over numbers of draft steps ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Swept:
    """One value of the sweep: measured, or why it could not be."""

    steps: int
    bench: Bench | None
    problem: str = ""


def changes_for(steps: int, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a chain of `steps` drafts; in a tree (topk over 1) the number of draft tokens stays as it is."""
    chain = str(flags.get("speculative-eagle-topk") or "1") == "1"
    return {"speculative-num-steps": steps, **({"speculative-num-draft-tokens": steps + 1} if chain else {})}


def read_steps(text: str) -> list[int]:
    """`1,3,5` as numbers. Raises UsageError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdecimal() and 0 < int(word) <= 64 for word in words):
        raise UsageError(f"--steps {text!r}: give numbers of draft steps from 1 to 64, such as 1,3,5")
    return list(dict.fromkeys(map(int, words)))


@asynccontextmanager
async def sweeping(session: Session, step: Callable[[str, str], None]) -> AsyncIterator[StandIn]:
    """The server's place, for a sweep; its own command line runs again afterwards, whatever happens."""
    from console.interim import stand_in

    async with stand_in(session, "a sweep", step) as stand:
        yield stand


async def sweep(
    session: Session,
    stand: StandIn,
    steps: Sequence[int],
    prompts: Sequence[str],
    max_new_tokens: int,
    told: Callable[[int, int], None],
) -> AsyncGenerator[Swept, None]:
    """Restart with each number of steps and measure; one that does not come up is told and passed over."""
    from console.errors import StartFailed

    flags = flags_of(session.deployment, stand.argv)
    for number in steps:
        try:
            await stand.run(f"sweep: {number} steps", changes_for(number, flags))
        except StartFailed as error:
            yield Swept(number, None, str(error))
            continue
        yield Swept(number, await bench(session, prompts, max_new_tokens, told))
