"""The case it all began with: n = 61, a cache of 3, 31, 59, and ids that one engine version reads as another."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from checks.caches import Cache, Claim, open_cache
from checks.engines import Engine
from checks.engines.sglang.layers import POINTER, table_rule
from checks.finding import ConfigFix, Finding, Verdict
from tests.checks import pair

if TYPE_CHECKING:
    from pathlib import Path

    from checks.evidence import Evidence

LLAMA, KIMI = "LlamaForCausalLM", "KimiK25ForConditionalGeneration"
RECORD = Claim((3, 31, 59), "data_config.json")


class Founding(pair.Case):
    """A target of 61 layers, whose embedding and norm are the tiny target's, and a cache with a trainer's record."""

    claim: Claim | None = RECORD

    def evidence(self) -> Evidence:
        evidence = super().evidence()
        assert self.cache is not None
        cache: Cache = replace(open_cache(self.cache), claim=self.claim)
        evidence.memo(("cache", 0), lambda: cache)
        return evidence


def founding(tmp_path: Path, ids: list[int], version: str, architecture: str = KIMI) -> Founding:
    target = tmp_path / "target"
    shutil.copytree(pair.TARGET, target)
    config = json.loads((target / "config.json").read_text("utf-8"))
    config.update(num_hidden_layers=61, architectures=[architecture])
    (target / "config.json").write_text(json.dumps(config), "utf-8")
    rule, note = table_rule(version, architecture)
    engine = Engine("sglang", version, "given", rule, note=note, reads=(POINTER,), pointer=POINTER)
    return Founding(
        draft=pair.draft_folder(tmp_path / "draft", ids),
        cache=pair.write_cache(tmp_path / "cache", (3, 7, 10)),
        target=target,
        engines=(engine,),
    )


def ids_in(finding: Finding) -> Any:
    assert isinstance(finding.fix, ConfigFix)
    return finding.fix.patch[-1]["value"]


@pytest.mark.parametrize(
    ("version", "verdict", "fed", "fixed"),
    [("0.5.12", Verdict.PASS, [3, 31, 59], None), ("0.5.13", Verdict.FAIL, [2, 30, 58], [3, 31, 59])],
)
def test_the_same_ids_under_two_versions(
    tmp_path: Path, version: str, verdict: Verdict, fed: list[int], fixed: list[int] | None
) -> None:
    finding = founding(tmp_path, [2, 30, 58], version).only("align.engine_pair")
    assert finding.verdict is verdict
    assert finding.evidence["engine_states"] == fed
    assert finding.evidence["trained_states"] == [3, 31, 59]
    assert "claimed, not measured" in finding.summary
    assert (ids_in(finding) if finding.fix else None) == fixed


@pytest.mark.parametrize(
    ("version", "architecture"),
    [("0.5.12", LLAMA), ("0.5.21", LLAMA), ("0.5.12", KIMI), ("0.5.12", "DeepseekV3ForCausalLM")],
)
def test_minus_one_fails_with_the_right_ids_from_the_trainers_record(
    tmp_path: Path, version: str, architecture: str
) -> None:
    case = founding(tmp_path, [-1, 2, 30], version, architecture)
    for check in ("align.engine_pair", "align.embedding"):
        finding = case.only(check)
        assert finding.verdict is Verdict.FAIL, check
        assert finding.evidence["engine_states"] == [0, 3, 31]
        assert ids_in(finding) == [2, 30, 58]


@pytest.mark.parametrize("architecture", [LLAMA, KIMI])
def test_minus_one_without_any_record_fails_and_says_what_stays_unknown(tmp_path: Path, architecture: str) -> None:
    case = founding(tmp_path, [-1, 2, 30], "0.5.12", architecture)
    case.claim = None
    finding = case.only("align.embedding")
    assert finding.verdict is Verdict.FAIL
    assert finding.fix is None
    assert "stays unknown" in finding.summary
    assert finding.evidence["unknown"]
    assert finding.evidence["needs"]
    # The pair stays open, but the request is one that no unpatched build serves, and that is enough.
    pair_of = case.only("align.engine_pair")
    assert pair_of.verdict is Verdict.FAIL
    assert pair_of.evidence["trained_states"] is None
    assert "R_0 is asked for" in pair_of.evidence["problem"]
    assert pair_of.fix is None
