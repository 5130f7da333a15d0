"""JSON in and out of /generate and /demo/states: bodies to jobs, results to SGLang's response fields."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from console.demo.engine import tokenizer
from console.demo.engine.decoding import Generation
from console.demo.engine.engine import Engine
from console.demo.engine.errors import RequestError
from console.demo.engine.models.layers import Floats
from console.demo.engine.scheduler import GenerateJob, StatesJob

DEFAULT_MAX_NEW_TOKENS = 128

# Sampling fields a client may send although greedy decoding ignores them.
_IGNORED = frozenset({"top_p", "top_k", "min_p", "skip_special_tokens", "spaces_between_special_tokens"})
_USED = frozenset({"max_new_tokens", "temperature", "ignore_eos", "stop", "stop_token_ids", "n"})
_FIELDS = frozenset({"text", "input_ids", "sampling_params", "return_hidden_states", "stream", "rid", "return_logprob"})

NO_HIDDEN_STATES = (
    "The server is not configured to return hidden states. Please set `--return-hidden-states-mode last`, "
    "`--return-hidden-states-mode full`, or the legacy `--enable-return-hidden-states` flag."
)


def read_body(body: bytes) -> dict[str, Any]:
    """The JSON object in a request body; raises RequestError when it is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The request body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestError(f"The request body must be a JSON object, not {type(value).__name__}")
    return value


def generate_job(body: Mapping[str, Any], engine: Engine) -> GenerateJob:
    """A /generate body as a checked job; raises RequestError that says which field is wrong."""
    unknown = sorted(set(body) - _FIELDS)
    if unknown:
        raise RequestError(f"Unsupported field {unknown[0]!r}; the demo engine reads {', '.join(sorted(_FIELDS))}")
    if body.get("stream") or body.get("return_logprob"):
        raise RequestError("stream and return_logprob are not supported by the demo engine; leave them out")
    params = body.get("sampling_params") or {}
    if not isinstance(params, dict):
        raise RequestError("sampling_params must be an object; batches are not supported by the demo engine")
    unknown = sorted(set(params) - _USED - _IGNORED)
    if unknown:
        raise RequestError(
            f"Unexpected sampling parameter {unknown[0]!r}; the demo engine reads {', '.join(sorted(_USED))}"
        )
    if params.get("temperature") not in (None, 0, 0.0) or params.get("n") not in (None, 1):
        raise RequestError("The demo engine decodes greedily, one answer a request; send temperature 0 and n 1")
    budget = params.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise RequestError(f"max_new_tokens must be an integer of at least 1, got {budget!r}")
    keep_hidden = body.get("return_hidden_states") or False
    if not isinstance(keep_hidden, bool):
        raise RequestError("return_hidden_states must be true or false")
    if keep_hidden and not engine.args.enable_return_hidden_states:
        raise RequestError(NO_HIDDEN_STATES)
    stop_tokens = frozenset(_integers(params.get("stop_token_ids") or [], "stop_token_ids"))
    if not params.get("ignore_eos"):
        stop_tokens |= engine.eos_tokens
    ids = _prompt(body)
    engine.check(ids, budget)
    return GenerateJob(tuple(ids), budget, stop_tokens, _stop_texts(params.get("stop")), keep_hidden)


def states_job(body: Mapping[str, Any], engine: Engine) -> StatesJob:
    """A /demo/states body as a checked job; raises RequestError."""
    ids = _integers(body.get("input_ids"), "input_ids")
    engine.check(ids)
    return StatesJob(tuple(ids))


def _prompt(body: Mapping[str, Any]) -> list[int]:
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise RequestError("Either text or input_ids should be provided, and not both.")
    if text is None:
        return _integers(ids, "input_ids")
    if not isinstance(text, str):
        raise RequestError("text must be one string; batches are not supported by the demo engine")
    try:
        return tokenizer.encode(text)
    except UnicodeEncodeError as error:
        raise RequestError(f"text is not valid Unicode: {error.reason}") from error


def _integers(value: Any, name: str) -> list[int]:
    if not isinstance(value, list) or any(isinstance(item, bool) or not isinstance(item, int) for item in value):
        raise RequestError(f"{name} must be one list of integers; batches are not supported by the demo engine")
    return value


def _stop_texts(stop: Any) -> tuple[str, ...]:
    texts = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or any(not isinstance(text, str) for text in texts):
        raise RequestError("stop must be a string or a list of strings")
    return tuple(text for text in texts if text)


def generation_body(generation: Generation, engine: Engine, rid: str, seconds: float) -> dict[str, Any]:
    """The response of /generate, with the meta_info fields of SGLang 0.5.23."""
    tokens = list(generation.tokens)
    finish: dict[str, Any] = {"type": generation.finish_reason}
    if generation.finish_reason == "length":
        finish["length"] = len(tokens)
    elif generation.finish_reason == "stop":
        finish["matched"] = tokens[-1]
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": finish,
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": len(tokens),
        "cached_tokens": 0,
        "weight_version": "default",
        "e2e_latency": seconds,
    }
    rounds, correct = generation.verify_rounds, generation.correct_drafts
    proposed = rounds * engine.steps
    if proposed:
        meta |= {
            "spec_accept_rate": correct / proposed,
            # SGLang divides all completion tokens, the prefill's own token included.
            "spec_accept_length": len(tokens) / rounds,
            "spec_num_correct_drafts": correct,
            "spec_num_proposed_drafts": proposed,
            "spec_verify_ct": rounds,
        }
    if rounds:
        meta["spec_correct_drafts_histogram"] = list(generation.drafts_histogram)
    if generation.hidden_states is not None:
        rows = generation.hidden_states.astype(np.float32).tolist()
        prompt = generation.prompt_tokens
        meta["hidden_states"] = [rows[:prompt], *rows[prompt:]]
    return {"text": tokenizer.decode(tokens), "output_ids": tokens, "meta_info": meta}


def states_body(states: Floats) -> dict[str, Any]:
    """All states as base64 of little-endian float32, shape [S, n+1, H]; states of finite weights are finite."""
    data = np.ascontiguousarray(states, dtype="<f4")
    return {"shape": list(data.shape), "dtype": "float32", "data": base64.b64encode(data.tobytes()).decode("ascii")}
