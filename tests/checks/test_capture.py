"""Captures: the folder they are kept in, the embedded engine asked for real, and servers that will not give."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checks import capture as capture_module
from checks.caches import open_cache
from checks.capture import Capture, Taken, live_captures, open_capture, write_capture
from checks.draft import open_draft
from checks.errors import BadTensors, CaptureFailed, Unreadable
from checks.evidence import Evidence
from checks.request import CacheRequest, Request, ServerRequest
from tests.console.engine_process import EngineProcess, running_engine, speculative_flags
from tests.console.random_pair import HIDDEN, LAYERS, VOCAB, write_draft_config, write_random_pair

IDS = (2, 6, 9)
READY = "The server is fired up and ready to roll!"


def taken(tokens: int = 9, rows: int = 5, slots: int = 3, hidden: int = 4, seed: int = 0) -> Taken:
    rng = np.random.default_rng(seed)
    return Taken(
        rng.integers(0, 50, tokens),
        np.arange(tokens - rows, tokens),
        rng.standard_normal((rows, slots, hidden)).astype(np.float32),
    )


def write_cache(folder: Path, samples: int = 4, tokens: int = 40) -> Path:
    """A cache of random texts in the layout of speculators 0.5; what its states are does not matter here."""
    rng = np.random.default_rng(7)
    folder.mkdir(parents=True)
    for index in range(samples):
        tensors = {
            "token_ids": rng.integers(0, VOCAB, tokens + index).astype(np.int64),
            "hidden_states": rng.standard_normal((tokens + index, 4, HIDDEN)).astype(np.float32),
        }
        save_file(tensors, folder / f"hs_{index}.safetensors")
    return folder


def evidence(
    tmp_path: Path,
    url: str,
    seen: Callable[..., None] | None = None,
    pair: tuple[Path, Path] | None = None,
    **request: Any,
) -> Evidence:
    target, draft = pair or write_random_pair(tmp_path / "pair", IDS)
    cache = tmp_path / "cache" if (tmp_path / "cache").is_dir() else write_cache(tmp_path / "cache")
    server = replace(ServerRequest(url=url), **request.pop("server", {}))
    asked = Request(draft=str(draft), target=str(target), caches=(CacheRequest(str(cache)),), server=server, **request)
    return Evidence(asked, seen)


# -- the folder ----------------------------------------------------------------------------------------------------


def test_a_capture_comes_back_as_it_was_written(tmp_path: Path) -> None:
    given = [taken(seed=1), taken(12, 12, seed=2)]
    manifest = {"kind": "engine", "engine": "sglang", "version": "0.5.12", "ids": [2, 6, 9], "states": [3, 7, 10]}
    written = write_capture(tmp_path / "new" / "capture", manifest, given)
    for found in (written, open_capture(tmp_path / "new" / "capture")):
        assert (found.kind, found.ids, found.claimed_states, found.slots) == ("engine", (2, 6, 9), (3, 7, 10), 3)
        for sample, item in zip(found.samples, given):
            assert np.array_equal(sample.token_ids, item.token_ids)
            assert np.array_equal(sample.positions, item.positions)
            for slot in range(3):
                assert np.array_equal(sample.slot(slot, 1, 4), item.states[1:4, slot])
    assert [item.name for item in (tmp_path / "new").iterdir()] == ["capture"]


def test_the_files_are_safetensors_to_others_too(tmp_path: Path) -> None:
    item = taken()
    write_capture(tmp_path / "c", {"kind": "engine"}, [item])
    read = load_file(tmp_path / "c" / "sample_0.safetensors")
    assert {name: str(value.dtype) for name, value in read.items()} == {
        "token_ids": "int64",
        "positions": "int64",
        "hidden_states": "float32",
    }
    assert np.array_equal(read["hidden_states"], item.states)


def test_samples_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    given = [taken(seed=seed) for seed in range(11)]
    found = write_capture(tmp_path / "c", {"kind": "engine"}, given)
    assert np.array_equal(found.samples[10].token_ids, given[10].token_ids)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def texts() -> Iterator[Taken]:
        yield taken()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_capture(tmp_path / "c", {"kind": "engine"}, texts())
    assert list(tmp_path.iterdir()) == []


def damaged_manifest(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "schema 1"),
        ('{"schema": 2, "kind": "engine"}', "schema 1"),
        ('{"schema": 1, "kind": "other"}', "kind 'other'"),
    ],
)
def test_a_bad_manifest_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    write_capture(tmp_path / "c", {"kind": "engine"}, [taken()])
    damaged_manifest(tmp_path / "c", text)
    with pytest.raises(Unreadable, match=words):
        open_capture(tmp_path / "c")


def test_a_folder_above_captures_names_them(tmp_path: Path) -> None:
    write_capture(tmp_path / "engine", {"kind": "engine"}, [taken()])
    with pytest.raises(Unreadable, match="engine below it"):
        open_capture(tmp_path)


def test_samples_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="different shape"):
        write_capture(tmp_path / "c", {"kind": "engine"}, [taken(), taken(slots=2)])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"positions": np.array([4, 3, 2, 1, 0])}, "do not ascend"),
        ({"positions": np.array([5, 6, 7, 8, 9])}, "within its 9 tokens"),
        ({"positions": np.array([1, 2])}, "do not go with 2 positions"),
        ({"token_ids": np.zeros(9, dtype=np.float32)}, "not a list of integers"),
    ],
)
def test_damaged_samples_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    folder = write_capture(tmp_path / "c", {"kind": "engine"}, [taken()]).path
    tensors = {**load_file(folder / "sample_0.safetensors"), **change}
    save_file(tensors, folder / "sample_0.safetensors")
    with pytest.raises(BadTensors, match=words):
        sample = open_capture(folder).samples[0]
        assert sample.token_ids is not None
        assert sample.positions is not None


def test_a_truncated_sample_is_refused(tmp_path: Path) -> None:
    file = write_capture(tmp_path / "c", {"kind": "engine"}, [taken()]).path / "sample_0.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(BadTensors):
        open_capture(tmp_path / "c")


# -- the embedded engine, asked for real ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_random_pair(tmp_path_factory.mktemp("pair"), IDS)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> Iterator[EngineProcess]:
    target, draft = pair
    flags = [*speculative_flags(draft), "--enable-return-hidden-states", "--api-key", "s3cret"]
    with running_engine(tmp_path_factory.mktemp("engine"), target, *flags) as running:
        running.wait_for(READY)
        yield running


def by_kind(captures: tuple[Capture, ...]) -> dict[str, Capture]:
    return {item.kind: item for item in captures}


def test_the_engine_gives_what_it_feeds_and_every_state(
    tmp_path: Path, engine: EngineProcess, pair: tuple[Path, Path]
) -> None:
    notes: list[str] = []
    given = evidence(
        tmp_path,
        engine.url,
        lambda check, done, total, note: notes.append(note),
        pair,
        server={"api_key": "s3cret"},
        capture_dir=str(tmp_path / "out"),
    )
    captures = by_kind(live_captures(given))
    fed, every = captures["engine"], captures["all-states"]
    assert fed.path.parent == tmp_path / "out"
    assert (fed.slots, every.slots) == (3, LAYERS + 1)
    assert fed.ids == IDS
    assert every.claimed_states == tuple(range(LAYERS + 1))
    texts = [item.token_ids for item in open_cache(tmp_path / "cache").samples(0, 0)]
    for sample, whole in zip(fed.samples, every.samples):
        assert any(np.array_equal(sample.token_ids, text[: len(sample.token_ids)]) for text in texts)
        assert np.array_equal(sample.positions, np.arange(len(sample.token_ids)))
        for slot, k in enumerate((3, 7, 10)):
            wired, state = sample.slot(slot, 0, 99), whole.slot(k, 0, 99)
            assert np.allclose(wired, state, rtol=1e-5, atol=1e-5)
            assert not np.allclose(wired, whole.slot(k - 1, 0, 99), rtol=1e-2, atol=1e-2)
    assert any("feeds" in note for note in notes)
    assert "s3cret" not in (fed.path / "manifest.json").read_text()


def test_the_evidence_takes_captures_by_itself(tmp_path: Path, engine: EngineProcess, pair: tuple[Path, Path]) -> None:
    given = evidence(tmp_path, engine.url, None, pair, server={"api_key": "s3cret"})
    assert {item.kind for item in given.captures} == {"engine", "all-states"}


def test_only_the_latest_captures_are_kept(
    tmp_path: Path, engine: EngineProcess, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    base = tmp_path / "xdg" / "eagle-console" / "captures"
    other = base / "kept by someone"
    other.mkdir(parents=True)
    for _ in range(capture_module.KEPT):
        live_captures(evidence(tmp_path, engine.url, None, pair, server={"api_key": "s3cret"}))
    assert len(list(base.glob("*/manifest.json"))) <= capture_module.KEPT
    assert other.is_dir()


def test_without_the_key_the_way_out_is_named(tmp_path: Path, engine: EngineProcess, pair: tuple[Path, Path]) -> None:
    with pytest.raises(CaptureFailed, match="API key"):
        live_captures(evidence(tmp_path, engine.url, None, pair))


def test_a_config_written_after_the_start_is_not_what_is_served(tmp_path: Path) -> None:
    target, draft = write_random_pair(tmp_path / "own", IDS)
    with running_engine(tmp_path, target, *speculative_flags(draft), "--enable-return-hidden-states") as engine:
        engine.wait_for(READY)
        write_draft_config(draft, (1, 2, 3))
        later = time.time() + 60
        os.utime(draft / "config.json", (later, later))
        captures = live_captures(evidence(tmp_path, engine.url, None, (target, draft)))
    assert [item.kind for item in captures] == ["all-states"]


def test_a_server_without_the_flag_says_so_and_still_gives_what_it_can(tmp_path: Path) -> None:
    target, draft = write_random_pair(tmp_path / "own", IDS)
    with running_engine(tmp_path, target, *speculative_flags(draft)) as engine:
        engine.wait_for(READY)
        given = evidence(tmp_path, engine.url, None, (target, draft))
        assert [item.kind for item in live_captures(given)] == ["all-states"]


# -- servers of other manners --------------------------------------------------------------------------------------


@contextmanager
def server(answers: Callable[[str, dict[str, Any]], tuple[int, bytes]]) -> Iterator[str]:
    """An HTTP server on loopback that answers (path, JSON body) with (status, bytes)."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({})

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body: dict[str, Any]) -> None:
            status, content = answers(self.path, body)
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            return

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def info(**fields: Any) -> bytes:
    return json.dumps({"version": "0.5.23", "speculative_algorithm": "EAGLE3", **fields}).encode()


