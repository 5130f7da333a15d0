"""Every layout with every fault, in every precision: right inputs pass, faulty ones fail, and the rates are counted."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from checks.catalog import choose, run_checks
from checks.distance import cosine
from checks.finding import ConfigFix, Finding, Verdict
from tests.checks import matrix, pair
from tests.checks.formats import Format, every, texts
from tests.checks.precisions import Rounding, floats, from_zero_point, integers
from tests.checks.trained import RECIPES, trained

COUNT, ROWS = 4, 48
PRECISIONS = tuple(item.name for item in matrix.SHIPPED.precisions)
BATTERY = ("align.states", "align.engine_pair", "data.files", "data.finite")

# How each layout's turn comes: the precision of the target the cache is held against.
_TURNS = itertools.count()


def battery(folder: Path, cache: Path, precision: str) -> list[Finding]:
    """What the checks that judge states and files say of a cache on disk."""
    case = pair.Case(pair.draft_folder(folder / "draft", [2, 6, 9]), cache, engines=(pair.engine(),))
    case.captures = (matrix.SHIPPED.told(precision, tuple(range(COUNT))),)
    found = list(run_checks(case.evidence(), choose(only=BATTERY)))
    assert not [item for item in found if item.check == "internal"], found
    return found


def write(format: Format, folder: Path, make: matrix.Make, seed: int) -> Path:
    chance = np.random.default_rng(seed)
    held = [
        text.but(slots=make(matrix.SHIPPED, pair.STATES, index, chance)[:ROWS])
        for index, text in enumerate(texts(COUNT, rows=ROWS))
    ]
    return format.build(folder / "cache", held)


with_slots = pytest.mark.parametrize("format", every(lambda item: item.slots > 0))


@with_slots
@pytest.mark.parametrize("precision", PRECISIONS)
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
    precision = PRECISIONS[turn % len(PRECISIONS)]
    found = battery(tmp_path, write(format, tmp_path, matrix.FAULTS[fault], turn), precision)
    assert matrix.outcome(found) is Verdict.FAIL, found
    if fault in ("other target", "rotated", "permuted", "not a number", "a token late"):
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


@pytest.mark.parametrize(("ground", "rounds"), list(zip(matrix.GROUNDS, (2, 1, 1, 1))), ids=str)
def test_no_right_input_fails_and_no_faulty_one_passes(tmp_path: Path, ground: matrix.Ground, rounds: int) -> None:
    counts = matrix.measure(ground, tmp_path, rounds)
    print("\n".join(matrix.lines(ground, counts)))
    right = counts.pop("right")
    assert right.outcomes == {Verdict.PASS: right.total}
    for fault, seen in counts.items():
        assert seen.outcomes[Verdict.PASS] == 0, fault
        assert seen.outcomes[Verdict.UNKNOWN] <= 0.05 * seen.total, fault


def test_rows_of_the_token_beside_are_told_where_all_tokens_are_alike(tmp_path: Path) -> None:
    ground, late = matrix.ALIKE, matrix.FAULTS["a token late"]
    states = ground.states("float32", 0)[6]
    assert np.median(cosine(states[1:], states[:-1])) > 0.9
    for precision in PRECISIONS:
        item = matrix.Input(ground, late, (1, 3, 7), precision, (0, 1, 2, 3), ROWS, 0)
        (found,) = item.findings(tmp_path)
        assert found.verdict is Verdict.FAIL
        assert "belong to the token before their own" in found.summary
        assert found.fix is None


def test_the_page_shows_what_was_measured() -> None:
    page = matrix.PAGE.read_text("utf-8")
    measured = page[page.index(matrix.BEGIN) : page.index(matrix.END)]
    parts = measured.split("### ")[1:]
    assert len(parts) == len(matrix.GROUNDS)
    for ground, part in zip(matrix.GROUNDS, parts):
        assert part.startswith(ground.title)
        for kind in ("right", *matrix.FAULTS):
            assert f"| {kind} | {matrix.ROUNDS * len(ground.precisions) * len(ground.sizes)} |" in part
        for precision in ground.precisions[1:]:
            assert f"| {precision.name} |" in part


def test_adjacent_states_of_the_trained_targets_are_alike() -> None:
    for ground in matrix.GROUNDS:
        cosines = [cosine for cosine, _ in matrix.adjacent(ground)]
        assert max(cosines) > 0.98, "with states this far apart the rule would not be tried"
        assert sorted(cosines)[len(cosines) // 2] > 0.95


def test_the_other_targets_were_trained_apart() -> None:
    """By their own numbers: each predicts bytes it has not seen far better than chance, and no weight is another's."""
    for name in RECIPES:
        assert trained(name).loss < 0.5 * np.log(256), name
    for ground in (matrix.SHIPPED, matrix.PROSE):
        mine, theirs = ground.target(), ground.other()
        assert mine.config["hidden_size"] == theirs.config["hidden_size"]
        assert mine.config["num_hidden_layers"] != theirs.config["num_hidden_layers"]
        ours, other = (model.weights["model.embed_tokens.weight"][:128] for model in (mine, theirs))
        assert abs(float(np.median(cosine(ours.astype(np.float32), other.astype(np.float32))))) < 0.2


def test_a_trained_target_predicts_its_text() -> None:
    """The numpy forward over the weights as they are kept reaches what torch reached in training."""
    for name in RECIPES:
        held = trained(name)
        model = matrix.Llama(held.config, held.weights)
        losses = []
        for text in held.texts[:4]:
            logits = model.final(model.states(text)[-1]) @ model.weights["lm_head.weight"].T
            logits = logits - logits.max(-1, keepdims=True)
            chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            losses.append(-chances[np.arange(len(text) - 1), text[1:]].mean())
        assert np.mean(losses) < held.loss + 0.6, name


@pytest.mark.parametrize(
    ("rounding", "step"),
    [
        (partial(integers, bits=8), 1 / 127),
        (partial(integers, bits=4, group=16), 1 / 7),
        (partial(from_zero_point, bits=4, group=16), 2 / 15),
        (partial(floats, mantissa=3, least=-6, most=448.0), 1 / 14),
        (partial(floats, mantissa=1, least=0, most=6.0, group=16), 1 / 3),
    ],
)
def test_roundings_are_as_coarse_as_their_bits(rounding: Rounding, step: float) -> None:
    values = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    out = rounding(values)
    off = np.abs(out - values) / np.abs(values).max(-1, keepdims=True)
    assert 0.02 * step < off.max() < 0.75 * step
    np.testing.assert_allclose(rounding(out), out, rtol=0.2, atol=1e-5)


def test_small_floats_are_those_of_the_format() -> None:
    held = np.array([[0, 0.5, 1, 1.5, 2, 3, 4, 6]], dtype=np.float32)
    np.testing.assert_array_equal(floats(held, mantissa=1, least=0, most=6.0), held)
    near = held + np.array([[0, 0.2, 0.2, 0.2, -0.2, -0.4, 0.9, 0]], dtype=np.float32)
    np.testing.assert_array_equal(floats(near, mantissa=1, least=0, most=6.0), held)
