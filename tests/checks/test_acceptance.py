"""From hits to acceptance: the walk, the products per anchor, and intervals."""

from __future__ import annotations

import numpy as np
import pytest

from checks.acceptance import accept_length, accuracy, paired_gain, student, walk


def hits(*rows: str) -> np.ndarray:
    return np.array([[letter == "x" for letter in row] for row in rows])


def test_the_walk_goes_past_what_was_accepted() -> None:
    one = hits("x.xx", "x..x")
    assert walk(one, np.ones(4, dtype=bool)) == [(0, 2), (3, 2)]


def test_a_round_starts_only_where_it_may() -> None:
    assert walk(hits("....", "xxxx"), np.array([False, True, False, True])) == [(1, 0), (3, 0)]


def test_a_later_hit_after_a_miss_is_not_accepted() -> None:
    assert walk(hits(".", "x", "x"), np.ones(1, dtype=bool)) == [(0, 0)]


def test_walking_and_averaging_differ_when_hard_tokens_cluster() -> None:
    one = hits("x" * 6 + "." * 6 + "x" * 6)
    valid = np.ones(18, dtype=bool)
    assert accept_length([one], [valid]).mean == pytest.approx(18 / 12)
    assert accuracy([one], [valid]).marginal == pytest.approx((12 / 18,))


def test_conditional_accuracy_is_of_anchors_not_of_means() -> None:
    seen = accuracy([hits("xx..", "x.x.", "xxxx")], [np.ones(4, dtype=bool)])
    assert seen.marginal == pytest.approx((0.5, 0.5, 1.0))
    assert seen.conditional == pytest.approx((0.5, 0.5, 1.0))
    assert seen.anchors == 4


def test_the_gain_of_the_same_hits_is_nothing() -> None:
    rng = np.random.default_rng(0)
    some = [rng.random((3, 40)) < 0.7 for _ in range(9)]
    valid = [np.ones(40, dtype=bool)] * 9
    gain = paired_gain(some, some, valid)
    assert (gain.mean, gain.low, gain.high, gain.units) == (0, 0, 0, 9)


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    rng, covered = np.random.default_rng(5), 0
    for _ in range(300):
        one = [rng.random((1, 50)) < 0.6 for _ in range(10)]
        gain = paired_gain([np.zeros_like(item) for item in one], one, [np.ones(50, dtype=bool)] * 10)
        covered += gain.low <= 0.6 <= gain.high
    assert 0.91 <= covered / 300 <= 0.99


def test_more_comparisons_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    a, b = ([rng.random((3, 40)) < share for _ in range(9)] for share in (0.5, 0.6))
    valid = [np.ones(40, dtype=bool)] * 9
    one, many = paired_gain(a, b, valid), paired_gain(a, b, valid, 40)
    assert many.low < one.low < one.mean == many.mean


def test_few_samples_are_cut_into_blocks() -> None:
    one = np.random.default_rng(0).random((2, 96)) < 0.5
    assert accept_length([one], [np.ones(96, dtype=bool)]).units == 3


def test_one_unit_has_no_interval() -> None:
    assert np.isnan(accept_length([hits("x.x")], [np.ones(3, dtype=bool)]).low)


@pytest.mark.parametrize(
    ("p", "degrees", "value"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 4, 2.7764),
        (0.975, 30, 2.0423),
        (0.9995, 5, 6.8688),
        (0.025, 9, -2.2622),
    ],
)
def test_quantiles_of_student(p: float, degrees: int, value: float) -> None:
    assert student(p, degrees) == pytest.approx(value, rel=2e-3)
