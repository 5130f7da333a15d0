"""Acceptance by position, live: from the log where the engine prints it, from /metrics, or from requests of our own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.engines.vllm.metrics import Positions, positions
from console import feeds
from console.embedded import Embedded
from console.following import LineParser
from console.screens.dialogs import Question
from console.serving import LOG, Serving
from console.session import Session
from tests.console.driving import driven, serving_host

LINE = (
    "INFO 08-04 20:51:08 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: {length}, Accepted throughput: "
    "10.00 tokens/s, Drafted throughput: 15.00 tokens/s, Accepted: 100 tokens, Drafted: 150 tokens, "
    "Per-position acceptance rate: {rates}, Avg Draft acceptance rate: 66.7%\n"
)
METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a, position=\\"7\\" }"} DRAFTS
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} FIRST
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} SECOND
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="m",position="0"} 1.7e+09
vllm:num_requests_running{engine="0"} 1.0
"""


def metrics(drafts: str, first: str, second: str) -> str:
    return METRICS.replace("DRAFTS", drafts).replace("FIRST", first).replace("SECOND", second)


# -- /metrics ----------------------------------------------------------------------------------------------------


def test_the_counts_of_each_position_are_read() -> None:
    found = positions(metrics("100.0", "72.0", "4.7e+01"))
    assert found == Positions(100.0, (72.0, 47.0))
    assert found.rates == (0.72, 0.47)


def test_several_engines_are_summed() -> None:
    other = metrics("50.0", "28.0", "3.0").replace('engine="0"', 'engine="1"')
    found = positions(metrics("100.0", "72.0", "47.0") + other)
    assert found == Positions(150.0, (100.0, 50.0))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vllm:num_requests_running 1.0",
        metrics("0.0", "0.0", "0.0"),
        metrics("NaN", "1.0", "1.0"),
        metrics("10.0", "1.0", "1.0").replace('position="0"', 'position="3"'),
        "<html>vllm:spec_decode_num_drafts_total</html>",
    ],
)
def test_nothing_is_made_up_where_there_is_nothing(text: str) -> None:
    assert positions(text) is None


def test_a_server_that_was_started_again_is_no_difference() -> None:
    earlier = Positions(100.0, (72.0, 47.0))
    assert Positions(150.0, (100.0, 50.0)).since(earlier) == Positions(50.0, (28.0, 3.0))
    assert earlier.since(earlier) is None
    assert Positions(20.0, (10.0, 5.0)).since(earlier) is None
    assert Positions(150.0, (10.0, 50.0)).since(earlier) is None
    assert Positions(150.0, (100.0, 50.0, 1.0)).since(earlier) is None


@given(st.text(alphabet='vllm:spec_decode_num_drafts_total{}",=0123456789.eE+-\\ \n', max_size=200))
def test_no_text_makes_it_raise(text: str) -> None:
    positions(text)
    positions(f"vllm:spec_decode_num_{text}")


# -- what is shown -----------------------------------------------------------------------------------------------


def test_the_log_says_it_for_each_line() -> None:
    serving, parser = Serving(), LineParser("vllm")
    serving.feed(parser.feed(LINE.format(length="2.00", rates="0.700, 0.300").encode()))
    assert (serving.by_position, serving.by_position_from) == ((0.7, 0.3), LOG)
    serving.feed(parser.feed(LINE.format(length="1.50", rates="0.400, 0.100").encode()))
    assert serving.by_position == (0.4, 0.1)
    serving.restarted()
    assert (serving.by_position, serving.by_position_from) == (None, "")


def test_sglangs_log_does_not() -> None:
    serving, parser = Serving(), LineParser("sglang")
    serving.feed(parser.feed(b"[2026-03-01 10:00:01] Decode batch. #running-req: 1, #token: 10, accept len: 2.10\n"))
    assert serving.accept_len == 2.1 and serving.by_position is None


def test_requests_of_our_own_are_summed_and_say_how_many_steps() -> None:
    serving = Serving()
    serving.add_histogram([])
    assert serving.by_position is None
    serving.add_histogram([2, 1])
    serving.add_histogram([0, 0, 1])
    assert serving.by_position is not None
    assert all(math.isclose(a, b) for a, b in zip(serving.by_position, (0.5, 0.25)))
    assert serving.by_position_from == "own requests, 4 steps"


# -- on a host ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with serving_host("right") as running:
        yield running


@asynccontextmanager
async def answering(*answers: str) -> AsyncIterator[tuple[int, list[str]]]:
    """An HTTP server on loopback that gives these texts one after the other; the last one over and over."""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split()[1].decode())
        body = answers[min(len(asked), len(answers)) - 1].encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked


async def test_metrics_are_looked_at_while_the_log_does_not_say_it(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "METRICS_PERIOD", 1.0)
    texts = (metrics("100.0", "72.0", "47.0"), metrics("150.0", "100.0", "50.0"), metrics("9.0", "3.0", "0.0"))
    made = embedded.folder.deployment
    async with answering(*texts) as (port, asked):
        server = replace(made.server, engine="vllm", url=f"http://127.0.0.1:{port}")
        session = await Session.open(replace(made, server=server))
        session.server.last = replace(session.server.last, phase="serving", healthy=True)
        told: list[tuple[Any, str]] = []
        task = asyncio.create_task(
            feeds.watch_positions(
                session, lambda _: told.append((session.serving.by_position, session.serving.by_position_from))
            )
        )
        try:
            async with asyncio.timeout(60):
                while len(told) < 3:
                    await asyncio.sleep(0.02)
        finally:
            task.cancel()
            await session.close()
    assert told[:3] == [
        ((0.72, 0.47), "/metrics: 100 drafts since start"),
        ((0.56, 0.06), "/metrics: 50 drafts just now"),
        ((3 / 9, 0.0), "/metrics: 9 drafts since start"),
    ]
    assert set(asked) == {"/metrics"}


async def test_an_engine_that_does_not_count_it_is_not_asked(embedded: Embedded) -> None:
    session = await Session.open(embedded.folder.deployment)
    await feeds.watch_positions(session, lambda _: None)
    assert session.serving.by_position is None
    await session.close()


async def test_where_nothing_says_it_the_key_that_measures_it_is_named_and_does(embedded: Embedded) -> None:
    embedded.begin_traffic()
    async with driven(embedded.folder.deployment) as driver:
        await driver.until_shown("by position not printed: m measures")
        await driver.until(lambda: driver.session.last_status.healthy, "a server that answers")
        await driver.press("m")
        await driver.asked("Measure acceptance by position?")
        await driver.press("n")
        await driver.until(lambda: not isinstance(driver.app.screen, Question))
        assert driver.session.serving.by_position is None
        await driver.press("m")
        await driver.asked("Measure acceptance by position?")
        await driver.press("y")
        await driver.until_shown("own requests, ", "by position .")
        found = driver.session.serving.by_position
        assert found is not None and len(found) == 5
        assert list(found) == sorted(found, reverse=True)
