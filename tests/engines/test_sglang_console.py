"""The console over SSH on SGLang itself: a wrong wiring found from what the engine feeds, fixed, and measured after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from console.demo.setup import EMBEDDING, LATE, RIGHT, WIRINGS, shipped
from console.demo.traffic import read_prompts
from console.measure import paired
from console.session import Session
from console.story import judged, measure
from tests.engines.deployed import deployed
from tests.engines.pair import Pair

pytestmark = pytest.mark.engines

TEXTS = 12


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
