"""One look at a host, on every kind of host: who listens, what is left, disks, the draft's files, GPUs and health."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from remote import server
from remote.host import Host, LocalHost
from remote.server import ServerRecord, ServerSpec, StopPlan
from remote.snapshot import Sought, snapshot
from tests.remote.servers import free_port
from tests.remote.waiting import gone, running, until

# Listens; starts a child in its group, one in a session of its own and one without its environment: they outlive it.
PROGRAM = """
import socket, subprocess, sys, time
nap = [sys.executable, "-c", "import time; time.sleep(1000)"]
pids = [subprocess.Popen(nap, start_new_session=alone).pid for alone in (False, True)]
pids.append(subprocess.Popen(nap, env={}).pid)
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("pids", *pids, flush=True)
time.sleep(1000)
"""


class Life:
    """A started server and the pids of its children."""

    def __init__(self, record: ServerRecord, children: list[int], state: str) -> None:
        self.record, self.children, self.state = record, children, state

    async def kill(self) -> None:
        """End the server alone, and wait until its keeper wrote that down."""
        os.kill(self.record.pid, signal.SIGKILL)
        await gone(self.record.pid)
        await until(Path(self.record.exit_file).exists)


@pytest.fixture
def killed_afterwards() -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if running(pid):
                os.kill(pid, signal.SIGKILL)


async def started(host: Host, tmp_path: Path, pids: list[int]) -> Life:
    program, log, state = tmp_path / "serve.py", tmp_path / "server.log", str(tmp_path / "state")
    program.write_text(PROGRAM)
    port = free_port()
    spec = ServerSpec((sys.executable, str(program), str(port)), log=str(log), port=port, stop=StopPlan(0.2, 10))
    record = await server.start(host, spec, state)
    pids.append(record.pid)
    await until(lambda: log.exists() and log.read_text().endswith("\n"))
    pids += (children := [int(word) for word in log.read_text().split()[1:]])
    return Life(record, children, state)


async def test_the_server_is_seen_on_its_port(host: Host, tmp_path: Path, killed_afterwards: list[int]) -> None:
    life = await started(host, tmp_path, killed_afterwards)
    port = life.record.port
    found = await snapshot(host, Sought(port, life.record.pid, life.record.pgid), life.state)
    assert (found["port"]["open"], found["port"]["of_server"]) == (True, True)
    assert found["port"]["process"]["pid"] == found["server"]["pid"] == life.record.pid
    assert abs(found["server"]["started"] - life.record.started_at) < 5
    assert abs(found["time"] - time.time()) < 60
    assert found["left"] == [] and found["health"] is None
    other = await snapshot(host, Sought(port, os.getpid(), os.getpgid(0)), life.state)
    assert other["port"]["of_server"] is False


async def test_what_an_ended_server_left_is_found_by_its_token(
    host: Host, tmp_path: Path, killed_afterwards: list[int]
) -> None:
    life = await started(host, tmp_path, killed_afterwards)
    await life.kill()
    (left,) = (await snapshot(host, Sought(life.record.port), life.state))["left"]
    assert (left["pid"], left["port"]) == (life.record.pid, life.record.port)
    assert abs(left["ended"] - time.time()) < 60
    in_group, alone, bare = life.children
    proven = {item["pid"]: item["proven"] for item in left["processes"]}
    assert proven == {in_group: True, alone: True, bare: False}
    assert all(running(pid) for pid in life.children), "looking ends nothing"


async def test_a_group_without_the_token_is_told_as_not_proven(tmp_path: Path, killed_afterwards: list[int]) -> None:
    life = await started(LocalHost(), tmp_path, killed_afterwards)
    await life.kill()
    stored = json.loads(Path(life.record.file).read_text())
    _, _, bare = life.children

    async def look(**change: Any) -> list[Any]:
        Path(life.record.file).write_text(json.dumps({**stored, **change}))
        found = await snapshot(LocalHost(), Sought(life.record.port), life.state)
        return [(item["pid"], item["proven"]) for row in found["left"] for item in row["processes"]]

    assert await look(token="another") == [(bare, False)], "a token of its own says that it is another server's"
    assert await look(token="another", pgid=bare) == []
    assert await look(boot_id="another boot") == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x", "token": 7, "boot_id": null}', "[" * 9999, "\xff"])
async def test_a_record_that_is_none_is_passed_over(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "state" / "servers"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text(text, "latin-1")
    assert (await snapshot(LocalHost(), Sought(1), str(tmp_path / "state")))["left"] == []


async def test_the_drafts_files_and_disks_are_told(host: Host, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text('{"a": 1}')
    for name in ("model.safetensors", "optimizer.pt", "training_args.bin", "pytorch_model-00001-of-2.bin"):
        (draft / name).write_text("")
    os.utime(draft / "config.json", (1_700_000_000, 1_700_000_000))
    places = {"draft": str(draft), "log": str(tmp_path / "not" / "yet" / "server.log")}
    for given in (draft, draft / "config.json"):
        found = await snapshot(host, Sought(1, draft=str(given), places=places), str(tmp_path / "state"))
        files = {item["name"]: item for item in found["draft"]}
        assert sorted(files) == ["config.json", "model.safetensors", "pytorch_model-00001-of-2.bin"]
        assert files["config.json"]["written"] == 1_700_000_000
        assert files["config.json"]["sha256"] == hashlib.sha256(b'{"a": 1}').hexdigest()
    disks = {item["name"]: item for item in found["disks"]}
    assert disks["draft"]["device"] == disks["log"]["device"] == os.stat(draft).st_dev
    assert 0 < disks["draft"]["free"] <= disks["draft"]["total"]


async def test_gpus_come_with_the_processes_that_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(
        "#!/bin/sh\ncase $1 in\n"
        "--query-gpu=*) echo '0, GPU-a, NVIDIA H200, 1024, 143771, 37, 41, 121.50, 700.00';;\n"
        f"*) echo 'GPU-a, {os.getpid()}'; echo 'GPU-a, 4194303';;\nesac\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
    found = await snapshot(LocalHost(), Sought(1), str(tmp_path / "state"))
    assert found["gpus"][0]["pids"] == (os.getpid(), 4194303)
    assert [item["pid"] for item in found["named"]] == [os.getpid()]
    smi.write_text("#!/bin/sh\necho broken driver; exit 9\n")
    found = await snapshot(LocalHost(), Sought(1), str(tmp_path / "state"))
    assert (found["gpus"], "broken driver" in found["gpu_error"]) == ((), True)


async def test_health_is_asked_once_and_every_answer_is_told(host: Host, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    closed = await snapshot(host, Sought(1, health=f"http://127.0.0.1:{free_port()}/health"), state)
    assert (closed["health"]["status"], closed["health"]["outcome"]) == (0, "refused")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")

        answering = Thread(target=serve)
        answering.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/health"
        found = await snapshot(host, Sought(1, health=url), state)
        answering.join()
    assert (found["health"]["status"], found["health"]["outcome"]) == (503, "answered")
