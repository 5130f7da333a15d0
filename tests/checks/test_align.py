"""Alignment: what a cache holds against what an engine feeds; numbers before claims, nothing cried out for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from checks.finding import Verdict
from tests.checks import pair
from tests.checks.made import Made, patched

if TYPE_CHECKING:
    from pathlib import Path

PASS, INFO, WARN, FAIL, UNKNOWN = Verdict.PASS, Verdict.INFO, Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


# -- engine_pair -------------------------------------------------------------------------------------------------------


def test_the_right_wiring_passes_once_measured(made: Made) -> None:
    assert made.case(everything=True).only("align.engine_pair").verdict is PASS


@pytest.mark.parametrize(
    ("cache", "ids", "right"),
    [
        ((3, 7, 10), (-1, 2, 6), [2, 6, 9]),
        ((3, 7, 10), (3, 7, 10), [2, 6, 9]),
        ((3, 7, 10), None, [2, 6, 9]),
        ((1, 5, 9), (2, 6, 9), [0, 4, 8]),
        ((3, 7, 10), (2, 6, 11), [2, 6, 9]),
        ((3, 7, 10), (2, 2, 9), [2, 6, 9]),
    ],
)
def test_a_wrong_wiring_fails_with_the_ids_that_feed_the_trained_states(
    made: Made, cache: tuple[int, ...], ids: tuple[int, ...] | None, right: list[int]
) -> None:
    case = made.case(cache, ids, everything=True)
    finding = case.only("align.engine_pair")
    assert finding.verdict is FAIL
    assert finding.engine == "sglang==0.5.21"
    assert finding.evidence["configured_ids"] == (list(ids) if ids else None)
    assert finding.evidence["trained_states"] == list(cache)
    assert finding.evidence["source"] == "given"
    assert patched(case, finding) == right


def test_without_ids_the_default_of_the_engine_is_judged(made: Made) -> None:
    finding = made.case((2, 6, 9), None, everything=True).only("align.engine_pair")
    assert finding.verdict is PASS
    assert finding.evidence["engine_states"] == [2, 6, 9]


def test_slots_out_of_order_have_no_fix(made: Made) -> None:
    finding = made.case((10, 3, 7), everything=True).only("align.engine_pair")
    assert finding.verdict is FAIL
    assert finding.fix is None
    assert "no ids" in finding.summary


def test_the_numbers_win_over_config_and_claim_that_agree(made: Made) -> None:
    case = made.case((1, 5, 9), (2, 6, 9), everything=True, claims=(3, 7, 10))
    finding = case.only("align.engine_pair")
    assert finding.verdict is FAIL
    assert finding.evidence["refuted_claim"] == [3, 7, 10]
    assert patched(case, finding) == [0, 4, 8]
    assert case.only("align.states").verdict is FAIL


def test_the_numbers_win_over_a_claim_with_an_engine_capture_alone(made: Made) -> None:
    case = made.case((1, 5, 9), (2, 6, 9), fed=(3, 7, 10), claims=(3, 7, 10))
    finding = case.only("align.engine_pair")
    assert finding.verdict is FAIL
    assert finding.fix is None
    assert finding.evidence["unlike_served"] == [0, 1, 2]
    assert case.only("align.states").verdict is FAIL


@pytest.mark.parametrize(("claims", "verdict"), [((3, 7, 10), UNKNOWN), ((2, 6, 9), WARN)])
def test_a_belief_alone_proves_nothing(made: Made, claims: tuple[int, ...], verdict: Verdict) -> None:
    finding = made.case(claims=claims).only("align.engine_pair")
    assert finding.verdict is verdict
    assert "not measured" in finding.summary


def test_nothing_known_of_the_cache_is_unknown_and_says_what_decides(made: Made) -> None:
    finding = made.case().only("align.engine_pair")
    assert finding.verdict is UNKNOWN
    assert "capture" in finding.evidence["needs"][0]


def test_an_assumed_engine_neither_condemns_nor_acquits(made: Made) -> None:
    assumed = (pair.engine(source="assumed"),)
    assert made.case(everything=True, engines=assumed).only("align.engine_pair").verdict is UNKNOWN
    wrong = pair.Case(
        draft=pair.draft_folder(made.folder / "other", [-1, 2, 6]),
        cache=made.folder / "cache",
        engines=assumed,
        captures=(pair.capture(made.folder / "again"),),
    )
    assert wrong.only("align.engine_pair").verdict is WARN


def test_each_engine_has_its_finding(made: Made) -> None:
    found = made.case(everything=True, engines=(pair.engine("0.5.12"), pair.engine("0.5.21"))).run("align.engine_pair")
    assert [item.engine for item in found] == ["sglang==0.5.12", "sglang==0.5.21"]
    assert [item.verdict for item in found] == [PASS, PASS]


def test_a_rule_that_could_not_be_read_is_unknown(made: Made) -> None:
    from checks.engines import Engine

    unread = Engine("sglang", "9", "installed", None, note="its rule could not be read: a shape nobody knows")
    finding = made.case(everything=True, engines=(unread,)).only("align.engine_pair")
    assert finding.verdict is UNKNOWN
    assert "a shape nobody knows" in finding.summary


# -- states ------------------------------------------------------------------------------------------------------------


def test_all_states_give_the_whole_matrix(made: Made) -> None:
    finding = made.case(everything=True).only("align.states")
    assert finding.verdict is PASS
    evidence = finding.evidence
    assert evidence["states"] == [*(f"R_{k}" for k in range(13)), "N"]
    assert np.array(evidence["matrix"], dtype=float).shape == (3, 14)
    assert evidence["best"] == ["R_3", "R_7", "R_10"]
    assert evidence["default_of"] == ["speculators 0.1–0.2", "speculators 0.3–0.4"]
    assert evidence["expected"] == [3, 7, 10]
    assert evidence["offsets"] == ["right"] * 3


def test_one_slot_off_is_told_by_slot(made: Made) -> None:
    finding = made.case((3, 6, 10), everything=True).only("align.states")
    assert finding.verdict is FAIL
    assert finding.evidence["offsets"] == ["right", "1 late", "right"]
    assert "slot 1 1 late" in finding.summary


def test_a_permutation_is_named_as_one(made: Made) -> None:
    finding = made.case((10, 3, 7), everything=True).only("align.states")
    assert finding.verdict is FAIL
    assert finding.evidence["permutation"] == [2, 0, 1]
    assert finding.fix is None


def test_a_right_wiring_with_a_wrong_claim_warns(made: Made) -> None:
    finding = made.case(everything=True, claims=(2, 6, 9)).only("align.states")
    assert finding.verdict is WARN
    assert "refute" in finding.summary


def test_without_an_engine_the_claim_is_held_against_the_numbers(made: Made) -> None:
    assert made.case((1, 5, 9), everything=True, engines=(), claims=(3, 7, 10)).only("align.states").verdict is FAIL


def test_without_an_engine_and_a_claim_the_states_are_named(made: Made) -> None:
    finding = made.case((1, 5, 9), everything=True, engines=()).only("align.states")
    assert finding.verdict is INFO
    assert finding.evidence["k"] == [1, 5, 9]


def test_the_served_numbers_count_more_than_the_rule(made: Made) -> None:
    finding = made.case(ids=(2, 6, 9), fed=(4, 8, 11), everything=True).only("align.states")
    assert finding.verdict is FAIL
    assert finding.evidence["expected"] == [4, 8, 11]
    assert finding.evidence["offsets"] == ["1 late"] * 3
    assert "restart" in finding.summary


def test_a_capture_under_other_ids_does_not_judge_the_new_config(made: Made) -> None:
    case = made.case(ids=(2, 6, 9))
    old = pair.capture(made.folder / "old", ks=(0, 3, 7), ids=[-1, 2, 6])
    case.captures = (old,)
    assert case.only("align.states").verdict is UNKNOWN
    case.captures = (old, pair.capture(made.folder / "all"))
    finding = case.only("align.states")
    assert finding.verdict is PASS
    assert "capture again" in finding.summary


@pytest.mark.parametrize(
    ("cache", "fed", "verdict"),
    [
        ((3, 7, 10), (3, 7, 10), PASS),
        ((3, 7, 10), (0, 3, 7), FAIL),
        ((3, 6, 10), (3, 7, 10), FAIL),
        ((10, 3, 7), (3, 7, 10), FAIL),
    ],
)
def test_served_against_cached_without_names(
    made: Made, cache: tuple[int, ...], fed: tuple[int, ...], verdict: Verdict
) -> None:
    finding = made.case(cache, tuple(k - 1 for k in fed), fed=fed).only("align.states")
    assert finding.verdict is verdict
    assert finding.evidence["compared_with"] == "engine"


def test_an_engine_capture_names_the_states_through_the_rule(made: Made) -> None:
    finding = made.case(fed=(3, 7, 10)).only("align.engine_pair")
    assert finding.verdict is PASS
    assert finding.evidence["trained_by"] == "measured"


def test_another_basis_suggests_no_ids(made: Made, tmp_path: Path) -> None:
    case = made.case(everything=True)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(pair.H, pair.H)))[0].astype(np.float32)
    for index in range(4):
        path = tmp_path / "cache" / f"hs_{index}.safetensors"
        pair.write_sample(path, pair.text(index), pair.stacked(index, (3, 7, 10, 12)) @ turn)
    finding = case.only("align.states")
    assert finding.verdict is FAIL
    assert finding.fix is None
    assert "another target" in finding.summary
    pairing = case.only("align.engine_pair")
    assert pairing.verdict is UNKNOWN
    assert pairing.fix is None


def test_the_same_layers_of_slightly_other_weights_pass_and_are_told(made: Made, tmp_path: Path) -> None:
    case = made.case(everything=True)
    older = pair.TinyTarget()
    rng = np.random.default_rng(3)
    for name, weight in older.weights.items():
        older.weights[name] = weight + 0.05 * weight.std() * rng.normal(size=weight.shape).astype(np.float32)
    for index in range(4):
        states = older.states(pair.text(index))
        path = tmp_path / "cache" / f"hs_{index}.safetensors"
        pair.write_sample(path, pair.text(index), np.stack([states[k] for k in (3, 7, 10, 12)], axis=1))
    wiring, kinship = case.run("align.states")
    assert wiring.verdict is PASS
    assert kinship.verdict is INFO
    assert "other weights or another precision" in kinship.summary
    assert max(kinship.evidence["leans"]) < 0.05
    assert 0.02 < kinship.evidence["distances"][2] < 0.1
    case.args = ("--quantization", "fp8")
    assert "--quantization fp8" in case.run("align.states")[1].summary


def test_a_partial_sum_fits_no_offset_and_suggests_no_ids(made: Made, tmp_path: Path) -> None:
    case = made.case((3, 9, 11), ids=(2, 8, 10), everything=True)
    for index in range(4):
        states = pair.stacked(index, (3, 9, 11, 12)).copy()
        half = pair.target().without_half_of_the_mlp(pair.text(index))
        states[:, 1], states[:, 2] = half[9], half[11]
        pair.write_sample(tmp_path / "cache" / f"hs_{index}.safetensors", pair.text(index), states)
    finding = case.only("align.states")
    assert finding.verdict is FAIL
    assert "no offset fits" in finding.summary
    assert finding.fix is None
    assert case.only("align.engine_pair").fix is None


def test_states_of_another_width_are_of_another_target(made: Made, tmp_path: Path) -> None:
    case = made.case(everything=True)
    for index in range(4):
        path = tmp_path / "cache" / f"hs_{index}.safetensors"
        pair.write_sample(path, pair.text(index), pair.stacked(index, (3, 7, 10, 12))[:, :, :64])
    finding = case.only("align.states")
    assert finding.verdict is FAIL
    assert "another target" in finding.summary
    assert finding.fix is None


def test_rows_off_their_state_where_chunks_meet_are_told(made: Made, tmp_path: Path) -> None:
    case = made.case(everything=True)
    for index in range(4):
        states = pair.stacked(index, (3, 7, 10, 12)).copy()
        states[::16] = states[::16, ::-1]
        pair.write_sample(tmp_path / "cache" / f"hs_{index}.safetensors", pair.text(index), states)
    finding = case.only("align.states")
    assert finding.verdict is WARN
    assert "where chunks of a prefill meet" in finding.summary


def test_a_cache_without_states_is_no_question_of_alignment(tmp_path: Path) -> None:
    case = pair.Case(cache=pair.write_cache(tmp_path / "cache", (3, 7, 10)), captures=(pair.capture(tmp_path / "all"),))
    whole = case.evidence().caches[0]
    case.opened = replace(whole, slots=0, layout="eagle")
    case.draft, case.engines = pair.draft_folder(tmp_path / "draft", [2, 6, 9]), (pair.engine(),)
    for check_id in ("align.states", "align.engine_pair", "align.embedding"):
        finding = case.only(check_id)
        assert finding.verdict is INFO
        assert "only a final one" in finding.summary


def test_a_truncated_cache_file_leaves_the_others_to_decide(made: Made, tmp_path: Path) -> None:
    case = made.case((1, 5, 9), everything=True)
    path = tmp_path / "cache" / "hs_1.safetensors"
    path.write_bytes(path.read_bytes()[:-500])
    finding = case.only("align.states")
    assert finding.verdict is FAIL
    assert "truncated" in finding.evidence["unreadable"][0]


# -- embedding ---------------------------------------------------------------------------------------------------------


def test_the_embedding_served_and_not_cached_fails_without_server_and_capture(made: Made) -> None:
    case = made.case((3, 7, 10), (-1, 2, 6))
    finding = case.only("align.embedding")
    assert finding.verdict is FAIL
    assert finding.evidence["engine_states"] == [0, 3, 7]
    assert finding.evidence["unknown"]
    assert finding.fix is None
    assert "stays unknown" in finding.summary


def test_a_belief_is_no_ground_for_a_fix(made: Made) -> None:
    assert made.case((3, 7, 10), (-1, 2, 6), claims=(3, 7, 10)).only("align.embedding").fix is None


def test_the_embedding_cached_and_not_served_fails(made: Made) -> None:
    case = made.case((0, 3, 7), (2, 6, 9), everything=True)
    finding = case.only("align.embedding")
    assert finding.verdict is FAIL
    assert finding.evidence["embedding_slots"] == [0]


@pytest.mark.parametrize(("cache", "ids"), [((0, 3, 7), (-1, 2, 6)), ((3, 7, 10), (2, 6, 9)), ((1, 2, 3), (0, 1, 2))])
def test_no_alarm_where_cache_and_engine_agree_on_the_embedding(
    made: Made, cache: tuple[int, ...], ids: tuple[int, ...]
) -> None:
    assert made.case(cache, ids).only("align.embedding").verdict is PASS


def test_without_an_engine_a_claim_of_the_embedding_is_refuted(made: Made) -> None:
    finding = made.case(engines=(), claims=(0, 3, 7)).only("align.embedding")
    assert finding.verdict is WARN
    assert finding.evidence["embedding_slots"] == []


# -- final -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("final", "verdict"), [("pre", PASS), ("post", FAIL)])
def test_the_last_block_before_or_after_the_norm(tmp_path: Path, final: str, verdict: Verdict) -> None:
    case = pair.Case(cache=pair.write_cache(tmp_path / "cache", (3, 7, 10), final=final))
    finding = case.only("align.final")
    assert finding.verdict is verdict
    assert finding.evidence["measured"] == final
    assert finding.evidence["agreement"] > 0.4


def test_a_slot_that_is_the_norm_is_its_own_fault(tmp_path: Path) -> None:
    for index in (0, 1):
        states = pair.stacked(index, (3, 7, 10, 12)).copy()
        states[:, 2] = pair.target().final(states[:, 3])
        pair.write_sample(tmp_path / "cache" / f"hs_{index}.safetensors", pair.text(index), states)
    found = pair.Case(cache=tmp_path / "cache").run("align.final")
    assert [item.verdict for item in found] == [FAIL, PASS]
    assert found[0].evidence["slot"] == 2
    assert found[0].fix is None


def test_a_slot_that_is_the_last_state_is_known_without_a_capture(made: Made) -> None:
    found = made.case((3, 7, 12), (2, 6, 9)).run("align.final")
    assert found[0].verdict is FAIL
    assert "R_12" in found[0].summary


def test_a_last_block_of_another_layer_fails_against_a_capture(tmp_path: Path) -> None:
    for index in (0, 1):
        path = tmp_path / "cache" / f"hs_{index}.safetensors"
        pair.write_sample(path, pair.text(index), pair.stacked(index, (3, 7, 10, 2)))
    case = pair.Case(cache=tmp_path / "cache", captures=(pair.capture(tmp_path / "all"),))
    assert case.only("align.final").verdict is FAIL
    case.captures = ()
    assert case.only("align.final").verdict is UNKNOWN
