"""Every layout with every fault, in every precision: right inputs pass, faulty ones fail, and the rates are counted."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from checks.catalog import choose, run_checks
from checks.finding import ConfigFix, Finding, Verdict
from tests.checks import matrix, pair
from tests.checks.formats import Format, every, texts

COUNT, ROWS = 4, 48
BATTERY = ("align.states", "align.engine_pair", "data.files", "data.finite")

# How each layout's turn comes: the precision of the target the cache is held against.
_TURNS = itertools.count()


def battery(folder: Path, cache: Path, precision: str) -> list[Finding]:
    """What the checks that judge states and files say of a cache on disk."""
    case = pair.Case(pair.draft_folder(folder / "draft", [2, 6, 9]), cache, engines=(pair.engine(),))
    case.captures = (matrix.told(precision, tuple(range(COUNT))),)
    found = list(run_checks(case.evidence(), choose(only=BATTERY)))
    assert not [item for item in found if item.check == "internal"], found
    return found


def write(format: Format, folder: Path, make: matrix.Make, seed: int) -> Path:
    chance = np.random.default_rng(seed)
    held = [
        text.but(slots=make(pair.STATES, index, chance)[:ROWS]) for index, text in enumerate(texts(COUNT, rows=ROWS))
    ]
    return format.build(folder / "cache", held)


with_slots = pytest.mark.parametrize("format", every(lambda item: item.slots > 0))


@with_slots
@pytest.mark.parametrize("precision", matrix.PRECISIONS)
def test_right_inputs_pass_in_every_layout_and_precision(tmp_path: Path, format: Format, precision: str) -> None:
    found = battery(tmp_path, write(format, tmp_path, matrix.RIGHT, 0), precision)
    assert matrix.outcome(found) is Verdict.PASS, found
    (states, *kinship) = (item for item in found if item.check == "align.states")
    assert states.verdict is Verdict.PASS
    # Four bits are more than rounding, which is said, and is no alarm.
    assert [item.verdict for item in kinship] == [Verdict.INFO] * precision.startswith("4")


@with_slots
@pytest.mark.parametrize("fault", matrix.FAULTS)
def test_each_fault_fails_in_every_layout(tmp_path: Path, format: Format, fault: str) -> None:
    turn = next(_TURNS)
    precision = matrix.PRECISIONS[turn % len(matrix.PRECISIONS)]
    found = battery(tmp_path, write(format, tmp_path, matrix.FAULTS[fault], turn), precision)
    assert matrix.outcome(found) is Verdict.FAIL, found
    if fault in ("other target", "rotated", "permuted", "not a number"):
        # No offset fits, so no ids are offered; those of a side file may be, for what is served is not what it names.
        assert not [item for item in found if isinstance(item.fix, ConfigFix)]


@with_slots
def test_a_truncated_file_fails_in_every_layout(tmp_path: Path, format: Format) -> None:
    cache = write(format, tmp_path, matrix.RIGHT, 0)
    path = cache / format.first
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.7)])
    found = battery(tmp_path, cache, "bfloat16")
    assert matrix.outcome(found) is Verdict.FAIL, found
    assert {item.check for item in found if item.verdict is Verdict.FAIL} == {"data.files"}


def test_no_right_input_fails_and_no_faulty_one_passes(tmp_path: Path) -> None:
    counts = matrix.measure(tmp_path, rounds=2)
    print("\n".join(matrix.lines(counts)))
    right = counts.pop("right")
    assert right == {Verdict.PASS: right.total()}
    for fault, seen in counts.items():
        assert seen[Verdict.PASS] == 0, fault
        assert seen[Verdict.UNKNOWN] <= 0.05 * seen.total(), fault


def test_the_page_shows_what_was_measured() -> None:
    page = matrix.PAGE.read_text("utf-8")
    measured = page[page.index(matrix.BEGIN) : page.index(matrix.END)]
    for kind in ("right", *matrix.FAULTS):
        assert f"| {kind} | {matrix.ROUNDS * len(matrix.PRECISIONS) * len(matrix.LENGTHS)} |" in measured
    for precision in matrix.PRECISIONS[1:]:
        assert f"| {precision} |" in measured


def test_adjacent_states_of_the_trained_target_are_alike() -> None:
    cosines = [cosine for cosine, _ in matrix.adjacent()]
    assert max(cosines) > 0.98, "with states this far apart the rule would not be tried"
    assert sorted(cosines)[len(cosines) // 2] > 0.95
