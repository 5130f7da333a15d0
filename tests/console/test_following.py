"""The log of a server whose output is kept by Docker or the journal: followed on a real SSH host, read as any other."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from console.deployment import Deployment, HostSpec, ModelSpec, ServerSpec, parse_deployment
from console.errors import DeploymentError
from console.following import Tell
from console.session import Session
from remote.server import ServerRecord, StopPlan
from tests.remote.servers import SERVERS
from tests.remote.waiting import until

TOOL = """#!/bin/sh
echo "$0 $@" >> "{folder}/asked"
exec tail -s 0.02 -n 100 -f "{folder}/printed" >&2
"""
DECODE = (
    "[2026-03-01 10:00:0{n}] Decode batch. #running-req: 1, #token: 10, token usage: 0.01, accept len: {accept}, "
    "accept rate: 0.5, cuda graph: True, gen throughput (token/s): 90.5, #queue-req: 0\n"
)

_RECORD = ServerRecord(
    pid=1,
    pgid=1,
    start_time=0,
    boot_id="",
    argv=(),
    cmdline=(),
    env_names=(),
    cwd="/",
    log="",
    log_offset=0,
    port=9,
    started_at=0.0,
    spec_hash="",
    stop=StopPlan(),
    launcher="setsid",
    token="",
    file="",
    exit_file="",
)


def deployment(log: str, **host: str) -> Deployment:
    server = ServerSpec(log=log, url="http://127.0.0.1:9")
    return Deployment("d", host=HostSpec(**host), model=ModelSpec("/t", "/d"), server=server)


@pytest.mark.parametrize(
    ("log", "command"),
    [
        ("docker:sglang", "docker logs -f --tail 2000 sglang"),
        ("journal:a.service", "journalctl -u a.service -f -n 2000 -o cat"),
    ],
)
@pytest.mark.parametrize("kind", sorted(SERVERS))
async def test_what_a_container_or_a_unit_prints_fills_the_values(
    kind: str, log: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed, tool = tmp_path / "printed", tmp_path / "bin" / command.partition(" ")[0]
    tool.parent.mkdir()
    tool.write_text(TOOL.format(folder=tmp_path))
    tool.chmod(0o755)
    printed.write_text("starting\n" + DECODE.format(n=1, accept=2.5))
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    async with SERVERS[kind](tmp_path / "ssh") as running:
        made = deployment(log, ssh=running.address, container="box")
        # The home folder is asked for inside the container, the log outside of it.
        docker = tool.parent / "docker"
        inside = '#!/bin/sh\nif [ "$1" = exec ]; then shift 3; exec "$@"; fi\n'
        docker.write_text(inside + (TOOL.format(folder=tmp_path).partition("\n")[2] if tool == docker else ""))
        docker.chmod(0o755)
        session = await Session.open(Deployment(**{**_fields(made), "ssh_config": running.config}))
        task = asyncio.create_task(_drain(session))
        await until(lambda: session.serving.accept_len == 2.5 or task.done())
        with printed.open("a") as file:
            file.write(DECODE.format(n=2, accept=3.25))
        await until(lambda: session.serving.accept_len == 3.25 or task.done())
        assert not task.done()
        assert session.serving.windows == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (tmp_path / "asked").read_text() == f"{tool.parent}/{command}\n"
        assert [record.argv for record in session.host.commands if record.argv[0] == tool.name] == [
            tuple(command.split())
        ]
        await session.close()


def _fields(made: Deployment) -> dict[str, object]:
    return {name: getattr(made, name) for name in made.__slots__}


async def _drain(session: Session, tell: Tell | None = None) -> None:
    async with aclosing(session.follow_log(tell=tell)) as batches:
        async for _ in batches:
            pass


def test_what_the_console_starts_still_writes_to_a_file() -> None:
    from console.launch import plan_launch

    assert plan_launch(deployment("docker:sglang")).log.endswith("/logs/d.log")
    assert plan_launch(deployment("/var/a.log")).log == "/var/a.log"


@pytest.mark.parametrize("log", ["docker:", "docker:-f", "docker:a b", "journal:a;b", "journal:*"])
def test_a_name_that_is_none_is_refused_with_the_file(log: str) -> None:
    with pytest.raises(DeploymentError, match="is not the name"):
        parse_deployment(f'[server]\nlog = "{log}"\n', "d")


@pytest.mark.parametrize("log", ["docker:sglang-1", "journal:sglang@1.service", "/var/log/docker:x", "~/server.log"])
def test_a_log_is_kept_as_it_was_written(log: str) -> None:
    assert parse_deployment(f'[server]\nlog = "{log}"\n', "d").server.log == log


async def test_a_log_that_is_not_there_is_said_to_be_waited_for(tmp_path: Path) -> None:
    session = await Session.open(deployment(f"{tmp_path}/a.log"))
    told: list[str] = []
    task = asyncio.create_task(_drain(session, told.append))
    await until(lambda: bool(told) or task.done())
    assert told == [f"{tmp_path}/a.log on {session.host.name} is not there yet; waiting for it"]
    (tmp_path / "a.log").write_text(DECODE.format(n=1, accept=2.5))
    await until(lambda: session.serving.accept_len == 2.5 or task.done())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await session.close()


@pytest.mark.parametrize("linked", [True, False])
async def test_another_log_than_the_deployment_names_is_said(tmp_path: Path, linked: bool) -> None:
    real, named = tmp_path / "real.log", tmp_path / "named.log"
    real.write_text(DECODE.format(n=1, accept=2.5))
    if linked:
        named.symlink_to(real)
    session = await Session.open(deployment(str(named)))
    session.server.record = replace(_RECORD, log=str(real))
    told: list[str] = []
    task = asyncio.create_task(_drain(session, told.append))
    await until(lambda: session.serving.accept_len == 2.5 or task.done())
    said = f"following {real}, where the server writes, and not [server] log, which is {named}"
    assert told == ([] if linked else [said])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    session.server.record = None
    await session.close()
