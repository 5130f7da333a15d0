"""Captures from servers of several ranks: a text by itself, and at the head of one too long for a fused all-reduce."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.capture import live_captures
from checks.capture_folder import Taken, write_capture
from checks.capture_ranks import differences
from checks.capture_run import told_of
from tests.checks.test_capture import evidence, info, server
from tests.console.random_pair import HIDDEN, LAYERS


def ranked(size: int, fused: bool, **told: Any) -> Callable[[str, dict[str, Any]], tuple[int, bytes]]:
    """A server of `size` ranks; where `fused`, what it gives for up to 2048 tokens is the part of a sum."""

    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if path != "/generate":
            return 200, info(tp_size=size, **told)
        ids = np.asarray(body["input_ids"])[:, None]
        places = ids * 31 + np.arange(len(ids))[:, None] + 1
        states = np.sin(places * np.arange(1, 3 * HIDDEN + 1)) * (0.9 if fused and len(ids) <= 2048 else 1.0)
        return 200, json.dumps({"meta_info": {"cached_tokens": 0, "hidden_states": [states.tolist()]}}).encode()

    return answer


@pytest.mark.parametrize(("fused", "apart"), [(False, []), (True, ["2304 tokens at once"])])
def test_a_server_of_several_ranks_is_asked_above_2048_tokens_too(
    tmp_path: Path, fused: bool, apart: list[str]
) -> None:
    with server(ranked(2, fused, chunked_prefill_size=8192, context_length=4096)) as url:
        (found,) = live_captures(evidence(tmp_path, url))
    assert (found.ranks, len(found.samples)) == (2, 4)
    (again,) = found.again
    length = len(found.samples[0].token_ids)
    assert again.sample.states.shape == (2304, 3, HIDDEN)
    assert np.array_equal(again.sample.token_ids[:length], found.samples[0].token_ids)
    assert [item.how for item in differences(found) if item.apart] == apart


@pytest.mark.parametrize(
    "told", [{"chunked_prefill_size": 2048}, {"context_length": 2048}, {"max_total_num_tokens": 2000}]
)
def test_a_server_that_never_computes_so_many_at_once_is_not_asked_to(tmp_path: Path, told: dict[str, int]) -> None:
    with server(ranked(2, False, **told)) as url:
        (found,) = live_captures(evidence(tmp_path, url))
    assert (found.ranks, found.again) == (2, ())


def test_texts_are_no_longer_than_what_the_server_computes_at_once(tmp_path: Path) -> None:
    """Of a prompt cut in chunks SGLang shows the last chunk alone."""
    with server(ranked(1, False, chunked_prefill_size=32)) as url:
        (found,) = live_captures(evidence(tmp_path, url))
    assert {len(sample.token_ids) for sample in found.samples} == {32}


def test_a_rank_of_no_numbers_is_apart_and_told_in_plain_json(tmp_path: Path) -> None:
    whole = np.ones((20, 2, HIDDEN), dtype=np.float32)
    first, other = (Taken(np.arange(20), np.arange(20), states) for states in (whole, whole * np.nan))
    capture = write_capture(tmp_path / "c", {"kind": "engine", "ranks": 2}, [first, replace(other, again="rank 1")])
    (found,) = differences(capture)
    assert found.apart
    told = told_of(capture, LAYERS)
    assert json.loads(json.dumps(told, allow_nan=False))["again"] == [{"how": "rank 1", "distance": [None, None]}]
    assert "rank 1: its ranks do not feed it the same" in told["proves"]
