"""The app on a server that serves already: nothing is claimed before it is known, and grey keys say why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from console.checking import Found
from console.demo.setup import WIRINGS, wire
from console.embedded import Embedded
from console.launch import Difference, ServerStatus, env_differences
from console.masking import MASK
from console.screens.dialogs import Question
from console.server import Server
from console.session import Session
from console.topics import Topic
from tests.console.driving import driven, serving_host, traffic

THREADS = "CUDA_MODULE_LOADING"
"""A variable that the demo's engine does not mind."""


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with serving_host("embedding") as running:
        wire(running.folder.draft_config, WIRINGS["embedding"])
        yield running


async def test_nothing_is_claimed_of_the_server_before_it_was_looked_at(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, look = asyncio.Event(), Server.look

    async def held(server: Server) -> ServerStatus:
        await looked.wait()
        return await look(server)

    monkeypatch.setattr(Server, "look", held)
    with traffic(embedded.folder.deployment.server.url):
        async with driven(embedded.folder.deployment) as driver:
            await driver.until_shown("accept 2", "looking at the server", "not known yet: looking")
            assert "looking" in driver.text.splitlines()[0]
            assert "stopped" not in driver.text
            assert "R starts it" not in driver.text
            for key in "RS":
                assert not driver.app.screen.active_bindings[key].enabled
                await driver.press(key)
                await driver.until_shown("not yet known whether a server runs")
            assert not isinstance(driver.app.screen, Question)
            looked.set()
            await driver.until(lambda: "serving" in driver.text.splitlines()[0], "the phase in the top line")
            await driver.until(lambda: driver.app.screen.active_bindings["R"].enabled, "R")
            assert "looking at the server" not in driver.text


async def test_the_strip_says_what_is_under_way_until_it_knows(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, check = asyncio.Event(), Session.check

    async def held(session: Session, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        await asked.wait()
        async for step in check(session, *args, **options):
            yield step

    monkeypatch.setattr(Session, "check", held)
    async with driven(embedded.folder.deployment) as driver:
        await driver.until_shown("not known yet: reading config and source…")
        asked.set()
        await driver.until_shown("wiring – WRONG")
        assert "reading config" not in driver.text


async def test_a_fix_asked_for_too_early_is_answered(embedded: Embedded) -> None:
    async with driven(embedded.folder.deployment) as driver:
        await driver.go("3", "ChecksScreen")
        board = driver.app.cockpit.board
        board.begin()
        driver.app.publish(Topic.CHECKS)
        await driver.press("f")
        await driver.until_shown("checks still run; f when they are done")
        finding = {
            "check": "align.a",
            "verdict": "PASS",
            "summary": "a says",
            "evidence": {},
            "help": "",
            "took_s": 0.1,
        }
        board.step(Found(finding))
        board.end("cancelled")
        driver.app.publish(Topic.CHECKS)
        await driver.until_shown("a says")
        for key, why in (("f", "align.a has no fix"), ("x", "no checks run")):
            await driver.press(key)
            await driver.until_shown(why)


async def test_the_restart_question_names_what_changes_of_the_environment(embedded: Embedded) -> None:
    deployment = embedded.folder.deployment
    kept = replace(deployment, server=replace(deployment.server, env={**deployment.server.env, THREADS: "EAGER"}))
    session = await Session.open(kept)
    try:
        await session.restart("with a variable")
    finally:
        await session.close()
    async with driven(deployment) as driver:
        await driver.until(lambda: driver.session.last_status.healthy, "the server")
        await driver.press("R")
        await driver.asked("Restart the server?")
        await driver.until_shown("what changes against the process that runs now", f"{THREADS}  EAGER → absent")
        await driver.press("n")
    async with driven(kept) as driver:
        await driver.until(lambda: driver.session.last_status.healthy, "the server")
        await driver.press("R")
        await driver.asked("Restart the server?")
        await driver.until_shown("the command and its environment do not change")
        await driver.press("n")


async def test_two_runs_stand_side_by_side_unasked(embedded: Embedded) -> None:
    async with driven(embedded.folder.deployment) as driver:
        runs, name = driver.session.runs, driver.session.deployment.name
        one = await runs.begin(name, "host", "the first of two", ("serve",), {})
        two = await runs.begin(name, "host", "the second of two", ("serve",), {})
        await runs.update(one.id, verdict="FAIL")
        await driver.go("5", "RunsScreen")
        await driver.until(lambda: f" run {one.id} run {two.id} " in driver.flow, "both runs")
        assert "why the first of two the second of two" in driver.flow
        assert "verdict FAIL not checked" in driver.flow


def test_only_what_steers_a_server_or_is_set_here_is_compared_and_secrets_are_masked() -> None:
    running = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": "/src", "PWD": "/here", "HF_TOKEN": "hf_x", "HF_HOME": "/hf"}
    account = {"PWD": "/home", "LANG": "C", "HF_HOME": "/hf"}
    assert env_differences(running, account, {"PYTHONPATH": "/src", "OWN": "1"}) == (
        Difference("HF_TOKEN", None, MASK),
        Difference("OPENBLAS_NUM_THREADS", None, "1"),
        Difference("OWN", "1", None),
    )
