"""A server that wants an API key, from start to stop: everything works, and the key is seen nowhere but on its own."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from console import feeds
from console.capturing import plan_capture, take_capture
from console.checking import Report
from console.cli import main
from console.demo.traffic import KEY_VARIABLE
from console.deployment import save_deployment
from console.embedded import Embedded, embedded_host
from console.exits import Exit
from console.paths import history_file
from console.session import Session
from console.startup import healthy
from tests.remote.waiting import until

KEY = "hush-hush-9b1d"
ENGINE = b"console.demo.engine"


@dataclass
class Watch:
    """Looks at the command lines of all processes, over and over; `told` are those with the key, the server's left
    out."""

    servers: int = 0
    told: set[str] = field(default_factory=set)

    def look(self) -> None:
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            try:
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if KEY.encode() in words:
                if ENGINE in words.split(b"\0"):
                    self.servers += 1
                else:
                    self.told.add(words.decode("utf-8", "replace"))


@contextmanager
def watching() -> Iterator[Watch]:
    watch, over = Watch(), threading.Event()

    def run() -> None:
        while not over.wait(0.01):
            watch.look()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def locked() -> Iterator[Embedded]:
    """An embedded host whose deployment gives its server an API key; nothing runs yet."""
    with embedded_host("right") as embedded:
        deployment = embedded.folder.deployment
        args = {**deployment.server.args, "api-key": KEY}
        changed = replace(deployment, server=replace(deployment.server, args=args))
        assert changed.path is not None
        save_deployment(changed, changed.path)
        embedded.folder = replace(embedded.folder, deployment=changed)
        yield embedded


def all_text(database: Path) -> str:
    """Every value of every row of the history."""
    with closing(sqlite3.connect(database)) as opened:
        tables = [name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return repr([opened.execute(f"SELECT * FROM {name}").fetchall() for name in tables])


async def counters(embedded: Embedded) -> None:
    """What the app reads of the server: health, events of its log, the counters of the prompts, the host's health."""
    session = await Session.open(embedded.folder.deployment)
    try:
        assert (await session.status()).healthy
        assert session.server.headers == {"Authorization": f"Bearer {KEY}"}
        assert await healthy(session.host, session.deployment.server.url, session.server.headers)
        failures: list[BaseException] = []
        await feeds.measure(session, lambda what, error: failures.append(error), lambda done, total: None)
        assert not failures
        assert session.serving.by_position
        async with aclosing(session.follow_log()) as batches:
            async for batch in batches:
                assert all(KEY not in event.text and KEY not in json.dumps(event.as_json()) for event in batch)
                if session.serving.windows:
                    break
        assert all(KEY not in word for command in session.host.commands for word in command.argv)
        report = await captured(session)
        assert report.raw["captures"][0]["positions"] > 0
    finally:
        await session.close()


async def captured(session: Session) -> Report:
    plan = await plan_capture(session)
    assert not plan.restarts
    async with aclosing(take_capture(session, plan, 2, "", lambda name, detail: None)) as steps:
        return [step async for step in steps if isinstance(step, Report)][-1]


def test_everything_works_on_a_server_with_a_key_and_no_output_process_or_run_shows_it(
    locked: Embedded, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    deployment = locked.folder.deployment
    where = [str(deployment.path), "-F", str(deployment.ssh_config)]
    said, keyless = "", tmp_path / "demo.toml"
    args = {key: value for key, value in deployment.server.args.items() if key != "api-key"}
    save_deployment(replace(deployment, server=replace(deployment.server, args=args)), keyless)

    def ran(*words: str) -> str:
        nonlocal said
        code = main([*words[:1], *where, *words[1:]])
        shown = capfd.readouterr()
        said += shown.out + shown.err
        assert code == Exit.OK, f"{words}: {shown.err}"
        return shown.out

    with watching() as watch:
        assert "is ready" in ran("start", "--yes")
        status = json.loads(ran("status", "--json"))
        assert status["healthy"] and not status["note"] and not status["differences"]
        locked.begin_traffic()
        assert json.loads(ran("bench", "--limit", "2", "--max-new-tokens", "16", "--json"))["prompts"] == 2
        found = json.loads(ran("check", "--json"))["findings"]
        findings = {item["check"]: item["verdict"] for item in found}
        # Without states taken from the running server this could not be judged.
        assert findings["align.states"] == "PASS"
        assert findings["ops.health"] == "PASS"
        # A file that does not name the key, as `console init` writes it: the running server's command line does.
        where = [str(keyless), *where[1:]]
        status = json.loads(ran("status", "--json"))
        assert (
            status["healthy"] and not status["note"] and [item["flag"] for item in status["differences"]] == ["api-key"]
        )
        assert json.loads(ran("bench", "--limit", "1", "--max-new-tokens", "8", "--json"))["prompts"] == 1
        where = [str(deployment.path), *where[1:]]
        asyncio.run(counters(locked))
        swept = json.loads(ran("sweep", "--steps", "1", "--limit", "1", "--max-new-tokens", "8", "--yes", "--json"))
        assert swept["swept"][0]["bench"]["accept_len"] >= 1
        assert "is ready" in ran("restart", "--yes")
        ran("stop", "--yes")
    assert watch.servers and not watch.told
    assert KEY not in said
    assert deployment.history is not None
    for history in (deployment.history, history_file()):
        kept = all_text(history)
        assert "demo" in kept and KEY not in kept


async def test_the_demo_s_traffic_gets_the_key_by_a_variable(locked: Embedded) -> None:
    locked.begin_traffic()
    traffic = locked.traffic
    assert traffic is not None
    folder = Path("/proc") / str(traffic.pid)

    def named() -> bytes:
        assert traffic.poll() is None
        try:
            return (folder / "cmdline").read_bytes()
        except ProcessLookupError:
            return b""  # it is between being forked and running its program

    await until(lambda: b"console.demo.traffic" in named())
    assert f"{KEY_VARIABLE}={KEY}".encode() in (folder / "environ").read_bytes().split(b"\0")
    assert KEY.encode() not in named()