def rows(count: int, width: int = 3 * HIDDEN) -> list[list[float]]:
    return np.arange(count * width, dtype=np.float64).reshape(count, width).tolist()


def sglang(cached: int, by_key: bool = True) -> Callable[[str, dict[str, Any]], tuple[int, bytes]]:
    """A server that has the first `cached` tokens of every text in its prefix cache, but not under a key of its own."""

    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if path != "/generate":
            return 200, info()
        held = 0 if by_key and "extra_key" in body else cached
        meta = {"cached_tokens": held, "hidden_states": [rows(len(body["input_ids"]) - held), rows(1)[0]]}
        return 200, json.dumps({"text": "", "meta_info": meta}).encode()

    return answer


def test_a_server_that_repeats_the_key_does_not_bring_it_into_a_message(tmp_path: Path) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        return (500, b"cannot do this for Bearer s3cret-5") if path == "/generate" else (200, info())

    with server(answer) as url, pytest.raises(CaptureFailed, match="cannot do this for Bearer the key"):
        live_captures(evidence(tmp_path, url, server={"api_key": "s3cret-5"}))


def test_a_cached_prefix_leaves_a_gap_in_the_positions(tmp_path: Path) -> None:
    with server(sglang(cached=7)) as url:
        (found,) = live_captures(evidence(tmp_path, url))
    for sample in found.samples:
        assert np.array_equal(sample.positions, np.arange(7, len(sample.token_ids)))
        assert sample.slot(1, 0, 1)[0, 0] == HIDDEN
    assert (found.engine, found.version) == ("sglang", "0.5.23")


