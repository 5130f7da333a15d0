"""The console over SSH on SGLang itself: a wrong wiring found from what the engine feeds, fixed, and measured after."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from console.demo.setup import EMBEDDING, LATE, RIGHT, WIRINGS, shipped
from console.demo.traffic import read_prompts
from console.deployment import CacheSpec, Deployment, HostSpec, ModelSpec, ServerSpec
from console.measure import paired
from console.session import Session
from console.story import judged, measure
from tests.engines.pair import Pair, copied_pair
from tests.engines.serving import SGLANG_ARGS, SGLANG_VARIABLES, python_of, unused_port
from tests.remote.servers import openssh_server

pytestmark = pytest.mark.engines

TEXTS = 12


@asynccontextmanager
async def deployed(folder: Path, wiring: str) -> AsyncIterator[tuple[Session, Pair]]:
    """A session over SSH on a deployment of the shipped pair, served by SGLang; its server is stopped at the end."""
    pair = copied_pair(folder, wiring)
    with shipped("cache") as source:
        shutil.copytree(source, folder / "hidden_states", ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    async with openssh_server(folder / "ssh") as host:
        session = await Session.open(
            Deployment(
                name="real",
                host=HostSpec(ssh=host.address, python=python_of("sglang")),
                model=ModelSpec(str(pair.target), str(pair.draft)),
                caches=(CacheSpec(str(folder / "hidden_states")),),
                server=ServerSpec(
                    engine="sglang",
                    log=str(folder / "server.log"),
                    url=f"http://127.0.0.1:{unused_port()}",
                    env=SGLANG_VARIABLES,
                    args=SGLANG_ARGS,
                ),
                path=folder / "real.toml",
                ssh_config=host.config,
                history=folder / "history.sqlite3",
            )
        )
        try:
            yield session, pair
        finally:
            if (await session.status()).up:
                await session.stop("the test is over")
            await session.close()


@pytest.mark.parametrize("wiring", [EMBEDDING, LATE])
async def test_a_wrong_wiring_is_found_fixed_and_measured(wiring: str, tmp_path: Path) -> None:
    with shipped("prompts.json") as path:
        texts = read_prompts(path, "held_out")[:TEXTS]
    async with deployed(tmp_path, wiring) as (session, pair):
        steps: list[str] = []
        run = await session.start("wrong wiring", lambda name, detail: steps.append(name))
        assert run.state == "ready" and {"loading", "warming", "ready"} <= set(steps)
        before = await measure(session, texts)
        verdict, finding = await judged(session, print)
        assert (verdict, finding["verdict"]) == ("FAIL", "FAIL")
        assert finding["evidence"]["engine_states"] == [index + 1 for index in WIRINGS[wiring]]
        assert finding["evidence"]["trained_states"] == [index + 1 for index in WIRINGS[RIGHT]]
        states = _finding(session, "align.states")
        assert states["evidence"]["compared_with"] == "reference"
        assert [slot["k"] for slot in states["evidence"]["served"]] == finding["evidence"]["engine_states"]

        await session.draft.load()
        session.draft.stage_fix(finding["fix"], finding)
        await session.draft.write("the fix")
        assert _ids(pair) == list(WIRINGS[RIGHT])
        await session.restart("the fix")
        after = await measure(session, texts)
        verdict, finding = await judged(session, print)
        assert (verdict, finding["verdict"]) == ("PASS", "PASS")
        assert finding["evidence"]["source"] == "probed"
        print(f"accept length {before.mean.words()} -> {after.mean.words()}")
        assert paired(after.values, before.values).low > 0


def _finding(session: Session, check: str) -> Any:
    assert session.report is not None
    found = session.report.find(check)
    assert found is not None
    return found


def _ids(pair: Pair) -> Any:
    return json.loads(pair.config.read_text())["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
