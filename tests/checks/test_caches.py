"""Caches: recognised by what the files hold, read slot by slot, and told apart from what is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from checks.caches import layouts, open_cache
from checks.caches.cache import Place, spread
from checks.errors import BadTensors, NeedsLibrary, UnknownLayout
from tests.checks.files import sample, write_cache, write_tensors


def wide(halves: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return (halves.astype(np.uint32) << 16).view(np.float32)


def test_the_safetensors_layout_is_read_slot_by_slot(tmp_path: Path) -> None:
    cache = open_cache(write_cache(tmp_path / "c"))
    assert (cache.layout, cache.files, cache.slots, cache.hidden, cache.final) == ("speculators", 5, 3, 16, "pre")
    assert cache.claim is None
    (first, *_) = cache.samples(0, 0)
    written = sample(seed=0)
    np.testing.assert_array_equal(first.token_ids, written["token_ids"])
    assert first.length == 7
    assert first.loss_mask is None
    for slot in range(3):
        np.testing.assert_array_equal(first.slot(slot, 2, 6), wide(written["hidden_states"])[2:6, slot])
    final = first.final(0, 7)
    assert final is not None
    np.testing.assert_array_equal(final, wide(written["hidden_states"])[:, 3])
    with pytest.raises(BadTensors, match="no aux slot 3"):
        first.slot(3, 0, 1)


@pytest.mark.parametrize("name", ["{}.safetensors", "cmpl-{}-ab.safetensors", "model-{}.safetensors"])
def test_renamed_files_are_recognised_by_their_keys(tmp_path: Path, name: str) -> None:
    cache = open_cache(write_cache(tmp_path / "c", name=name))
    assert (cache.layout, cache.files, cache.slots, cache.final) == ("vllm", 5, 3, "unknown")


def test_one_file_is_a_cache(tmp_path: Path) -> None:
    write_cache(tmp_path / "c")
    cache = open_cache(tmp_path / "c" / "hs_3.safetensors")
    assert cache.files == 1
    np.testing.assert_array_equal(cache.samples(16, 0)[0].token_ids, sample(seed=3)["token_ids"])


def test_files_lie_one_folder_deeper_and_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    write_cache(tmp_path / "prepared" / "hidden_states", files=12)
    (tmp_path / "prepared" / "dataset_info.json").write_text("{}")
    cache = open_cache(tmp_path / "prepared")
    assert [item.name for item in cache.samples(0, 0)] == [f"hidden_states/hs_{i}.safetensors" for i in range(12)]


def test_a_bare_dump_of_as_many_blocks_as_the_draft_reads_has_no_final_state(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "c", name="{}.safetensors", blocks=3)
    cache = open_cache(folder, slots=3)
    assert (cache.slots, cache.final) == (3, "none")
    assert cache.samples(1, 0)[0].final(0, 2) is None
    assert open_cache(folder).slots == 2
    # speculators' own files always end with the final state, whatever the draft at hand reads.
    assert open_cache(write_cache(tmp_path / "own", blocks=3), slots=3).slots == 2


def test_what_the_user_believes_is_the_claim(tmp_path: Path) -> None:
    cache = open_cache(write_cache(tmp_path / "c"), states=(3, 31, 59))
    assert cache.claim is not None
    assert (cache.claim.states, cache.claim.by) == ((3, 31, 59), "deployment")
    assert cache.slots == 3
    assert open_cache(tmp_path / "c", states=(1, 2, 3, 4)).final == "none"


def test_a_mask_in_the_file_is_read(tmp_path: Path) -> None:
    mask = np.array([0, 0, 1, 1, 1, 1, 0])
    write_tensors(tmp_path / "c" / "a.safetensors", {**sample(), "loss_mask": mask})
    read = open_cache(tmp_path / "c").samples(1, 0)[0].loss_mask
    assert read is not None
    assert read.tolist() == mask.tolist()


def test_one_damaged_file_does_not_hide_the_cache(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "c")
    first = folder / "hs_0.safetensors"
    first.write_bytes(first.read_bytes()[:-4])
    cache = open_cache(folder)
    assert cache.slots == 3
    with pytest.raises(BadTensors, match="truncated"):
        cache.samples(0, 0)[0]
    for file in folder.iterdir():
        file.write_bytes(b"nothing")
    with pytest.raises(BadTensors):
        open_cache(folder)


def test_a_file_of_another_width_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "c")
    write_tensors(folder / "hs_2.safetensors", sample(hidden=8))
    with pytest.raises(BadTensors, match="rest of the cache 3 states of width 16"):
        open_cache(folder).samples(0, 0)[2]


def test_an_unknown_layout_shows_what_a_file_holds(tmp_path: Path) -> None:
    write_tensors(tmp_path / "c" / "x.safetensors", {"aux": np.zeros((4, 48), dtype=np.float32), "ids": np.arange(4)})
    with pytest.raises(UnknownLayout) as caught:
        open_cache(tmp_path / "c")
    assert "aux [4, 48] F32" in str(caught.value)
    assert "ids [4] I64" in str(caught.value)
    assert "speculators-v1" in str(caught.value)


def test_an_empty_folder_and_a_wrong_layout_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownLayout, match="holds no cache files"):
        open_cache(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UnknownLayout, match=r"notes\.txt"):
        open_cache(tmp_path)
    with pytest.raises(UnknownLayout, match="'spec' is not known; known are angelslim"):
        open_cache(write_cache(tmp_path / "c"), layout="spec")
    with pytest.raises(UnknownLayout, match="not a cache of layout 'speculators-v1'"):
        open_cache(tmp_path / "c", layout="speculators-v1")


def test_each_reader_module_is_found_by_being_there() -> None:
    assert len(layouts()) == len(set(layouts())) == 16
    assert {"specforge", "speculators", "speculators-v1", "vllm", "deepspec"} < set(layouts())


def test_samples_are_spread_and_the_same_for_the_same_seed() -> None:
    paths = [Place(Path(str(index))) for index in range(1000)]
    chosen = [int(str(place.path)) for place in spread(paths, 10, seed=3)]
    assert [index // 100 for index in chosen] == list(range(10))
    assert spread(paths, 10, seed=3) == spread(paths, 10, seed=3) != spread(paths, 10, seed=4)
    assert spread(paths, 0, seed=0) == tuple(paths) == spread(paths, 1000, seed=0)
    assert len(spread(paths, 999, seed=0)) == 999


def test_a_sample_is_opened_when_it_is_asked_for(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "c")
    samples = open_cache(folder).samples(0, 0)
    (folder / "hs_4.safetensors").unlink()
    assert len(samples) == 5
    assert len(samples[:2]) == 2
    with pytest.raises(BadTensors, match="cannot be read"):
        samples[4]


def test_torch_files_without_torch_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    (tmp_path / "data_0.pt").write_bytes(b"PK")
    with pytest.raises(NeedsLibrary, match="cannot import torch") as caught:
        open_cache(tmp_path)
    assert caught.value.library == "torch"


def test_the_side_file_claims_states_even_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ids name the state after a layer, and its last one is the final state's."""
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    (tmp_path / "data_0.pt").write_bytes(b"PK")
    (tmp_path / "data_config.json").write_text(
        '{"version": "2.0", "hidden_states": {"layer_ids": [2, 30, 58, 60]}, "model": {"hidden_size": 7168}}'
    )
    cache = open_cache(tmp_path)
    assert (cache.layout, cache.slots, cache.hidden, cache.final) == ("speculators-v1", 3, 7168, "pre")
    assert cache.claim is not None
    assert (cache.claim.states, cache.claim.by) == ((3, 31, 59), "data_config.json")
    with pytest.raises(NeedsLibrary):
        cache.samples(1, 0)[0]
