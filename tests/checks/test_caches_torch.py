"""The layout of speculators 0.3 and 0.4, written by torch as its generator wrote it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.answer import answer
from checks.caches import open_cache
from checks.errors import BadTensors, UnknownLayout

pytestmark = pytest.mark.torch


def states(seed: int, rows: int = 6, blocks: int = 4, hidden: int = 8) -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, hidden, generator=generator).to(torch.bfloat16) for _ in range(blocks)]


def write(folder: Path, files: int = 12) -> Path:
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    for index in range(files):
        torch.save(
            {
                "input_ids": torch.arange(6) + index,
                "hidden_states": states(index),
                "loss_mask": torch.tensor([0, 0, 1, 1, 1, 0]),
            },
            folder / f"data_{index}.pt",
        )
    config = {"version": "2.0", "hidden_states": {"layer_ids": [2, 6, 9, 11]}, "model": {"hidden_size": 8}}
    (folder / "data_config.json").write_text(json.dumps(config))
    (folder / "sample_lengths.json").write_text(json.dumps({str(index): 6 for index in range(files)}))
    return folder


def test_states_ids_mask_and_claim_are_read(tmp_path: Path) -> None:
    cache = open_cache(write(tmp_path / "c"))
    assert (cache.layout, cache.files, cache.slots, cache.hidden, cache.final) == ("speculators-v1", 12, 3, 8, "pre")
    assert cache.claim is not None
    assert cache.claim.states == (3, 7, 10)
    sample = cache.samples(0, 0)[10]
    assert sample.name == "data_10.pt"
    assert sample.token_ids.tolist() == list(range(10, 16))
    assert sample.loss_mask is not None
    assert sample.loss_mask.tolist() == [0, 0, 1, 1, 1, 0]
    written = [state.float().numpy() for state in states(10)]
    for slot in range(3):
        np.testing.assert_array_equal(sample.slot(slot, 1, 5), written[slot][1:5])
    final = sample.final(0, 6)
    assert final is not None
    np.testing.assert_array_equal(final, written[3])


def test_one_file_with_its_side_file_beside_it(tmp_path: Path) -> None:
    cache = open_cache(write(tmp_path / "c") / "data_3.pt")
    assert cache.files == 1
    assert cache.claim is not None


def test_without_a_side_file_nothing_is_claimed(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    (folder / "data_config.json").write_text("{")
    assert open_cache(folder).claim is None
    assert open_cache(folder, states=(1, 5, 9)).claim is not None


def test_a_side_file_of_another_count_claims_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    (folder / "data_config.json").write_text('{"hidden_states": {"layer_ids": [2, 6, 9]}}')
    assert open_cache(folder).claim is None


class Trap:
    """What a hostile pickle is made of."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('this was run')",))


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    import torch

    folder = write(tmp_path / "c", files=1)
    torch.save({"hidden_states": Trap()}, folder / "data_0.pt")
    with pytest.raises(BadTensors, match=r"holds a Python object \(exec\)"):
        open_cache(folder).samples(0, 0)[0]
    (folder / "data_0.pt").write_bytes(pickle.dumps(Trap()))
    (folder / "data_config.json").unlink()
    with pytest.raises(BadTensors):
        open_cache(folder)


@pytest.mark.parametrize(
    "raw", [b"", b"PK\x03\x04", b"\x80\x02", b"hello" * 100], ids=["empty", "zip", "pickle", "text"]
)
def test_a_damaged_file_is_bad_tensors(tmp_path: Path, raw: bytes) -> None:
    folder = write(tmp_path / "c", files=1)
    whole = (folder / "data_0.pt").read_bytes()
    for content in (raw, whole[: len(whole) // 2]):
        (folder / "data_0.pt").write_bytes(content)
        # Its names and its side file still say what it is; the file says nothing.
        with pytest.raises(BadTensors):
            open_cache(folder).samples(0, 0)[0]
    (folder / "data_config.json").unlink()
    with pytest.raises(BadTensors):
        open_cache(folder)


def test_another_layout_shows_keys_shapes_and_dtypes(tmp_path: Path) -> None:
    import torch

    value = {"input_ids": torch.arange(3), "aux_hidden_state": torch.zeros(1, 3, 24, dtype=torch.bfloat16)}
    torch.save(value, tmp_path / "data_0.ckpt")
    with pytest.raises(UnknownLayout) as caught:
        open_cache(tmp_path)
    assert "aux_hidden_state [1, 3, 24] BF16" in str(caught.value)


def test_the_report_names_the_layout(tmp_path: Path) -> None:
    report = answer({"caches": [{"path": str(write(tmp_path / "c"))}], "only": ["cfg.aux_ids"]}, lambda event: None)
    (cache,) = report["inputs"]["cache"]
    assert {key: cache[key] for key in ("layout", "files", "sampled")} == {
        "layout": "speculators-v1",
        "files": 12,
        "sampled": 12,
    }
