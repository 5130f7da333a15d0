"""States are named from numbers alone: file names, order, config and claims say nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from checks.distance import common_prefix, median, medians, middle, readable, relative, same_texts
from checks.errors import NeedsLibrary
from checks.finding import Verdict
from checks.naming import name_served, name_slots
from checks.nearest import judge
from tests.checks import pair

if TYPE_CHECKING:
    from pathlib import Path


def named(case: pair.Case) -> tuple[int, ...] | None:
    return name_slots(case.evidence()).states


@pytest.mark.parametrize(
    "ks", [(3, 7, 10), (1, 5, 9), (0, 3, 7), (9, 1, 5), (11, 12, 2), (4, 4, 4), (6,), (1, 2, 3, 4, 5)]
)
def test_unusual_and_unsorted_states_are_named(tmp_path: Path, ks: tuple[int, ...]) -> None:
    cache = pair.write_cache(tmp_path / "cache", ks)
    assert named(pair.Case(cache=cache, captures=(pair.capture(tmp_path / "all"),))) == ks


def test_renamed_and_reordered_files_are_named(tmp_path: Path) -> None:
    cache = pair.write_cache(tmp_path / "cache", (1, 5, 9), texts=(3, 2, 1, 0), name="part-{}-of-many")
    for index, path in enumerate(sorted(cache.iterdir())):
        path.rename(cache / f"{(index * 7) % 4}-{index}.safetensors")
    case = pair.Case(cache=cache, captures=(pair.capture(tmp_path / "all", texts=(1, 3)),), claims=(1, 5, 9))
    assert named(case) == (1, 5, 9)


def test_rows_that_the_engine_had_cached_leave_a_gap_and_nothing_moves(tmp_path: Path) -> None:
    cache = pair.write_cache(tmp_path / "cache", (1, 5, 9))
    assert named(pair.Case(cache=cache, captures=(pair.capture(tmp_path / "all", skip=77),))) == (1, 5, 9)


def test_texts_that_are_not_in_the_cache_name_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    pair.write_sample(cache / "hs_0.safetensors", pair.text(0)[::-1].copy(), pair.stacked(0, (1, 5, 9, 12)))
    naming = name_slots(pair.Case(cache=cache, captures=(pair.capture(tmp_path / "all"),)).evidence())
    assert naming.states is None
    assert "not among the cached ones" in naming.note


def test_the_margin_of_the_shipped_pair_is_wide(tmp_path: Path) -> None:
    case = pair.Case(
        cache=pair.write_cache(tmp_path / "cache", tuple(range(13))), captures=(pair.capture(tmp_path / "all"),)
    )
    for slot in name_slots(case.evidence()).slots:
        assert slot.kind == "same"
        assert slot.best < 0.003
        assert slot.second > 0.1


def test_the_output_of_the_final_norm_is_named_n_and_is_no_state(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for index in (0, 1):
        slots = np.stack([pair.all_states(index)[3], pair.target().final(pair.all_states(index)[12])], axis=1)
        pair.write_sample(cache / f"hs_{index}.safetensors", pair.text(index), np.concatenate([slots, slots[:, :1]], 1))
    naming = name_slots(pair.Case(cache=cache, captures=(pair.capture(tmp_path / "all"),)).evidence())
    assert [slot.label for slot in naming.slots] == ["R_3", "N"]
    assert naming.slots[1].decided
    assert naming.states is None


def test_rotated_states_fit_nothing(tmp_path: Path) -> None:
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(pair.H, pair.H)))[0].astype(np.float32)
    cache = tmp_path / "cache"
    for index in (0, 1):
        pair.write_sample(
            cache / f"hs_{index}.safetensors", pair.text(index), pair.stacked(index, (3, 7, 10, 12)) @ turn
        )
    naming = name_slots(pair.Case(cache=cache, captures=(pair.capture(tmp_path / "all"),)).evidence())
    assert [slot.kind for slot in naming.slots] == ["none"] * 3
    assert naming.shifted is None


@pytest.mark.parametrize("shift", [1, -1])
def test_rows_of_the_neighbouring_token_are_told_from_another_basis(tmp_path: Path, shift: int) -> None:
    cache = tmp_path / "cache"
    for index in (0, 1):
        moved = np.roll(pair.stacked(index, (3, 7, 10, 12)), shift, axis=0)
        pair.write_sample(cache / f"hs_{index}.safetensors", pair.text(index), moved)
    naming = name_slots(pair.Case(cache=cache, captures=(pair.capture(tmp_path / "all"),)).evidence())
    assert naming.states is None
    assert naming.shifted == shift


def test_a_mixture_of_states_is_not_named(tmp_path: Path) -> None:
    cache = pair.write_cache(tmp_path / "cache", (3, 7, 10), texts=(0, 1))
    pair.write_cache(cache, (3, 6, 10), texts=(2,))
    naming = name_slots(pair.Case(cache=cache, captures=(pair.capture(tmp_path / "all"),)).evidence())
    assert naming.mixed == (1,)
    assert naming.states is None


def test_noise_has_no_direction_so_it_is_the_same_state_until_nothing_fits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kinds = {}
    for level in (0.004, 0.04, 0.4, 0.8):
        cache = tmp_path / f"cache{level}"
        for index in (0, 1):
            states = pair.stacked(index, (3, 7, 10, 12))
            size = np.linalg.norm(states, axis=-1, keepdims=True) / np.sqrt(pair.H)
            noisy = states + level * size * rng.normal(size=states.shape)
            pair.write_sample(cache / f"hs_{index}.safetensors", pair.text(index), noisy)
        case = pair.Case(cache=cache, captures=(pair.capture(tmp_path / f"all{level}"),))
        kinds[level] = {slot.kind for slot in name_slots(case.evidence()).slots}
    assert kinds == {0.004: {"same"}, 0.04: {"near"}, 0.4: {"near"}, 0.8: {"none"}}


@pytest.mark.parametrize(("share", "kind"), [(0.1, "near"), (0.2, "split"), (0.45, "split")])
def test_a_slot_on_the_way_to_the_layer_below_is_not_named(tmp_path: Path, share: float, kind: str) -> None:
    cache = tmp_path / "cache"
    for index in range(4):
        states = pair.stacked(index, (3, 7, 10, 12)).copy()
        states[:, 2] += share * (pair.all_states(index)[9] - states[:, 2])
        pair.write_sample(cache / f"hs_{index}.safetensors", pair.text(index), states)
    case = pair.Case(cache=cache, captures=(pair.capture(tmp_path / "all"),))
    slot = name_slots(case.evidence()).slots[2]
    assert slot.kind == kind
    assert slot.lean == pytest.approx(share, abs=0.02)


def test_few_rows_on_the_way_are_not_decided() -> None:
    near = np.array([0.9, 0.3, 0.2])
    assert [judge(near, leaning=(lean, 0.01, 64))[2] for lean in (0.1, 0.3, 0.38, 0.45)] == ["near"] * 2 + [
        "between"
    ] * 2
    assert judge(near, leaning=(0.1, 0.2, 64))[2] == "between"


def test_a_multiple_of_a_state_is_told_from_noise(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for index in (0, 1):
        states = pair.stacked(index, (3, 7, 10, 12)) * np.float32(1.2)
        pair.write_sample(cache / f"hs_{index}.safetensors", pair.text(index), states)
    case = pair.Case(cache=cache, captures=(pair.capture(tmp_path / "all"),))
    assert {slot.kind for slot in name_slots(case.evidence()).slots} == {"scaled"}
    assert "another scale" in case.only("align.states").summary


def test_a_cache_without_states_names_nothing_and_hinders_no_other(tmp_path: Path) -> None:
    case = pair.Case(cache=pair.write_cache(tmp_path / "cache", (3, 7, 10)), captures=(pair.capture(tmp_path / "all"),))
    evidence = case.evidence()
    cache = evidence.caches[0]
    assert name_slots(evidence, replace(cache, path=tmp_path / "finals", slots=0, layout="eagle")).slots == ()
    evidence.memo(("cache", 0), lambda: None)
    assert name_slots(evidence).states == (3, 7, 10)


def test_samples_that_need_a_library_are_left_out_and_told(tmp_path: Path) -> None:
    class Pickled:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> object:
            raise NeedsLibrary("torch", "written by torch, and this python cannot import torch")

    ids, damaged = readable(Pickled())
    assert not ids
    assert "torch" in damaged["0"]


def test_not_a_number_names_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    states = pair.stacked(0, (3, 7, 10, 12)).copy()
    states[:, 1], states[:, 2] = np.nan, 0
    pair.write_sample(cache / "hs_0.safetensors", pair.text(0), states)
    naming = name_slots(pair.Case(cache=cache, captures=(pair.capture(tmp_path / "all"),)).evidence())
    assert [slot.kind for slot in naming.slots] == ["same", "empty", "empty"]


def test_a_damaged_file_is_left_out_and_told(tmp_path: Path) -> None:
    cache = pair.write_cache(tmp_path / "cache", (1, 5, 9))
    whole = (cache / "hs_2.safetensors").read_bytes()
    (cache / "hs_2.safetensors").write_bytes(whole[: len(whole) // 2])
    naming = name_slots(pair.Case(cache=cache, captures=(pair.capture(tmp_path / "all"),)).evidence())
    assert naming.states == (1, 5, 9)
    assert len(naming.unreadable) == 1
    assert "truncated" in naming.unreadable[0]


def test_what_the_engine_fed_is_named_by_numbers_too(tmp_path: Path) -> None:
    served, full = pair.capture(tmp_path / "fed", ks=(0, 3, 7), skip=16), pair.capture(tmp_path / "all")
    assert name_served(pair.Case(captures=(served, full)).evidence()).states == (0, 3, 7)


def test_a_capture_of_the_first_layers_does_not_name_its_last_state_by_default() -> None:
    near = np.array([0.9, 0.8, 0.2])
    assert judge(near) == (2, 1, "near")
    assert judge(near, edge=2)[2] == "between"


def test_distance_divides_by_the_cached_row_and_skips_what_is_not_finite() -> None:
    cached = np.array([[3.0, 4.0], [0.0, 0.0], [np.inf, 1.0]], dtype=np.float32)
    state = np.array([[3.0, 3.0], [1.0, 1.0], [1.0, 1.0]], dtype=np.float32)
    assert np.allclose(relative(cached, state), [0.2, np.nan, np.nan], equal_nan=True)


def test_a_text_is_read_whole_as_it_is_slot_by_slot_across_a_gap(tmp_path: Path) -> None:
    cache = pair.Case(cache=pair.write_cache(tmp_path / "cache", (1, 5, 9))).evidence().caches[0]
    (text, *_) = same_texts(cache.samples(0, 0), pair.capture(tmp_path / "all", skip=77).samples)
    text = text.only(np.flatnonzero(text.positions % 5 != 2))
    assert np.array_equal(
        text.captured_states(), np.stack([text.captured_rows(slot) for slot in range(pair.N + 1)], axis=1)
    )


def test_a_median_is_of_what_is_finite_and_needs_half_of_it() -> None:
    values = np.random.default_rng(0).normal(size=(40, 9))
    values[values > np.linspace(-2, 2, 40)[:, None]] = np.nan
    for row in values:
        kept = row[np.isfinite(row)]
        assert middle(row) == (np.median(kept) if len(kept) else np.inf)
        assert median(row) == (np.median(kept) if len(kept) >= 5 else pytest.approx(np.nan, nan_ok=True))
    assert np.array_equal(medians(values), [median(row) for row in values], equal_nan=True)
    assert np.isnan(median(np.zeros(0)))


def test_texts_are_paired_by_their_longest_common_beginning() -> None:
    class Sample:
        def __init__(self, ids: list[int]) -> None:
            self.token_ids = np.array(ids)
            self.positions = np.arange(len(ids))
            self.length = len(ids)

    cached = [Sample([1] * 19 + [2]), Sample([1] * 19 + [3]), Sample([4] * 20)]
    pairs = list(same_texts(cached, [Sample([1] * 19 + [3, 5]), Sample([4] * 7), Sample([1] * 19 + [2])]))
    assert [(item.index, len(item.positions)) for item in pairs] == [(1, 20), (0, 20)]
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 2, 4, 5])) == 2


def test_a_reference_capture_of_the_first_layers_names_the_low_slot_only(tmp_path: Path) -> None:
    low = pair.capture(tmp_path / "low", ks=(0, 1, 2, 3, 4, 5))
    case = pair.Case(cache=pair.write_cache(tmp_path / "cache", (3, 7, 10)), captures=(replace(low, kind="reference"),))
    naming = name_slots(case.evidence())
    assert [slot.k for slot in naming.slots if slot.decided] == [3]
    assert naming.partial
    finding = case.only("align.states")
    assert finding.verdict is Verdict.UNKNOWN
    assert "higher one" in finding.summary or "not decided" in finding.summary
