"""SGLang on the shipped pair, under the right and the wrong wirings, against the embedded engine and transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from checks.engines.events import Decode, Phase
from checks.engines.sglang import log
from console.demo.setup import EMBEDDING, LATE, RIGHT, WIRINGS
from tests.engines.pair import (
    NEW_TOKENS,
    Answer,
    Pair,
    copied_pair,
    embedded_answers,
    embedded_engine,
    prompts,
    transformers_answers,
)
from tests.engines.serving import EngineServer, running_sglang

pytestmark = pytest.mark.engines


class Served:
    """One start of SGLang: its answers to every prompt, and the server itself, still up."""

    def __init__(self, wiring: str, pair: Pair, server: EngineServer) -> None:
        self.wiring, self.pair, self.server = wiring, pair, server
        self.raw = [server.generate(ids, NEW_TOKENS) for ids in prompts()]
        self.answers = [
            Answer(tuple(item["output_ids"]), tuple(item["meta_info"]["spec_correct_drafts_histogram"]))
            for item in self.raw
        ]


@pytest.fixture(scope="module", params=[RIGHT, LATE, EMBEDDING])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    pair = copied_pair(folder, request.param)
    with running_sglang(folder, pair.target, pair.draft) as server:
        server.await_healthy()
        yield Served(request.param, pair, server)


def test_the_text_is_that_of_transformers_under_any_wiring(served: Served) -> None:
    assert [answer.tokens for answer in served.answers] == transformers_answers()


def test_text_and_accepted_drafts_are_those_of_the_embedded_engine(served: Served) -> None:
    expected = embedded_answers(served.pair)
    assert [one.explains(answer) for one, answer in zip(expected, served.answers)] == [True] * len(prompts())
    assert sum(one.histogram == answer.histogram for one, answer in zip(expected, served.answers)) >= len(prompts()) - 1


def test_what_the_draft_is_fed_are_the_states_of_its_ids(served: Served) -> None:
    """The aux rows that SGLang returns against every state of the embedded engine: id i is the state i + 1."""
    ids = prompts(1)[0]
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}, "extra_key": "fresh"}
    answer = served.server.post("/generate", {**body, "return_hidden_states": True})
    rows = np.array(answer["meta_info"]["hidden_states"][0], dtype=np.float32)
    states = embedded_engine(served.pair).states(ids)
    fed = rows.reshape(len(ids), 3, -1)
    wanted = states[:, [index + 1 for index in WIRINGS[served.wiring]]]
    assert np.linalg.norm(fed - wanted) < 1e-4 * np.linalg.norm(wanted)


def test_the_log_of_a_start_and_its_traffic_is_understood(served: Served) -> None:
    events = list(log.parse_lines(served.server.log().splitlines()))
    phases = [event.phase for event in events if isinstance(event, Phase)]
    assert list(dict.fromkeys(phases)) == ["starting", "loading", "warming", "ready", "serving"]
    assert not [event for event in events if event.event == "error"]
    decodes = [event for event in events if isinstance(event, Decode)]
    assert decodes and all(event.graph is False for event in decodes)
    for event in decodes:
        assert event.accept_len is not None and event.accept_rate_printed is not None
        fits = log.rates_that_fit(event.accept_len, event.accept_rate_printed, 6)
        assert log.rate_meaning("0.5.23") in fits


def test_the_metrics_count_what_the_requests_count(served: Served) -> None:
    status, text = served.server.get("/metrics")
    assert status == 200
    rounds = sum(sum(answer.histogram) for answer in served.answers)
    assert _metric(text, "sglang:spec_verify_calls_total") >= rounds
    assert _metric(text, "sglang:spec_num_steps") == 5


def _metric(text: str, name: str) -> float:
    values: list[Any] = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"{name}{{")]
    return sum(float(value) for value in values)
