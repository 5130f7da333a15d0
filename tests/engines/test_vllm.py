"""vLLM on the shipped pair: the ids that are right on it are wrong on SGLang, and the console says so for both."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.engines.events import Decode, Phase
from checks.engines.vllm import log
from checks.engines.vllm.metrics import positions
from console.demo.setup import EMBEDDING, RIGHT, STEPS, TRAINED_STATES, WIRINGS, shipped
from tests.engines.checked import all_states, cached_texts, checked
from tests.engines.pair import (
    NEW_TOKENS,
    Answer,
    Pair,
    copied_pair,
    embedded_answers,
    prompts,
    transformers_answers,
)
from tests.engines.serving import EngineServer, running_vllm
from tests.engines.vllm_crashes import await_statistics

pytestmark = pytest.mark.engines

ON_SGLANG = WIRINGS[RIGHT]
"""Ids of the layers whose output is meant: id i is the state i + 1. What the shipped draft needs on SGLang."""
ON_VLLM = TRAINED_STATES
"""Ids of states. What the shipped draft needs on vLLM."""


def both_places(pair: Pair, ids: tuple[int, ...]) -> None:
    """The ids where SGLang reads them, and where vLLM does."""
    config = json.loads(pair.config.read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list(ids)
    pair.edit({**config, "eagle_aux_hidden_state_layer_ids": list(ids)})


class Served:
    """One start of vLLM: its texts, and what it counted and logged meanwhile."""

    def __init__(self, pair: Pair, ids: tuple[int, ...], server: EngineServer) -> None:
        self.pair, self.ids = pair, ids
        self.texts = [_complete(server, prompt) for prompt in prompts()]
        self.metrics = server.get("/metrics")[1]
        await_statistics(server)
        self.log = server.log()

    def total(self, name: str) -> float:
        """The sum of a counter over its label sets."""
        return sum(
            float(value) for value in re.findall(rf"^vllm:{name}\{{[^}}]*\}} (\S+)$", self.metrics, re.MULTILINE)
        )

    @property
    def by_position(self) -> list[float]:
        """Accepted drafts at each position of the chain."""
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        found = re.findall(rf'^{name}\{{[^}}]*position="(\d+)"[^}}]*\}} (\S+)$', self.metrics, re.MULTILINE)
        return [float(value) for _, value in sorted(found, key=lambda item: int(item[0]))]


def _complete(server: EngineServer, ids: list[int]) -> tuple[int, ...]:
    model = json.loads(server.get("/v1/models")[1])["data"][0]["id"]
    body = {"model": model, "prompt": ids, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    answer = server.post("/v1/completions", {**body, "return_token_ids": True})
    return tuple(answer["choices"][0]["token_ids"])


@pytest.fixture(scope="module", params=[ON_SGLANG, ON_VLLM], ids=str)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("vllm")
    pair = copied_pair(folder, RIGHT)
    both_places(pair, request.param)
    with running_vllm(folder, pair.target, pair.draft) as server:
        server.await_healthy()
        yield Served(pair, request.param, server)


def test_the_text_is_that_of_transformers(served: Served) -> None:
    assert served.texts == transformers_answers()


def test_an_id_is_the_state_itself(served: Served, tmp_path: Path) -> None:
    """As many drafts are accepted as by the embedded engine, which has SGLang's convention, with ids one lower."""
    pair = copied_pair(tmp_path, RIGHT)
    pair.edit({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [index - 1 for index in served.ids]}})
    expected = embedded_answers(pair)
    assert served.total("spec_decode_num_drafts_total") == sum(sum(answer.histogram) for answer in expected)
    assert served.by_position == [sum(_longer(answer, position) for answer in expected) for position in range(STEPS)]
    assert served.total("spec_decode_num_accepted_tokens_total") == sum(served.by_position)
    read = positions(served.metrics)
    assert read is not None
    assert (read.drafts, list(read.accepted)) == (served.total("spec_decode_num_drafts_total"), served.by_position)


def _longer(answer: Answer, position: int) -> int:
    """Verify steps in which the draft at `position` was accepted."""
    return sum(answer.histogram[position + 1 :])


def test_the_log_is_understood(served: Served) -> None:
    events = list(log.parse_lines(served.log.splitlines()))
    phases = [event.phase for event in events if isinstance(event, Phase)]
    assert list(dict.fromkeys(phases)) == ["starting", "loading", "warming", "ready", "serving"]
    windows = [event for event in events if isinstance(event, Decode) and event.accepted is not None]
    assert windows
    for event in windows:
        assert event.accept_len is not None and event.accepted is not None and event.drafted
        assert event.accept_len == pytest.approx(1 + STEPS * event.accepted / event.drafted, abs=0.01)
        assert sum(event.positions) == pytest.approx(event.accept_len - 1, abs=0.01)


@pytest.mark.parametrize(
    "ids, fed",
    [
        (ON_SGLANG, {"sglang": ("PASS", [3, 7, 10]), "vllm": ("FAIL", [2, 6, 9])}),
        (ON_VLLM, {"sglang": ("FAIL", [4, 8, 11]), "vllm": ("PASS", [3, 7, 10])}),
    ],
    ids=str,
)
def test_the_checks_say_which_engine_the_ids_are_right_for(
    ids: tuple[int, ...], fed: dict[str, tuple[str, list[int]]], tmp_path: Path
) -> None:
    """One and the same config, with the ids where either engine reads them."""
    pair = copied_pair(tmp_path, RIGHT)
    both_places(pair, ids)
    with shipped("cache") as source:
        shutil.copytree(source, tmp_path / "cache", ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    capture = all_states(pair, cached_texts(tmp_path / "cache"), tmp_path / "capture")
    for engine, (verdict, states) in fed.items():
        finding = checked(engine, pair, tmp_path / "cache", capture)
        assert (finding["verdict"], finding["evidence"]["engine_states"]) == (verdict, states)
        assert finding["evidence"]["source"] == "probed"
        assert finding["evidence"]["trained_states"] == list(TRAINED_STATES)


def test_a_state_that_vllm_cannot_feed_is_named(tmp_path: Path) -> None:
    """-1 is the embedding on SGLang. On vLLM no layer has it, so that two states are fed where three are read.

    Nothing else tells: the kernel that multiplies on a CPU takes the narrower rows without a word.
    """
    pair = copied_pair(tmp_path, RIGHT)
    both_places(pair, WIRINGS[EMBEDDING])
    with shipped("cache") as source:
        shutil.copytree(source, tmp_path / "cache", ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    capture = all_states(pair, cached_texts(tmp_path / "cache"), tmp_path / "capture")
    finding = checked("vllm", pair, tmp_path / "cache", capture)
    assert finding["verdict"] == "FAIL" and "-1" in finding["evidence"]["problem"]
    assert finding["evidence"]["engine_states"] == [2, 6]
    assert "problem" not in checked("sglang", pair, tmp_path / "cache", capture)["evidence"]
