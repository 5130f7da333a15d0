"""Shipping a zipapp once and running it, on every kind of host."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import sys
import zipfile
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from remote import ship
from remote.errors import CommandFailed, HostUnreachable, PythonMissing
from remote.files import sha256
from remote.host import Host, open_host, resolve
from tests.remote.servers import SshServer
from tests.remote.waiting import gone, running, until

MAIN = """
import json, os, subprocess, sys, time
request = json.load(sys.stdin)
say = lambda **fields: print(json.dumps(fields), flush=True)
say(got=request, nice=os.nice(0), threads=os.environ["OMP_NUM_THREADS"])
mode = request["mode"]
if mode == "many":
    for n in range(request["n"]):
        say(n=n, text="x" * 100)
elif mode == "wait":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    say(pids=[os.getpid(), child.pid])
    time.sleep(1000)
elif mode == "leave":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], stdout=subprocess.DEVNULL)
    say(pids=[child.pid])
elif mode == "flood":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    say(pids=[os.getpid(), child.pid])
    while True:
        say(text="x" * 1000)
elif mode == "crash":
    print("Traceback: numpy is missing \\033[31m", file=sys.stderr)
    sys.exit(9)
elif mode == "killed":
    os.kill(os.getpid(), 9)
elif mode == "garbage":
    print("not json \\033]0;x\\007", flush=True)
    time.sleep(1000)
elif mode == "list":
    print("[1]")
elif mode == "deep":
    print("[" * 200000)
elif mode == "no newline":
    sys.stdout.write(json.dumps({"last": True}))
"""


def zipapp(text: str = MAIN) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py"), text)
    return data.getvalue()


async def shipped(host: Host) -> str:
    return await ship.ship(host, zipapp(), sys.executable)


async def answers(host: Host, **request: Any) -> list[dict[str, Any]]:
    path = await shipped(host)
    async with aclosing(ship.run_shipped(host, path, sys.executable, request)) as lines:
        return [line async for line in lines]


async def test_it_lies_in_the_cache_under_its_hash_and_is_uploaded_once(host: Host) -> None:
    data = os.urandom(3 << 20)
    digest = hashlib.sha256(data).hexdigest()
    path = await ship.ship(host, data, sys.executable)
    assert path == await resolve(host, f"~/.cache/eagle-console/{digest}.pyz")
    assert await sha256(host, path) == digest
    first = Path(path).stat()
    assert await ship.ship(host, data, sys.executable) == path
    assert Path(path).stat().st_mtime_ns == first.st_mtime_ns
    assert [one.name for one in Path(path).parent.iterdir()] == [f"{digest}.pyz"]


async def test_a_damaged_copy_is_replaced(host: Host) -> None:
    path = Path(await shipped(host))
    path.write_bytes(b"half")
    assert await shipped(host) == str(path)
    assert path.read_bytes() == zipapp()


async def test_request_goes_in_and_objects_come_out_in_order(host: Host) -> None:
    request = {"mode": "many", "n": 2000, "path": "it's \n ~ \x00 é"}
    got = await answers(host, **request)
    assert got[0]["got"] == request
    assert [line["n"] for line in got[1:]] == list(range(2000))


async def test_it_runs_niced_with_few_threads(host: Host) -> None:
    (first,) = await answers(host, mode="nothing")
    assert first["threads"] == "1"
    assert first["nice"] == min(19, os.nice(0) + ship.NICE)


async def test_a_last_line_without_a_newline_counts(host: Host) -> None:
    assert (await answers(host, mode="no newline"))[-1] == {"last": True}


async def test_a_crash_tells_the_end_of_stderr_without_escapes(host: Host) -> None:
    with pytest.raises(CommandFailed, match="numpy is missing") as caught:
        await answers(host, mode="crash")
    assert caught.value.returncode == 9
    assert "\x1b" not in str(caught.value)


async def test_being_killed_is_told_as_a_shell_would(host: Host) -> None:
    with pytest.raises(CommandFailed) as caught:
        await answers(host, mode="killed")
    assert caught.value.returncode == 137


@pytest.mark.parametrize("mode", ["garbage", "list", "deep"])
async def test_a_line_that_is_no_object_ends_it(host: Host, mode: str) -> None:
    with pytest.raises(CommandFailed, match="line 2 of its output is not a JSON object") as caught:
        await answers(host, mode=mode)
    assert "\x1b" not in str(caught.value)


async def test_what_it_leaves_running_is_ended(host: Host) -> None:
    *_, last = await answers(host, mode="leave")
    for pid in last["pids"]:
        await gone(pid)


@pytest.mark.parametrize("mode", ["wait", "flood"])
@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_it_ends_with_its_children_when_its_consumer_does(host: Host, how: str, mode: str) -> None:
    path = await shipped(host)
    pids: list[int] = []

    async def consume() -> None:
        async with aclosing(ship.run_shipped(host, path, sys.executable, {"mode": mode})) as lines:
            async for line in lines:
                pids.extend(line.get("pids", ()))
                if pids and how == "closed":
                    return

    task = asyncio.create_task(consume())
    await until(lambda: pids)
    if how == "cancelled":
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for pid in pids:
        await gone(pid)


async def test_it_ends_with_its_children_when_the_link_is_lost(server: SshServer) -> None:
    host = await open_host(server.address, **server.options)
    path = await shipped(host)
    pids: list[int] = []

    async def consume() -> None:
        async with aclosing(ship.run_shipped(host, path, sys.executable, {"mode": "wait"})) as lines:
            async for line in lines:
                pids.extend(line.get("pids", ()))

    task = asyncio.create_task(consume())
    await until(lambda: pids)
    assert all(running(pid) for pid in pids)
    await server.drop()
    with pytest.raises(HostUnreachable):
        await task
    for pid in pids:
        await gone(pid)
    await host.close()


async def test_a_missing_python_is_told_before_anything_is_uploaded(host: Host) -> None:
    with pytest.raises(PythonMissing, match="/no/such/python") as caught:
        await ship.ship(host, zipapp(), "/no/such/python")
    assert "[host] python" in str(caught.value)
    assert not Path(await resolve(host, ship.CACHE)).exists()
    path = await shipped(host)
    with pytest.raises(PythonMissing):
        async for _ in ship.run_shipped(host, path, "~/env/bin/python", {}):
            pass


@pytest.mark.parametrize(
    ("says", "why"), [("2 7", "Python 2.7"), ("3 8", "Python 3.8"), ("hello", "ended with code 0")]
)
async def test_a_python_that_is_too_old_or_none_is_told(host: Host, tmp_path: Path, says: str, why: str) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\necho {says}\n")
    fake.chmod(0o755)
    with pytest.raises(PythonMissing, match=why):
        await ship.find_python(host, str(fake))
