"""Files of torch that are damaged, hostile, compressed, old or strange: a reader says so, and nothing more."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks.caches import Hints, open_cache
from checks.caches.torchfile import load
from checks.errors import BadTensors, CheckError, UnknownLayout
from checks.finding import Verdict
from tests.checks import pair
from tests.checks.files import bf16, write_tensors
from tests.checks.formats import FORMATS, texts
from tests.checks.test_data import small, walk
from tests.checks.test_data_formats import findings, of

pytestmark = pytest.mark.torch

HINTS = Hints(slots=3, hidden=pair.H, vocab=260, layers=pair.N)
TORCH = [item for item in FORMATS if item.torch]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, str]]:
    """The first file of every layout, and its name."""
    out = {}
    for item in TORCH:
        folder = item.build(tmp_path_factory.mktemp("written") / "c", texts(2, rows=24))
        out[item.id or item.layout] = ((folder / item.first).read_bytes(), item.first)
    return out


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_damage_makes_a_reader_raise_anything_else(
    data: st.DataObject, written: dict[str, tuple[bytes, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw, name = written[data.draw(st.sampled_from(sorted(written)))]
    broken = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(
            st.integers(0, min(len(broken) - 1, 3000)) | st.integers(max(len(broken) - 1500, 0), len(broken) - 1)
        )
        broken[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 200) | st.just(0))
    path = tmp_path_factory.mktemp("broken") / Path(name).name
    path.write_bytes(bytes(broken[: len(broken) - cut]))
    walk(path)


def values() -> Any:
    """What a dict under the keys of the layouts may hold."""
    import torch

    shapes = st.lists(st.integers(0, 4), max_size=4)
    dtypes = st.sampled_from(
        [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
    )
    tensors = st.builds(lambda shape, dtype: torch.zeros(shape).to(dtype), shapes, dtypes)
    spread = st.builds(lambda count: torch.zeros(1).expand(count, 4), st.sampled_from([3, 2**40]))
    sparse = st.just(torch.zeros(3, 4).to_sparse())
    one = tensors | spread | sparse | st.none() | st.integers() | st.text(max_size=3)
    return one | st.lists(one, max_size=3)


KEYS = st.sampled_from(
    (
        *("input_ids", "loss_mask", "hidden_state", "hidden_states", "aux_hidden_state", "aux_hidden_states", "target"),
        *("target_hiddens", "target_last_hidden_states", "target_probs", "hidden_state_features", "attention_mask"),
    )
)


@given(data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_value_makes_a_reader_raise_anything_else(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import torch

    one = st.dictionaries(KEYS, values(), max_size=6)
    value = data.draw(one | st.lists(one, max_size=2))
    name = data.draw(st.sampled_from(["data_0.ckpt", "data_0.pt"]))
    path = tmp_path_factory.mktemp("value") / name
    torch.save(value, path)
    walk(path)


def test_a_gzip_file_that_ends_early_is_told_by_the_sample(tmp_path: Path) -> None:
    packed = next(item for item in TORCH if item.id == "specforge-gz")
    folder = packed.build(tmp_path / "c", texts(4))
    second = folder / packed.first.replace("data_0", "data_1")
    second.write_bytes(second.read_bytes()[:-40])
    failed = [item for item in of(findings(folder), "data.files") if item.verdict is Verdict.FAIL]
    assert [item.evidence["file"] for item in failed] == ["rows_0-2000/data_1.ckpt.gz"]
    assert "ends early" in failed[0].summary


def test_unpacking_is_bounded_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr("checks.caches.torchfile.MAX_UNPACKED", 1 << 20)
    (tmp_path / "data_0.ckpt.gz").write_bytes(gzip.compress(bytes(3 << 20)))
    with pytest.raises(BadTensors, match="unpacks to more than"):
        open_cache(tmp_path / "data_0.ckpt.gz")
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    packed = next(item for item in TORCH if item.id == "specforge-gz")
    sample = open_cache(packed.build(tmp_path / "c", texts(1))).samples(0, 0)[0]
    assert list(scratch.iterdir()) == []
    assert sample.slot(0, 0, 4).shape == (4, pair.H)


class Trap:
    """What a hostile pickle is made of."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('this was run')",))


