"""Measuring a running server, over prompts and over numbers of draft steps, and comparing what was measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from console import benching
from console.bench_commands import _lines
from console.benching import Bench
from console.cli import main
from console.comparing import compare
from console.demo.setup import WIRINGS, wire
from console.embedded import Embedded, embedded_host
from console.errors import NotRun, UsageError
from console.exits import Exit
from console.runs import RunHistory
from console.session import Session


@pytest.fixture(scope="module")
def serving() -> Iterator[Embedded]:
    """An embedded host whose server runs, rightly wired."""
    with embedded_host("right") as running:
        asyncio.run(changed(running, "start"))
        yield running


async def changed(embedded: Embedded, action: str) -> None:
    session = await Session.open(embedded.folder.deployment)
    try:
        await getattr(session, action)("test")
    finally:
        await session.close()


async def state(embedded: Embedded) -> tuple[tuple[str, ...], list[int]]:
    session = await Session.open(embedded.folder.deployment)
    try:
        argv = (await session.status()).argv
        return argv, [run.id for run in await session.runs.list("demo")]
    finally:
        await session.close()


def on_host(embedded: Embedded, *words: str) -> list[str]:
    deployment = embedded.folder.deployment
    return [words[0], str(deployment.path), "-F", str(deployment.ssh_config), *words[1:]]


async def test_a_bench_is_measured_and_kept_with_its_run(serving: Embedded) -> None:
    session = await Session.open(serving.folder.deployment)
    try:
        told: list[tuple[int, int]] = []
        prompts = benching.built_in(session)[:4]
        found = await benching.bench(session, prompts, 24, lambda *at: told.append(at))
        assert told == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
        assert (len(found.accept_lens), found.tokens, found.exact) == (4, 96, True)
        assert all(1 <= value <= 6 for value in found.accept_lens)
        assert min(found.speeds) > 0
        assert found.accept.low <= found.accept.mean <= found.accept.high
        run = await session.runs.current("demo", session.last_status.pid or 0)
        assert run is not None
        assert found.run == run.id
        assert await session.runs.benches(run.id) == [found]
        again = await benching.bench(session, prompts, 24, lambda *_: None)
        assert (again.key, again.accept_lens) == (found.key, found.accept_lens)
    finally:
        await session.close()


def test_bench_prints_means_with_intervals(serving: Embedded, capsys: pytest.CaptureFixture[str]) -> None:
    words = on_host(serving, "bench", "--limit", "3", "--max-new-tokens", "16")
    assert main([*words, "--json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    low, high = found["accept_len_95"]
    assert low <= found["accept_len"] <= high
    assert found["prompts"] == len(found["per_prompt"]["accept_len"]) == 3
    assert main(words) == Exit.OK
    assert "accept length" in capsys.readouterr().out


def test_a_sweep_measures_each_value_and_puts_the_server_back(
    serving: Embedded, capsys: pytest.CaptureFixture[str]
) -> None:
    before, _ = asyncio.run(state(serving))
    words = on_host(serving, "sweep", "--steps", "1,3,17", "--limit", "3", "--max-new-tokens", "16")
    assert main([*words, "--dry-run"]) == Exit.OK
    planned = capsys.readouterr().out
    assert "--speculative-num-steps 3 --speculative-num-draft-tokens 4" in planned
    assert main(words) == Exit.FINDINGS, "nobody agreed"
    capsys.readouterr()
    assert main([*words, "--yes", "--json"]) == Exit.OK
    swept = json.loads(capsys.readouterr().out)["swept"]
    assert [item["steps"] for item in swept] == [1, 3, 17]
    one, three, beyond = swept
    assert max(one["bench"]["per_prompt"]["accept_len"]) <= 2
    assert one["bench"]["accept_len"] < three["bench"]["accept_len"] <= 4
    assert beyond["bench"] is None
    assert "0 to 16 steps" in beyond["problem"]
    assert one["bench"]["prompts_sha256"] == three["bench"]["prompts_sha256"]
    after, _ = asyncio.run(state(serving))
    assert after == before


async def test_two_runs_are_set_side_by_side(serving: Embedded) -> None:
    wire(serving.folder.draft_config, WIRINGS["embedding"])
    session = await Session.open(serving.folder.deployment)
    try:
        prompts = benching.built_in(session)[:6]
        wrong = await session.restart("wrong")
        await benching.bench(session, prompts, 32, lambda *_: None)
        wire(serving.folder.draft_config, WIRINGS["right"])
        right = await session.restart("right", overrides={"decode-log-interval": 9})
        await benching.bench(session, prompts, 32, lambda *_: None)
        found = await compare(session.runs, wrong, right)
    finally:
        await session.close()
    assert found.accept is not None
    assert found.accept.low > 0
    changes = {(item.kind, item.name): (item.before, item.after) for item in found.changes}
    ids = "/eagle_config/eagle_aux_hidden_state_layer_ids"
    assert changes == {("flag", "decode-log-interval"): ("10", "9"), ("config", ids): ([-1, 2, 6], [2, 6, 9])}
    assert any("paired difference over 6 prompts" in line for line in found.lines())
    assert found.as_json()["paired"]["accept_len"]["prompts"] == 6


async def test_benches_of_other_prompts_are_not_paired(tmp_path: Path) -> None:
    history = RunHistory(tmp_path / "h.sqlite3")
    runs = [await history.begin("box", "gpu", "x", ["py", "--a", "1"], {}) for _ in range(2)]
    await history.keep_bench(runs[0].id, Bench("one", (2.0, 3.0), (10.0, 11.0), 8, 1.0))
    await history.keep_bench(runs[1].id, Bench("two", (2.0, 3.0), (10.0, 11.0), 8, 1.0))
    found = await compare(history, *runs)
    assert found.benches is None
    assert found.changes == ()
    assert any("no benches of the same prompts" in line for line in found.lines())
    await history.keep_bench(runs[1].id, Bench("one", (3.0, 4.0), (10.0, 11.0), 8, 1.0))
    found = await compare(history, *runs)
    assert found.accept is not None
    assert found.accept.mean == 1.0
    await history.close()


def test_runs_are_compared_by_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    from console.paths import history_file

    async def two() -> list[int]:
        history = RunHistory(history_file())
        made = [(await history.begin("box", "gpu", "x", ["py", "--a", word], {})).id for word in ("1", "2")]
        await history.close()
        return made

    first, second = asyncio.run(two())
    assert main(["runs", "compare", str(first), str(second)]) == Exit.OK
    assert "flag a: 1 → 2" in capsys.readouterr().out
    assert main(["runs", "compare", str(first), str(second), "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["changes"] == [
        {"kind": "flag", "name": "a", "before": "1", "after": "2"}
    ]
    assert main(["runs", "compare", str(first), "999999"]) == Exit.FINDINGS
    assert main(["runs", "compare", "x", "1"]) == Exit.USAGE


@pytest.mark.parametrize(
    "text",
    ['["one", "two"]', '[{"prompt": "one"}, {"text": "two"}]', '{"prompt": "one"}\n"two"\n', "one\n\ntwo\n"],
)
def test_prompts_are_read_in_every_form(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prompts"
    file.write_text(text, "utf-8")
    assert benching.read_prompts(str(file)) == ["one", "two"]


def test_prompts_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('[{"question": "one"}]', "utf-8")
    with pytest.raises(UsageError, match="JSON lines"):
        benching.read_prompts(str(tmp_path / "a"))
    with pytest.raises(NotRun, match="gone"):
        benching.read_prompts(str(tmp_path / "gone"))


@pytest.mark.parametrize("text", ["", "0", "a", "1,x", "99", "²"])
def test_steps_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--steps"):
        benching.read_steps(text)


def test_in_a_tree_the_number_of_draft_tokens_stays() -> None:
    assert benching.changes_for(3, {"speculative-eagle-topk": "4"}) == {"speculative-num-steps": 3}
    assert benching.changes_for(3, {})["speculative-num-draft-tokens"] == 4


def test_an_older_engine_is_measured_by_its_counts() -> None:
    assert benching._accepted({"spec_accept_histogram": [1, 1]}) == (1.5, True)
    assert benching._accepted({"spec_verify_ct": 4, "completion_tokens": 10}) == (2.5, False)
    assert benching._accepted({"completion_tokens": 10}) == (None, True)


# One answer as SGLang 0.5.6 gave it: three numbers that differ, and none of them is wrong.
META = {
    "spec_accept_rate": 0.0117,
    "spec_accept_length": 1.0638,
    "spec_verify_ct": 188,
    "spec_accept_token_num": 11,
    "spec_draft_token_num": 940,
    "completion_tokens": 200,
}


def test_a_length_comes_with_its_formula_and_counts_accepted_drafts_where_they_are_told() -> None:
    value, exact = benching._accepted(META)
    assert (round(value or 0, 4), exact) == (1.0585, True)
    newer = {name: value for name, value in META.items() if name != "spec_accept_token_num"}
    assert benching._accepted({**newer, "spec_num_correct_drafts": 11}) == (value, True)
    value, exact = benching._accepted(newer)
    assert (round(value or 0, 4), exact) == (META["spec_accept_length"], False)
    for exact, formula in ((True, "1 + accepted drafts / verify steps"), (False, "generated tokens / verify steps")):
        bench = Bench("key", (1.06, 1.05), (10.0, 11.0), 8, 1.0, exact)
        assert bench.as_json()["accept_len_formula"] == formula
        assert formula in _lines(bench)[1]
        assert "bonus token" in _lines(bench)[1]
