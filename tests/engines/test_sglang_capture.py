"""`console capture` on SGLang over SSH, from a server that has to be restarted for it and is put back."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.capture_folder import open_capture
from console.demo.setup import LATE, WIRINGS
from console.session import Session
from tests.engines.deployed import deployed
from tests.engines.pair import Pair, embedded_engine
from tests.engines.serving import ROOT, SGLANG_ARGS, START_S

pytestmark = pytest.mark.engines

PLAIN = {name: value for name, value in SGLANG_ARGS.items() if name != "enable-return-hidden-states"}
POLL_S = 0.5


async def test_a_hook_sees_what_the_draft_is_fed_and_the_server_is_put_back(tmp_path: Path) -> None:
    async with deployed(tmp_path, LATE, PLAIN) as (session, pair):
        await session.start("without hidden states")
        before = session.last_status
        process = await _capturing(tmp_path, "hook")
        said, noted = await process.communicate()
        assert process.returncode == 0, noted.decode()[-3000:]
        _is_what_is_fed(Path(json.loads(said)["captures"][0]["path"]), pair)
        await _until(session, lambda status: status.argv == before.argv and status.healthy)
        assert session.last_status.pid != before.pid


async def test_the_host_puts_the_server_back_when_the_console_is_killed(tmp_path: Path) -> None:
    async with deployed(tmp_path, LATE, PLAIN) as (session, _):
        await session.start("without hidden states")
        before = session.last_status
        process = await _capturing(tmp_path, "states")
        await _until(session, lambda status: "--enable-return-hidden-states" in status.argv)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await _until(session, lambda status: status.argv == before.argv and status.healthy)
        assert session.last_status.pid != before.pid


async def _capturing(folder: Path, how: str) -> asyncio.subprocess.Process:
    """`console capture` as a process of its own, with the client configuration of the test's SSH server."""
    home = folder / "client"
    (home / ".ssh").mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "ssh" / "ssh_config", home / ".ssh" / "config")
    variables = {key: value for key, value in os.environ.items() if not key.startswith("XDG_")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "console", "capture", str(folder / "real.toml"), "--how", how, "--yes", "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**variables, "HOME": str(home)},
    )


def _is_what_is_fed(folder: Path, pair: Pair) -> None:
    engine, capture = embedded_engine(pair), open_capture(folder)
    for sample in capture.samples:
        states = engine.states(sample.token_ids.tolist())[sample.positions]
        for slot, index in enumerate(WIRINGS[LATE]):
            fed = sample.slot(slot, 0, len(sample.positions))
            wanted = states[:, index + 1]
            assert np.linalg.norm(fed - wanted) < 1e-4 * np.linalg.norm(wanted)


async def _until(session: Session, holds: Any) -> None:
    async with asyncio.timeout(START_S):
        while not holds(await session.status()):
            await asyncio.sleep(POLL_S)
