"""Ctrl-C while the server is changed: what it is now is said, with what to do next, and its run does not stay open."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from console.cli import main
from console.embedded import Embedded, embedded_host
from console.exits import Exit
from console.session import Session


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with embedded_host("right") as running:
        yield running


@pytest.fixture
async def session(embedded: Embedded) -> AsyncIterator[Session]:
    opened = await Session.open(embedded.folder.deployment)
    yield opened
    if (await opened.status()).up:
        await opened.stop("end of test")
    await opened.close()


async def interrupted(session: Session, command: str, at: str) -> str:
    """What is said after `command` was cancelled as it told the step `at`."""
    before = (await session.status()).pid

    def step(name: str, _: str) -> None:
        if name == at:
            task.cancel()

    task = asyncio.create_task(getattr(session, command)("test", step))
    with pytest.raises(asyncio.CancelledError):
        await task
    return await session.aftermath(command, before)


async def test_after_its_stop_a_restart_says_that_the_server_is_down(session: Session) -> None:
    await session.start("first")
    said = await interrupted(session, "restart", "stopped")
    assert said == "the server was stopped and not started again; start it: console start demo"
    assert not (await session.status()).up
    assert (await session.runs.list("demo"))[0].state == "stopped"


async def test_before_its_stop_a_restart_has_changed_nothing(session: Session) -> None:
    await session.start("first")
    pid = session.last_status.pid
    said = await interrupted(session, "restart", "lock")
    assert said.startswith(f"nothing was changed: process {pid} runs on")


@pytest.mark.parametrize("at", ["start", "loading"])
async def test_a_start_goes_on_without_its_command_and_the_next_look_settles_the_run(session: Session, at: str) -> None:
    said = await interrupted(session, "start", at)
    run = (await session.runs.list("demo"))[0]
    assert f"process {run.pid}" in said
    assert "console status demo" in said
    other = await Session.open(session.deployment)
    for _ in range(400):
        await other.status()
        if (await session.runs.list("demo"))[0].state != "starting":
            break
        await asyncio.sleep(0.1)
    run = (await session.runs.list("demo"))[0]
    assert (run.state, run.ready is not None) == ("ready", True)
    await other.close()


async def test_a_start_that_ended_unwatched_is_settled_too(session: Session) -> None:
    await interrupted(session, "start", "loading")
    pid = session.last_status.pid
    await session.host.run(["kill", "-KILL", str(pid)])
    other = await Session.open(session.deployment)
    for _ in range(100):
        if not (await other.status()).up:
            break
        await asyncio.sleep(0.05)
    run = (await session.runs.list("demo"))[0]
    assert (run.pid, run.state, run.ended is not None) == (pid, "failed", True)
    await other.close()


def test_ctrl_c_in_a_restart_says_what_the_server_is_and_exits_with_130(
    embedded: Embedded, capsys: pytest.CaptureFixture[str]
) -> None:
    where = [str(embedded.folder.deployment.path), "-F", str(embedded.folder.deployment.ssh_config)]
    assert main(["start", *where, "--yes"]) == Exit.OK
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with subprocess.Popen(
        [sys.executable, "-m", "console", "restart", *where, "--yes"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    ) as restart:
        assert restart.stderr is not None
        try:
            for line in restart.stderr:
                if line.startswith("stopped"):
                    break
            restart.send_signal(signal.SIGINT)
            said = restart.stderr.read()
            assert restart.wait(60) == Exit.INTERRUPTED
        finally:
            restart.kill()
    assert "interrupted during restart" in said
    assert "console start demo" in said or "console status demo" in said
    assert said.splitlines()[-1] == "interrupted"
    main(["stop", *where, "--yes"])
    capsys.readouterr()
