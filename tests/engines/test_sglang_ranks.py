"""Captures from SGLang on two ranks in bf16: a text alone and in a long one, by every rank, in chunks, half cached."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.caches import open_cache
from checks.capture_folder import Capture, open_capture
from checks.capture_ranks import LONG, differences, long_text
from checks.capture_run import answer
from checks.capture_ways import hook_flags
from checks.distance import median, relative
from console.capturing import HOOK_MODULE
from console.demo.setup import LATE, WIRINGS, shipped
from tests.engines.pair import Pair, copied_pair, embedded_engine
from tests.engines.serving import ROOT, EngineServer, running_sglang

pytestmark = pytest.mark.engines

ROUNDING = 0.05
"""bf16 against fp32, after ten layers: the median over tokens. The states of two layers are far more apart."""


@dataclass(frozen=True)
class Ranked:
    """The pair on two ranks, with hidden states given and our hook in it."""

    server: EngineServer
    pair: Pair
    hook: Path
    cache: Path

    def capture(self, how: str, out: Path) -> Capture:
        """One capture, as the host answers for it."""
        request = {
            "task": "capture",
            "how": how,
            "hook_dir": str(self.hook),
            "most": 3,
            "draft": str(self.pair.draft),
            "target": str(self.pair.target),
            "caches": [{"path": str(self.cache)}],
            "server": {"url": self.server.url},
            "capture_dir": str(out),
        }
        told: dict[str, Any] = answer(request, lambda _: None)
        return open_capture(Path(told["captures"][0]["path"]))

    def is_fed(self, capture: Capture) -> None:
        """Every row is what the embedded engine computes in fp32 for the wiring, and no other layer's."""
        engine = embedded_engine(self.pair)
        for sample in (*capture.samples, *(item.sample for item in capture.again)):
            known = min(len(sample.token_ids), 1024)
            rows = np.searchsorted(sample.positions, known)
            states = engine.states(sample.token_ids[:known].tolist())[sample.positions[:rows]]
            for slot, index in enumerate(WIRINGS[LATE]):
                fed = sample.slot(slot, 0, int(rows))
                right = _apart(fed, states[:, index + 1])
                assert right < ROUNDING
                assert right < _apart(fed, states[:, index]) / 4


def _apart(rows: Any, wanted: Any) -> float:
    return median(relative(rows.reshape(len(rows), -1), wanted.reshape(len(rows), -1)))


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranked]:
    folder = tmp_path_factory.mktemp("ranks")
    pair, hook = copied_pair(folder, LATE), folder / "hook"
    hook.mkdir()
    shutil.copy(ROOT / "checks" / "hooks" / "fc_input.py", hook / f"{HOOK_MODULE}.py")
    args = {
        "tp-size": 2,
        "dtype": "bfloat16",
        "context-length": 4096,
        "chunked-prefill-size": LONG,
        "forward-hooks": hook_flags(str(hook), HOOK_MODULE),
    }
    with pytest.MonkeyPatch.context() as patch, shipped("cache") as cache:
        patch.setenv("PYTHONPATH", str(hook))
        patch.setenv("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "1")
        # Without GPUs a rank is given its cores by hand.
        patch.setenv("SGLANG_CPU_OMP_THREADS_BIND", f"0|{(os.cpu_count() or 1) - 1}")
        with running_sglang(folder, pair.target, pair.draft, args=args) as server:
            server.await_healthy()
            yield Ranked(server, pair, hook, cache)


def test_two_ranks_give_the_same_below_and_above_2048_tokens(ranked: Ranked, tmp_path: Path) -> None:
    capture = ranked.capture("live", tmp_path)
    assert (capture.ranks, len(capture.samples)) == (2, 3)
    (long,) = differences(capture)
    assert (long.how, long.rows, long.apart) == ("2304 tokens at once", 192, False)
    assert capture.again[0].sample.states.shape[0] == LONG
    ranked.is_fed(capture)


def test_the_hook_shows_every_rank_and_the_same_numbers(ranked: Ranked, tmp_path: Path) -> None:
    hooked, live = ranked.capture("hook", tmp_path / "hook"), ranked.capture("live", tmp_path / "live")
    found = differences(hooked)
    assert [(item.how, item.apart) for item in found] == [("rank 1", False), ("2304 tokens at once", False)]
    assert set(found[0].slots) == {0.0}, "what is summed over the ranks is the same on all of them, to the bit"
    ranked.is_fed(hooked)
    for one, other in zip(hooked.samples, live.samples):
        assert np.array_equal(one.token_ids, other.token_ids)
        assert _apart(one.block(0, len(one.positions)), other.block(0, len(other.positions))) < ROUNDING


def test_what_the_prefix_cache_holds_is_a_gap_or_asked_for_again(ranked: Ranked, tmp_path: Path) -> None:
    texts = [np.asarray(item.token_ids) for item in open_cache(ranked.cache).samples(0, 0)]
    # Two texts of the capture: one is known to the server almost whole, of the other the beginning.
    assert ranked.server.get("/flush_cache")[0] == 200
    ranked.server.generate(texts[0].tolist(), 1)
    ranked.server.generate(texts[4][:60].tolist(), 1)
    capture = ranked.capture("live", tmp_path)
    assert np.array_equal(capture.samples[0].token_ids, texts[0])
    assert np.array_equal(capture.samples[1].token_ids, texts[4])
    assert np.array_equal(capture.samples[0].positions, np.arange(192))
    first = int(capture.samples[1].positions[0])
    assert 0 < first <= 60, "the prefix cache of a drafting server holds pairs of tokens: one less than was sent"
    assert np.array_equal(capture.samples[1].positions, np.arange(first, 192))
    ranked.is_fed(capture)


def test_of_a_prompt_cut_in_chunks_the_server_shows_the_last_one(ranked: Ranked) -> None:
    """Why no text is longer than a chunk."""
    texts = [np.asarray(item.token_ids) for item in open_cache(ranked.cache).samples(0, 0)]
    body = {
        "input_ids": long_text(texts, LONG + 100).tolist(),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_hidden_states": True,
        "extra_key": "chunks",
    }
    meta = ranked.server.post("/generate", body)["meta_info"]
    assert (len(meta["hidden_states"][0]), meta["cached_tokens"]) == (100, 0)
