"""The checks of the host through a session over SSH: they see what happens to a real server, its port and its draft."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from console import host_look
from console.checking import Report
from console.cli import main
from console.demo.setup import WIRINGS, wire
from console.embedded import Embedded, embedded_host
from console.exits import Exit
from console.session import Session
from console.wiring import OK
from remote import server
from tests.remote.waiting import gone


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with embedded_host("right") as running:
        yield running


@pytest.fixture
async def session(embedded: Embedded) -> AsyncIterator[Session]:
    """An open session, its draft rightly wired; whatever server it leaves is stopped."""
    wire(embedded.folder.draft_config, WIRINGS["right"])
    opened = await Session.open(embedded.folder.deployment)
    yield opened
    if (await opened.status()).up and opened.last_status.phase != "foreign":
        await opened.stop("end of test")
    await opened.close()


async def report_of(session: Session, **options: Any) -> Report:
    async with aclosing(session.check(**options)) as steps:
        (report,) = [step async for step in steps if isinstance(step, Report)]
    return report


async def verdicts(session: Session) -> dict[str, str]:
    report = await report_of(session, only=("ops",))
    return {item["check"].partition(".")[2]: item["verdict"] for item in report.findings}


async def test_a_server_that_runs_and_one_that_is_stopped_are_both_well(session: Session) -> None:
    assert set((await verdicts(session)).values()) == {"PASS"}
    await session.start("test")
    assert set((await verdicts(session)).values()) == {"PASS"}


async def test_a_config_that_is_written_and_not_yet_served_fails_until_the_restart(
    session: Session, embedded: Embedded
) -> None:
    await session.start("test")
    whole = await report_of(session)
    first = (await session.runs.list("demo", 1))[0]
    assert first.verdict == whole.verdict != "FAIL"
    wire(embedded.folder.draft_config, WIRINGS["embedding"])
    report = await report_of(session)
    assert report.verdict == "FAIL"
    found = report.find("ops.stale_draft")
    assert found is not None
    assert found["verdict"] == "FAIL"
    assert found["evidence"]["config_sha256"]["at_start"] == first.config_sha
    assert found["evidence"]["written"]["config.json"] and found["evidence"]["server_ready"]
    again = (await session.runs.list("demo", 1))[0]
    assert again.verdict == first.verdict, "the run is not judged by a config that it does not serve"
    os.utime(embedded.folder.draft_config, (1, 1))
    assert (await verdicts(session))["stale_draft"] == "FAIL", "an old time on new content hides nothing"
    wire(embedded.folder.draft_config, WIRINGS["right"])
    assert (await verdicts(session))["stale_draft"] == "PASS", "the same content, written again"
    wire(embedded.folder.draft_config, WIRINGS["embedding"])
    await session.restart("serve it")
    assert (await verdicts(session))["stale_draft"] == "PASS"


async def test_a_right_config_copied_over_that_of_a_running_server_is_not_called_served(
    session: Session, embedded: Embedded
) -> None:
    wire(embedded.folder.draft_config, WIRINGS["embedding"])
    await session.start("test")
    wire(embedded.folder.draft_config, WIRINGS["right"])
    # As a person would, some time after the start: what is written in its first seconds may still be read.
    later = time.time() + 60
    os.utime(embedded.folder.draft_config, (later, later))
    for only in (("align.engine_pair",), ("align", "ops")):
        report = await report_of(session, only=only)
        for check in ("align.engine_pair", "align.states")[: len(only)]:
            found = report.find(check)
            assert found is not None
            assert found["verdict"] in ("UNKNOWN", "FAIL")
            assert "after a restart" in found["summary"]
        assert session.wiring().state != OK
        assert session.wiring().after == (3, 7, 10)


async def test_a_strangers_process_on_the_port_is_told_and_left_alone(session: Session, embedded: Embedded) -> None:
    with socket.create_server(("127.0.0.1", embedded.folder.deployment.server.port)):
        found = await verdicts(session)
        assert found["port"] == "WARN"
        assert found["identity"] == found["health"] == "PASS"


async def test_watching_costs_no_generation_and_a_check_asks_for_health_once(session: Session) -> None:
    run = await session.start("test")
    log = Path(run.log)

    def asked() -> tuple[int, int]:
        text = log.read_text("utf-8")
        return text.count("GET /health "), text.count("Prefill batch")

    before = asked()
    for _ in range(3):
        assert (await session.status()).healthy
    assert asked() == before
    await verdicts(session)
    assert asked()[0] == before[0] + 1
    assert "/health_generate" not in log.read_text("utf-8")


async def test_the_log_of_a_server_that_died_is_judged(session: Session) -> None:
    await session.start("test")
    pid = session.last_status.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await gone(pid)
    report = await report_of(session, only=("ops.health", "log.failure"))
    health, failure = report.find("ops.health"), report.find("log.failure")
    assert health is not None and failure is not None
    assert (health["verdict"], f"process {pid} ended" in health["summary"]) == ("INFO", True)
    assert report.raw["inputs"]["log"] == session.deployment.server.log
    assert "log" not in failure["evidence"].get("needs", [])


async def test_the_log_of_a_server_that_was_stopped_is_read_and_called_one_that_has_ended(session: Session) -> None:
    await session.start("test")
    running = await report_of(session, only=("log.accept",))
    assert "ended" not in running.findings[0]["evidence"]
    await session.stop("test")
    report = await report_of(session, only=("log",))
    assert report.raw["inputs"]["log"] == session.deployment.server.log
    assert len(report.findings) > 8
    assert all(item["summary"].startswith("of a server that has ended: ") for item in report.findings)
    # A server that another tool started and ended is known by the deployment alone.
    for record in await server.recorded(session.host):
        Path(record.file).unlink()
    assert await host_look.log_of_ended(session) == session.deployment.server.log


def test_the_command_line_prints_the_family_and_the_form_stays(
    embedded: Embedded, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = embedded.folder.deployment
    words = ["check", str(deployment.path), "-F", str(deployment.ssh_config), "--only", "ops", "--json"]
    assert main(words) == Exit.OK
    report = json.loads(capsys.readouterr().out)
    assert {item["check"].partition(".")[0] for item in report["findings"]} == {"ops"}
    assert set(report) == {
        *("schema", "console", "host", "inputs", "engines"),
        *("verdict", "summary", "findings", "took_s"),
    }


@pytest.mark.parametrize(
    ("only", "skip", "asked"),
    [
        ((), (), True),
        (("ops.port", "cfg"), (), True),
        (("cfg", "align.states"), (), False),
        ((), ("ops",), False),
        ((), ("ops.port",), True),
    ],
)
def test_the_host_is_looked_at_only_when_it_is_asked_for(
    only: tuple[str, ...], skip: tuple[str, ...], asked: bool
) -> None:
    assert host_look.is_asked(only, skip) is asked