def test_a_text_the_cache_holds_almost_whole_is_asked_for_under_a_key_of_its_own(tmp_path: Path) -> None:
    with server(sglang(cached=38)) as url:
        (found,) = live_captures(evidence(tmp_path, url))
    assert all(len(sample.positions) == len(sample.token_ids) for sample in found.samples)


def test_a_cache_that_cannot_be_got_around_gives_the_rows_there_are(tmp_path: Path) -> None:
    with server(sglang(cached=38, by_key=False)) as url:
        (found,) = live_captures(evidence(tmp_path, url))
    assert all(len(sample.positions) == len(sample.token_ids) - 38 for sample in found.samples)


@pytest.mark.parametrize("again", [[{"of": 7, "how": "rank 1"}], [{"of": 0}], ["x"], [{"of": True, "how": "rank 1"}]])
def test_a_manifest_that_names_what_is_not_there_is_refused(tmp_path: Path, again: list[Any]) -> None:
    folder = write_capture(tmp_path / "c", {"kind": "engine"}, [taken()]).path
    (folder / "manifest.json").write_text(json.dumps({"schema": 1, "kind": "engine", "again": again}))
    with pytest.raises(Unreadable, match="of `again`"):
        open_capture(folder)


def test_the_old_name_of_server_info_is_known(tmp_path: Path) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        return (404, b"") if path == "/server_info" else sglang(0)(path, body)

    with server(answer) as url:
        assert live_captures(evidence(tmp_path, url))


def generating(status: int, content: Any, **told: Any) -> Callable[[str, dict[str, Any]], tuple[int, bytes]]:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda path, body: (status, raw) if path == "/generate" else (200, info(**told))


