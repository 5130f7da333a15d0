"""Means and intervals: against tables, and on what a histogram says."""

from __future__ import annotations

import math

import pytest

from console.measure import accept_length, interval, paired, t_975


@pytest.mark.parametrize(
    ("freedom", "table", "within"),
    [
        (1, 12.7062, 1e-3),
        (2, 4.3027, 1e-3),
        (3, 3.1824, 0.03),
        (5, 2.5706, 4e-3),
        (8, 2.3060, 1e-3),
        (19, 2.0930, 1e-4),
        (120, 1.9799, 1e-4),
    ],
)
def test_students_t_against_the_table(freedom: int, table: float, within: float) -> None:
    assert math.isclose(t_975(freedom), table, abs_tol=within)


def test_an_interval_is_the_textbooks() -> None:
    found = interval([4.0, 5.0, 6.0, 5.0, 5.0])
    assert found.mean == 5.0
    assert math.isclose(found.high - found.mean, 2.7764 * math.sqrt(0.5) / math.sqrt(5), abs_tol=0.01)
    assert not interval([1.0]).excludes_zero


def test_pairs_see_what_spread_hides() -> None:
    before = [1.0, 3.0, 5.0, 7.0]
    after = [1.2, 3.1, 5.2, 7.1]
    assert paired(after, before).excludes_zero
    assert interval(before).low < interval(after).mean
    with pytest.raises(ValueError, match="paired"):
        paired(after, before[:2])


def test_accept_length_counts_the_bonus_of_every_step() -> None:
    assert accept_length([21, 5]) == (21 + 10) / 26
    assert accept_length([0, 0, 0, 4]) == 4.0
    assert accept_length([]) is None
    assert accept_length([0]) is None
