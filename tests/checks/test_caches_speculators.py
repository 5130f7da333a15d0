"""speculators' own checks of its cached files, and ours on the same files."""

from __future__ import annotations

import importlib.util
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from checks.caches import open_cache
from checks.caches.container import prove
from checks.errors import BadTensors
from checks.finding import Verdict
from tests.checks import pair
from tests.checks.formats import FORMATS, texts
from tests.checks.test_data_formats import findings, of

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def theirs() -> Any:
    """The module that guards what speculators trains on, without its package, which imports all that training needs."""
    path = distribution("speculators").locate_file("speculators/data_generation/offline.py")
    spec = importlib.util.spec_from_file_location("speculators_offline", str(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_it_accepts_we_read_alike(theirs: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    folder = FORMATS[0].build(tmp_path / "c", texts(4))
    cache = open_cache(folder)
    assert theirs.get_existing_hidden_state_indices(folder) == [0, 1, 2, 3]
    for number, sample in enumerate(cache.samples(0, 0)):
        loaded = load_file(folder / f"hs_{number}.safetensors")
        theirs.check_hidden_states(loaded, pair.text(number)[:96].tolist())
        for slot in range(cache.slots):
            assert (loaded["hidden_states"][:, slot].float().numpy() == sample.slot(slot, 0, 96)).all()


@pytest.mark.parametrize("cut", [1, 100, 30_000, 98_000])
def test_what_it_calls_corrupt_we_call_damaged(theirs: Any, tmp_path: Path, cut: int) -> None:
    folder = FORMATS[0].build(tmp_path / "c", texts(4))
    path = folder / "hs_2.safetensors"
    path.write_bytes(path.read_bytes()[:-cut])
    assert list(theirs.find_corrupt_hidden_state_indices(folder, [0, 1, 2, 3])) == [2]
    with pytest.raises(BadTensors):
        prove(path)
    failed = [item for item in of(findings(folder), "data.files") if item.verdict is Verdict.FAIL]
    assert [item.evidence["file"] for item in failed] == ["hs_2.safetensors"]


def test_what_it_refuses_to_train_on_we_fail(theirs: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    held = texts(4)
    bad = held[1].slots.copy()
    bad[70, 2, 3] = float("nan")
    held[1] = held[1].but(slots=bad)
    held[3] = held[3].but(ids=held[3].ids[:-1])
    folder = FORMATS[0].build(tmp_path / "c", held)
    for number, says in ((1, "non-finite"), (3, "doesn't match num tokens")):
        with pytest.raises(ValueError, match=says):
            theirs.check_hidden_states(load_file(folder / f"hs_{number}.safetensors"), held[number].ids.tolist())
    found = findings(folder)
    assert [item.verdict for item in (*of(found, "data.finite"), *of(found, "data.pairing"))] == [Verdict.FAIL] * 2
