"""Traffic for the embedded engine: held-out prompts sent in a loop at a modest pace, or once with the answers kept.

Standard library only, and it survives restarts of the server: it waits for it and goes on.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

PROMPTS = Path(__file__).with_name("prompts.json")
MAX_NEW_TOKENS = 96
DUTY = 0.5
"""Largest share of the time the server may spend on this traffic; the rest is rest."""
RETRY_S = (0.2, 0.5, 1.0, 2.0)
ANSWER_TIMEOUT_S = 60.0
KEY_VARIABLE = "EAGLE_CONSOLE_DEMO_API_KEY"
"""Names the server's API key: a command line is there for all to see."""


class TrafficError(Exception):
    """The traffic cannot go on: no usable prompts, or the server refuses a request."""


def read_prompts(path: Path, name: str) -> list[str]:
    """The prompts under `name` (traffic, held_out) of a prompts file; raises TrafficError."""
    try:
        prompts = json.loads(path.read_text(encoding="utf-8"))[name]
    except OSError as error:
        raise TrafficError(f"cannot read {path}: {error.strerror}; pass --prompts FILE") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TrafficError(f"{path} is not a prompts file with a list {name!r}: {error}") from error
    if not isinstance(prompts, list) or not prompts or not all(isinstance(text, str) and text for text in prompts):
        raise TrafficError(f"{path}: {name!r} must be a list of texts, and not empty")
    return prompts


def ask(url: str, prompt: str, max_new_tokens: int, api_key: str | None = None) -> dict[str, Any]:
    """One greedy generation that runs past end-of-text; the answer's JSON.

    Raises TrafficError when the server refuses, OSError or http.client.HTTPException when it is away or starting.
    """
    params = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True}
    body = json.dumps({"text": prompt, "sampling_params": params}).encode("utf-8")
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(url.rstrip("/") + "/generate", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            raise
        text = error.read(500).decode("utf-8", "replace")
        raise TrafficError(f"{url} refused a request with status {error.code}: {text!r}") from error
    if not isinstance(answer, dict):
        raise TrafficError(f"{url} answered with a JSON {type(answer).__name__}; is this an SGLang-compatible server?")
    return answer


def answers(
    url: str, prompts: Iterator[str] | Sequence[str], max_new_tokens: int, api_key: str | None, patience: float
) -> Iterator[tuple[str, dict[str, Any], float]]:
    """(prompt, answer, seconds) one after the other, waiting up to `patience` seconds whenever the server is away."""
    for prompt in prompts:
        away_since: float | None = None
        failures = 0
        while True:
            began = time.monotonic()
            try:
                answer = ask(url, prompt, max_new_tokens, api_key)
                break
            except (OSError, http.client.HTTPException, ValueError) as error:
                if away_since is None:
                    away_since = began
                    print(f"no answer from {url} ({error}); waiting for it", file=sys.stderr, flush=True)
                if time.monotonic() - away_since > patience:
                    raise TrafficError(f"no answer from {url} for {patience:.0f} s: {error}") from error
                time.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
                failures += 1
        if away_since is not None:
            print(f"{url} answers again", file=sys.stderr, flush=True)
        yield prompt, answer, time.monotonic() - began


def once(url: str, prompts: Sequence[str], max_new_tokens: int, api_key: str | None = None) -> list[dict[str, Any]]:
    """Send every prompt once and keep what was answered: prompt, output_ids and meta_info; raises TrafficError."""
    return [
        {"prompt": prompt, "output_ids": answer.get("output_ids"), "meta_info": answer.get("meta_info")}
        for prompt, answer, _ in answers(url, prompts, max_new_tokens, api_key, patience=30.0)
    ]


def loop(url: str, prompts: Sequence[str], max_new_tokens: int, api_key: str | None, interval: float) -> None:
    """Send the prompts over and over, resting at least `interval` seconds and taking at most DUTY of the time."""
    for _, _, took in answers(url, cycle(prompts), max_new_tokens, api_key, patience=float("inf")):
        time.sleep(max(interval, took * (1 / DUTY - 1)))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 refused or unanswered, 2 usage, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m console.demo.traffic",
        description=__doc__,
        epilog=f"An API key is taken from the variable {KEY_VARIABLE}.",
    )
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument(
        "--set", dest="name", default="traffic", help="which list of the prompts file: traffic, held_out"
    )
    parser.add_argument("--max-new-tokens", type=int, default=MAX_NEW_TOKENS)
    parser.add_argument("--interval", type=float, default=0.5, help="least rest between two requests, in seconds")
    parser.add_argument("--once", action="store_true", help="send every prompt once, then end")
    parser.add_argument("--out", type=Path, help="with --once: write the answers here as JSON")
    args = parser.parse_args(argv)
    api_key = os.environ.get(KEY_VARIABLE)
    if args.out and not args.once:
        parser.error("--out goes with --once")
    try:
        prompts = read_prompts(args.prompts, args.name)
        if not args.once:
            loop(args.url, prompts, args.max_new_tokens, api_key, args.interval)
        kept = json.dumps(once(args.url, prompts, args.max_new_tokens, api_key))
        if args.out:
            args.out.write_text(kept + "\n", encoding="utf-8")
        else:
            print(kept)
    except TrafficError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