REFUSED = {
    "error": {"message": "Please set --return-hidden-states-mode or the legacy --enable-return-hidden-states flag."}
}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (generating(400, REFUSED), "--enable-return-hidden-states, and a restart"),
        (generating(500, b"\x1b[31mboom"), "answered 500:  ?.31mboom"),
        (generating(302, b""), "answered 302"),
        (generating(200, b"<html>"), "did not answer with JSON"),
        (generating(200, b"[1, 2]"), "JSON object"),
        (generating(200, b"[" * 100_000), "did not answer with JSON"),
        (generating(200, {"text": "x", "meta_info": {}}), "without hidden states"),
        (generating(200, {"meta_info": {"hidden_states": [[["a"]]]}}), "rows of numbers"),
        (generating(200, {"meta_info": {"hidden_states": [[[1.0], [1.0, 2.0]]]}}), "rows of numbers"),
        (generating(200, {"meta_info": {"hidden_states": [rows(3, HIDDEN + 1)]}}), "no multiple"),
        (generating(200, {"meta_info": {"hidden_states": [rows(200)], "cached_tokens": 0}}), "200 rows came"),
        (generating(200, {"meta_info": {"hidden_states": [rows(3)], "cached_tokens": 1}}), "is the server busy"),
        (generating(200, {}, speculative_algorithm=None), "without speculation"),
        (lambda path, body: (503, b""), "answered 503"),
        (lambda path, body: (200, b"hello"), "is it the engine"),
    ],
)
def test_a_server_that_does_not_give_is_told_in_its_own_words(tmp_path: Path, answer: Any, words: str) -> None:
    with server(answer) as url, pytest.raises(CaptureFailed, match=words):
        live_captures(evidence(tmp_path, url))


def test_an_answer_without_end_is_not_read_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "MAX_ANSWER", 100_000)
    with server(generating(200, b" " * 200_000)) as url, pytest.raises(CaptureFailed, match="larger than"):
        live_captures(evidence(tmp_path, url))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "float64"}, "float32"),
        ({"data": "%%%"}, "base64"),
        ({"shape": [1, 2]}, "bytes of shape"),
        ({"shape": [1, 2, 3]}, "bytes of shape"),
    ],
)
def test_all_states_that_do_not_add_up_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if path == "/server_info":
            return 200, info(engine=capture_module.STATES_ENGINE)
        if path == "/generate":
            return 400, json.dumps(REFUSED).encode()
        states = np.zeros((len(body["input_ids"]), LAYERS + 1, HIDDEN), dtype="<f4")
        whole = {"shape": list(states.shape), "dtype": "float32", "data": base64.b64encode(states.tobytes()).decode()}
        return 200, json.dumps({**whole, **change}).encode()

    with server(answer) as url, pytest.raises(CaptureFailed, match=words):
        live_captures(evidence(tmp_path, url))


def test_nobody_at_the_port_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(CaptureFailed, match="is the server up"):
        live_captures(evidence(tmp_path, "http://127.0.0.1:9"))


@pytest.mark.parametrize("url", ["http://10.0.0.7:30000", "http://example.org", "http://127.0.0.1.example.org:1"])
def test_texts_are_sent_to_this_machine_only(tmp_path: Path, url: str) -> None:
    with pytest.raises(CaptureFailed, match="loopback"):
        live_captures(evidence(tmp_path, url))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://", "http://[", "http://127.0.0.1:port"])
def test_a_url_that_is_none_is_a_reason(tmp_path: Path, url: str) -> None:
    with pytest.raises(CaptureFailed, match="not the URL"):
        live_captures(evidence(tmp_path, url))


def test_without_a_server_or_a_cache_there_is_nothing_to_capture(tmp_path: Path) -> None:
    assert live_captures(evidence(tmp_path, "")) == ()
    assert live_captures(Evidence(Request(server=ServerRequest(url="http://127.0.0.1:9")))) == ()


def test_long_texts_are_cut_to_what_the_answers_may_weigh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "BUDGET", 1)
    with server(sglang(cached=0)) as url:
        (found,) = live_captures(evidence(tmp_path, url))
    assert {len(sample.token_ids) for sample in found.samples} == {capture_module.MIN_TOKENS}


@pytest.mark.parametrize(("tokens", "longest"), [(20, 20), (41, 41), (5000, 43)])
def test_texts_are_as_long_as_is_asked_for(tmp_path: Path, tokens: int, longest: int) -> None:
    with server(sglang(cached=0)) as url:
        (found,) = live_captures(evidence(tmp_path, url), tokens=tokens)
    assert max(len(sample.token_ids) for sample in found.samples) == longest


def test_a_draft_without_a_config_is_no_obstacle(tmp_path: Path) -> None:
    target, draft = write_random_pair(tmp_path / "own", IDS)
    (draft / "config.json").write_text("{")
    with server(sglang(cached=0)) as url:
        (found,) = live_captures(evidence(tmp_path, url, None, (target, draft)))
    assert found.ids is None
    assert open_draft(draft).config_error