@pytest.mark.parametrize("name", ["data_0.ckpt", "data_0.ckpt.gz", "data_0.pt"])
def test_nothing_in_a_pickle_is_run(tmp_path: Path, name: str) -> None:
    import torch

    torch.save({"input_ids": Trap()}, tmp_path / "trap")
    for raw in ((tmp_path / "trap").read_bytes(), pickle.dumps({"input_ids": Trap()})):
        (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        with pytest.raises(CheckError):
            open_cache(tmp_path / name)


def archive(names: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, raw in names.items():
            packed.writestr(name, raw)
    return out.getvalue()


def saved(value: object) -> bytes:
    import torch

    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


CALL = b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00lsq\x00\x85R."
REFUSED = {
    "a function": (lambda: saved({"input_ids": Trap()}), "holds a Python object (exec)"),
    "a bare pickle of one": (lambda: pickle.dumps({"a": Trap()}, 2), "holds a Python object (exec)"),
    "a call": (lambda: archive({"a/data.pkl": CALL, "a/version": b"3\n"}), "holds a Python object (os.system)"),
    "arrays of numpy": (lambda: saved({"input_ids": np.arange(4)}), "holds a Python object (numpy."),
    "another protocol": (lambda: pickle.dumps({"a": Trap()}, 4), "not a file that torch wrote"),
    "a page": (lambda: b"<!DOCTYPE html><html>please log in</html>", "not a file that torch wrote"),
    "half of it": (lambda: saved({"input_ids": np.arange(4).tolist()})[:300], "truncated"),
    "another archive": (lambda: archive({"readme.txt": b"x"}), "an archive that torch did not write"),
    "no pickle": (lambda: archive({"a/data.pkl": b"\x80\x02garbage", "a/version": b"3\n"}), "a damaged pickle"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("file", ["data_0.ckpt", "data_0.ckpt.gz"])
def test_what_is_refused_says_why_and_what_to_do_in_words_of_our_own(tmp_path: Path, name: str, file: str) -> None:
    make, why = REFUSED[name]
    raw = make()
    (tmp_path / file).write_bytes(gzip.compress(raw) if file.endswith(".gz") else raw)
    with pytest.raises(BadTensors) as caught:
        open_cache(tmp_path / file)
    said = str(caught.value)
    assert why in said
    assert "write" in said.partition(why)[2]
    assert said.isprintable()
    # torch's own text advises to load the file without weights_only.
    assert not [word for word in ("weights_only", "torch.load", "add_safe_globals", "miniz", "trust") if word in said]


def test_files_of_before_torch_1_6_are_read(tmp_path: Path) -> None:
    import torch

    value = {
        "input_ids": torch.arange(6),
        "loss_mask": torch.ones(6, dtype=torch.int64),
        "hidden_state": torch.ones(6, 8),
    }
    torch.save(value, tmp_path / "data_0.ckpt", _use_new_zipfile_serialization=False)
    cache = open_cache(tmp_path)
    assert (cache.layout, cache.slots, cache.hidden) == ("eagle", 0, 8)
    assert cache.samples(0, 0)[0].final(0, 2) is not None
    packed = tmp_path / "data_0.ckpt.gz"
    packed.write_bytes(gzip.compress((tmp_path / "data_0.ckpt").read_bytes()))
    assert load(packed)["input_ids"].tolist() == list(range(6))


def test_logits_are_told_from_states_by_the_vocabulary_where_widths_do_not(tmp_path: Path) -> None:
    """A vocabulary that divides the concat's width looks like a state, until the target says otherwise."""
    import torch

    value = {
        "input_ids": torch.arange(6),
        "loss_mask": torch.ones(6, dtype=torch.int64),
        "aux_hidden_state": torch.ones(1, 6, 48),
        "hidden_state": torch.ones(1, 6, 24),
    }
    torch.save(value, tmp_path / "data_0.ckpt")
    assert open_cache(tmp_path).layout == "specforge"
    known = open_cache(tmp_path, hints=Hints(hidden=16, vocab=24))
    assert (known.layout, known.slots, known.final) == ("specforge-logits", 3, "none")


def test_samples_of_one_file_are_chosen_one_by_one(tmp_path: Path) -> None:
    item = next(item for item in TORCH if item.layout == "angelslim")
    cache = open_cache(item.build(tmp_path / "c", texts(6)), hints=HINTS)
    assert cache.files == 3
    names = [sample.name for sample in cache.samples(0, 0)]
    assert names == [f"part/{start}/batch_{start}.ckpt#{row}" for start in (0, 2, 4) for row in (0, 1)]
    assert len(cache.samples(2, 0)) == 2
    assert len(cache.samples(5, 0)) == 5


def test_eight_bit_states_with_scales_are_read(tmp_path: Path) -> None:
    """As the newest connector writes them: one scale a token."""
    import torch
    from safetensors.torch import save_file

    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        folder = tmp_path / str(kind)
        folder.mkdir()
        for number, text in enumerate(texts(2)):
            states = torch.from_numpy(np.concatenate([text.slots, text.pre[:, None]], axis=1))
            scale = (states.abs().amax(dim=(1, 2), keepdim=True) / torch.finfo(kind).max).clamp(min=1e-12)
            small = (states / scale).to(kind)
            ids = torch.from_numpy(text.ids.copy())
            save_file(
                {"hidden_states": small, "token_ids": ids, "hidden_states_scales": scale},
                folder / f"hs_{number}.safetensors",
            )
            expected = (small.float() * scale).numpy()
            sample = open_cache(folder).samples(0, 0)[number]
            for slot in range(3):
                np.testing.assert_allclose(sample.slot(slot, 3, 40), expected[3:40, slot], rtol=1e-6)
        assert {item.verdict for item in findings(folder)} <= {Verdict.PASS, Verdict.INFO}


def dataset(folder: Path, rows: list[dict[str, Any]], files: int = 2) -> None:
    """An arrow dataset as `datasets` saves it: a stream a file, and state.json with their names in order."""
    import pyarrow

    names = [f"data-{number:05d}-of-{files:05d}.arrow" for number in range(files)]
    size = -(-len(rows) // files)
    for number, name in enumerate(names):
        table = pyarrow.Table.from_pylist(rows[number * size : (number + 1) * size])
        with pyarrow.OSFile(str(folder / name), "wb") as out, pyarrow.ipc.new_stream(out, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


def test_the_loss_mask_is_read_from_the_dataset_beside_the_files(tmp_path: Path) -> None:
    held = texts(7)
    inside = tmp_path / "hidden_states"
    for number, text in enumerate(held):
        blocks = np.concatenate([text.slots, text.pre[:, None]], axis=1)
        write_tensors(inside / f"hs_{number}.safetensors", {"hidden_states": bf16(blocks), "token_ids": text.ids})
    rows = [{"input_ids": text.ids.tolist(), "loss_mask": text.mask.tolist(), "seq_len": 96} for text in held]
    dataset(tmp_path, rows)
    cache = open_cache(tmp_path)
    assert (cache.layout, cache.note) == ("speculators", "")
    for sample, text in zip(cache.samples(0, 0), held):
        assert sample.loss_mask is not None
        assert sample.loss_mask.tolist() == text.mask.tolist()
    found = findings(tmp_path)
    assert of(found, "data.loss_mask")[0].verdict is Verdict.PASS
    assert of(found, "data.pairing")[0].evidence["compared_with_dataset"] == 7
    # One row lost, and every file after it belongs to the row before.
    dataset(tmp_path, rows[:3] + rows[4:])
    (slipped,) = of(findings(tmp_path), "data.pairing")
    assert slipped.verdict is Verdict.FAIL
    assert "row -1 from its own number" in slipped.summary
    assert slipped.evidence["samples_with_it"] == 4
    rows[2]["loss_mask"] = rows[2]["loss_mask"][:-1]
    dataset(tmp_path, rows)
    assert of(findings(tmp_path), "data.loss_mask")[0].verdict is Verdict.FAIL


def test_a_damaged_dataset_leaves_the_states_to_be_judged(tmp_path: Path) -> None:
    small(tmp_path, range(4))
    rows = [{"input_ids": [1, 2], "loss_mask": [True, False]}] * 4
    dataset(tmp_path, rows)
    for name, raw in (("data-00000-of-00002.arrow", b"no arrow"), ("state.json", b"{}"), ("state.json", b"[")):
        (tmp_path / name).write_bytes(raw)
        cache = open_cache(tmp_path)
        assert "loss masks were not read" in cache.note
        assert cache.samples(0, 0)[0].loss_mask is None
    for name in ("../../x.arrow", "a\0b", "\ud800", "x" * 5000, "\x1b[31m", "..", ""):
        (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        note = open_cache(tmp_path).note
        assert "names no data files" in note
        assert "save the dataset again" in note
        assert note.isprintable()
        assert len(note) < 400


def test_an_unknown_torch_layout_shows_its_keys_and_takes_a_mapping(tmp_path: Path) -> None:
    import torch

    value = {"tokens": torch.arange(6), "feats": torch.ones(1, 6, 48), "last": torch.ones(1, 6, 16)}
    torch.save(value, tmp_path / "a.pt")
    with pytest.raises(UnknownLayout, match=r"feats \[1, 6, 48\] F32"):
        open_cache(tmp_path)
    cache = open_cache(tmp_path, "custom: ids=tokens, slots=feats, final=last:pre")
    assert (cache.slots, cache.hidden, cache.final) == (3, 16, "pre")
    batch = {"tokens": torch.ones(2, 6, dtype=torch.int64), "feats": torch.ones(2, 6, 48)}
    torch.save(batch, tmp_path / "a.pt")
    cache = open_cache(tmp_path, "custom: ids=tokens, slots=feats, count=3")
    assert (len(cache.samples(0, 0)), cache.slots) == (2, 3)


def test_one_key_with_two_meanings_in_one_cache_is_told(tmp_path: Path) -> None:
    """hidden_state was the target's logits for some days and the final state before and after."""
    older = next(item for item in TORCH if item.layout == "specforge-logits")
    newer = next(item for item in TORCH if item.layout == "specforge" and not item.id)
    folder = newer.build(tmp_path / "c", texts(8))
    late = older.build(tmp_path / "d", texts(8)) / "rows_0-2000"
    for number in (5, 6):
        (folder / "rows_0-2000" / f"data_{number}.ckpt").write_bytes((late / f"data_{number}.ckpt").read_bytes())
    (finding,) = of(findings(folder), "data.mixed_layout")
    assert finding.verdict is Verdict.FAIL
    first, second = finding.evidence["kinds"]
    assert (first["count"], second["count"]) == (6, 2)
    assert second["files"] == ["rows_0-2000/data_5.ckpt", "rows_0-2000/data_6.ckpt"]
    assert "hidden_state [1, 96, 260] BF16" in second["holds"]
