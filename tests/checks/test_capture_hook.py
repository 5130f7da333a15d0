"""Our hook inside a module of torch's own kind, and the capture made of what it writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checks import capture_hook
from checks.align.states import states
from checks.capture_folder import open_capture
from checks.capture_hook import hook_capture
from checks.capture_ranks import differences
from checks.capture_run import answer
from checks.errors import CaptureFailed, NotRunnable
from checks.evidence import Evidence
from checks.finding import Verdict
from checks.hooks.fc_input import WANTED
from checks.request import CacheRequest, Request, ServerRequest
from tests.console.random_pair import HIDDEN, VOCAB, write_random_pair


@contextmanager
def engine(reply: Callable[[dict[str, Any]], dict[str, Any]], **told: Any) -> Iterator[str]:
    """What stands for an engine: it answers /server_info, with `told`, and, by `reply`, /generate."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"version": "0.5.12", "speculative_algorithm": "EAGLE3", **told})

        def do_POST(self) -> None:
            self._send(reply(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def _send(self, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def request_for(tmp_path: Path, url: str) -> Request:
    target, draft = write_random_pair(tmp_path / "pair", (2, 6, 9))
    cache = tmp_path / "cache"
    cache.mkdir()
    rng = np.random.default_rng(3)
    for index in range(3):
        states = rng.standard_normal((20 + index, 4, HIDDEN)).astype(np.float32)
        save_file(
            {"token_ids": rng.integers(0, VOCAB, 20 + index), "hidden_states": states},
            cache / f"hs_{index}.safetensors",
        )
    return Request(
        draft=str(draft),
        target=str(target),
        caches=(CacheRequest(str(cache)),),
        server=ServerRequest(url=url),
        capture_dir=str(tmp_path / "out"),
    )


def test_what_the_hook_writes_becomes_a_capture(tmp_path: Path) -> None:
    folder = tmp_path / "hook"
    folder.mkdir()
    fed: list[np.ndarray] = []

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        count = len(body["input_ids"])
        assert (folder / WANTED).read_text().strip() == str(count)
        assert "return_hidden_states" not in body
        rows = np.random.default_rng(count).standard_normal((count, 3 * HIDDEN)).astype(np.float32)
        save_file({"states": rows}, folder / f"fc_{len(fed)}_rank0.safetensors")
        fed.append(rows)
        return {"meta_info": {"cached_tokens": 0}}

    with engine(reply) as url:
        found = hook_capture(Evidence(request_for(tmp_path, url)), 2, str(folder))
    assert (found.kind, found.slots, len(found.samples)) == ("engine", 3, 2)
    for sample, rows in zip(found.samples, fed):
        assert list(sample.positions) == list(range(len(rows)))
        for slot in range(3):
            assert np.array_equal(sample.slot(slot, 0, len(rows)), rows[:, slot * HIDDEN : (slot + 1) * HIDDEN])
    assert (folder / WANTED).read_text() == "0"


def ranks(folder: Path, size: int, fused: Callable[[int, int], bool]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What the hooks of `size` ranks write for states that are functions of the token and its place.

    Where `fused` says so of a rank and a number of tokens, the rank shows its own part of the sum.
    """
    written = [0] * size

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        ids = np.asarray(body["input_ids"])
        wanted = (folder / WANTED).read_text().split()
        assert int(wanted[0]) == len(ids)
        places = np.arange(len(ids))[:, None] + ids[:, None] * 31 + 1
        whole = np.sin(places * np.arange(1, 3 * HIDDEN + 1)).astype(np.float32)
        for rank in range(size if "ranks" in wanted else 1):
            part = np.cos(places * np.arange(2, 3 * HIDDEN + 2)) / 4 * (1 - 2 * rank) if fused(rank, len(ids)) else 0
            save_file({"states": (whole + part).astype("<f4")}, folder / f"fc_{written[rank]}_rank{rank}.safetensors")
            written[rank] += 1
        return {"meta_info": {"cached_tokens": 0}}

    return reply


@pytest.mark.parametrize(
    ("fused", "apart"),
    [
        (lambda rank, count: False, []),
        (lambda rank, count: count <= 2048, ["rank 1", "2304 tokens at once"]),
        (lambda rank, count: rank == 1, ["rank 1"]),
    ],
    ids=["sound", "fused", "one rank"],
)
def test_ranks_are_held_against_each_other_and_a_long_text(
    tmp_path: Path, fused: Callable[[int, int], bool], apart: list[str]
) -> None:
    folder = tmp_path / "hook"
    folder.mkdir()
    with engine(ranks(folder, 2, fused), tp_size=2, chunked_prefill_size=8192) as url:
        asked = request_for(tmp_path, url)
        told = answer(asked.as_json() | {"task": "capture", "how": "hook", "hook_dir": str(folder)}, lambda _: None)
    (found,) = told["captures"]
    capture = open_capture(Path(found["path"]))
    assert (capture.ranks, [item.how for item in capture.again]) == (2, ["rank 1", "2304 tokens at once"])
    assert capture.again[1].sample.states.shape == (2304, 3, HIDDEN)
    assert [item.how for item in differences(capture) if item.apart] == apart
    assert ("do not feed it the same" in found["proves"]) == bool(apart)
    given = replace(asked, server=ServerRequest(), captures=(found["path"],))
    verdicts = [item.verdict for item in states(Evidence(given)) if "ranks" in item.summary]
    assert verdicts == [Verdict.FAIL] * bool(apart)


def test_a_rank_elsewhere_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_hook, "WRITTEN_S", 0.0)
    (tmp_path / "hook").mkdir()
    alone = ranks(tmp_path / "hook", 1, lambda rank, count: False)
    with engine(alone, tp_size=16, chunked_prefill_size=2048) as url:
        found = hook_capture(Evidence(request_for(tmp_path, url)), 2, str(tmp_path / "hook"))
    assert (found.ranks, found.again) == (16, ())


def test_a_hook_that_writes_nothing_says_what_may_be_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_hook, "WRITTEN_S", 0.0)
    (tmp_path / "hook").mkdir()
    silent = engine(lambda _: {"meta_info": {"cached_tokens": 19}})
    with silent as url, pytest.raises(CaptureFailed, match="19 tokens came from the prefix cache"):
        hook_capture(Evidence(request_for(tmp_path, url)), 2, str(tmp_path / "hook"))


def test_a_draft_that_norms_its_input_is_refused_the_hook(tmp_path: Path) -> None:
    asked = request_for(tmp_path, "http://127.0.0.1:1")
    file = Path(asked.draft) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | {"norm_before_fc": True}))
    with pytest.raises(CaptureFailed, match=r"norm_before_fc.*--how states"):
        hook_capture(Evidence(asked), 2, str(tmp_path))


@pytest.mark.parametrize("how", ["live", "hook", "reference"])
def test_without_a_cache_there_is_no_text_to_take(tmp_path: Path, how: str) -> None:
    asked = request_for(tmp_path, "").as_json() | {"caches": [], "task": "capture", "how": how}
    with pytest.raises(NotRunnable, match="cache"):
        answer(asked, lambda _: None)


@pytest.mark.torch
def test_the_hook_writes_the_rows_asked_for_and_no_others(tmp_path: Path) -> None:
    import torch

    from checks.hooks.fc_input import make

    class Draft(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(6, 2, dtype=torch.bfloat16)

        def forward(self, x: Any) -> Any:
            return self.fc(x)

    draft = Draft()
    draft.fc.register_forward_hook(make({"folder": str(tmp_path)}))
    rows = torch.arange(30, dtype=torch.bfloat16).reshape(5, 6)
    draft(rows)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / WANTED).write_text("5", "ascii")
    draft(rows)
    draft(rows[:4])
    (tmp_path / WANTED).write_text("0", "ascii")
    draft(rows)
    (written,) = tmp_path.glob("*.safetensors")
    assert np.array_equal(load_file(written)["states"], rows.float().numpy())
