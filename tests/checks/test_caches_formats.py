"""Every layout in use: recognised, read right, and its states named by numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from checks.caches import Hints, open_cache
from checks.errors import BadTensors, UnknownLayout
from checks.finding import Verdict
from tests.checks import pair
from tests.checks.files import bf16
from tests.checks.formats import FORMATS, Format, every, texts

HINTS = Hints(slots=3, hidden=pair.H, vocab=260, layers=pair.N)


def rounded(values: np.ndarray) -> np.ndarray:
    return (bf16(values).astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("format", every())
def test_it_is_recognised_and_read(tmp_path: Path, format: Format) -> None:
    held = texts()
    cache = open_cache(format.build(tmp_path / "c", held), hints=HINTS)
    assert (cache.layout, cache.slots, cache.hidden, cache.final) == (format.layout, format.slots, pair.H, format.final)
    assert (cache.claim.states if cache.claim else None) == format.claim
    samples = cache.samples(0, 0)
    assert len(samples) == len(held)
    assert len({sample.name for sample in samples}) == len(held)
    for sample, text in zip(samples, held):
        np.testing.assert_array_equal(sample.token_ids, text.ids)
        assert (sample.loss_mask is not None) == format.mask
        if sample.loss_mask is not None:
            np.testing.assert_array_equal(sample.loss_mask, text.mask)
        for slot in range(cache.slots):
            np.testing.assert_array_equal(sample.slot(slot, 5, 30), rounded(text.slots[5:30, slot]))
        final = sample.final(3, 9)
        assert (final is None) == (format.final == "none")
        if final is not None:
            post = format.final == "post" or format.layout == "deepspec" or format.id == "modelopt-hf"
            np.testing.assert_array_equal(final, rounded((text.post if post else text.pre)[3:9]))
        with pytest.raises(BadTensors):
            sample.slot(cache.slots, 0, 1)


@pytest.mark.parametrize("format", every(lambda item: item.slots > 0))
@pytest.mark.parametrize("ks", [(3, 7, 10), (2, 6, 9), (0, 3, 7)], ids=["trained", "one-early", "embedding"])
def test_its_states_are_named_by_numbers(tmp_path: Path, format: Format, ks: tuple[int, ...]) -> None:
    folder = format.build(tmp_path / "c", texts(ks=ks))
    capture = pair.capture(tmp_path / "capture", texts=(0, 1, 2, 3))
    case = pair.Case(
        draft=pair.draft_folder(tmp_path / "d", [k - 1 for k in ks]), cache=folder, captures=(capture,),
        engines=(pair.engine(),),
    )  # fmt: skip
    finding = case.only("align.states")
    assert [slot["k"] for slot in finding.evidence["slots"]] == list(ks)
    assert finding.evidence["expected"] == list(ks)
    refuted = format.claim is not None and format.claim != ks
    assert finding.verdict is (Verdict.WARN if refuted else Verdict.PASS), finding.summary


@pytest.mark.parametrize("format", every(lambda item: item.final != "none"))
def test_numbers_say_which_side_of_the_norm_the_final_state_is_on(tmp_path: Path, format: Format) -> None:
    case = pair.Case(cache=format.build(tmp_path / "c", texts()))
    finding = case.only("align.final")
    pre = format.final == "pre" or format.layout == "tensorrt-llm" or format.id == "modelopt-vllm"
    assert finding.evidence["measured"] == ("pre" if pre else "post")
    assert finding.verdict is (Verdict.INFO if format.final == "unknown" else Verdict.PASS), finding.summary


@pytest.mark.parametrize("format", every())
def test_what_cannot_be_told_from_a_file_is_asked_for(tmp_path: Path, format: Format) -> None:
    """Without a target or a draft, a concat alone is no cache of three states, nor of any other number."""
    folder = format.build(tmp_path / "c", texts(2))
    silent = {"specforge-concat", "specforge-final", "specforge-dflash"}
    if format.layout in silent:
        with pytest.raises(UnknownLayout, match="give the target"):
            open_cache(folder)
        if format.slots:
            assert open_cache(folder, states=pair.STATES).slots == 3
        return
    blocks = 2 if format.layout == "vllm" else format.slots
    cache = open_cache(folder)
    assert (cache.layout, cache.slots) == (format.layout, blocks)


@pytest.mark.parametrize("format", every())
def test_its_name_opens_it_and_no_other(tmp_path: Path, format: Format) -> None:
    folder = format.build(tmp_path / "c", texts(2))
    assert open_cache(folder, format.layout, hints=HINTS).layout == format.layout
    for other in {item.layout for item in FORMATS} - {format.layout}:
        with pytest.raises(UnknownLayout):
            open_cache(folder, other, hints=HINTS)
