"""The checks of cached data: masks against chat templates, dtypes, gaps, mappings, and caches that cannot be opened."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.answer import answer
from checks.caches import Hints, open_cache
from checks.caches.container import prove
from checks.caches.listing import list_files
from checks.data.scan import stretches
from checks.data.stored import oddness
from checks.data.turns import read_tokens
from checks.errors import BadTensors, CheckError, UnknownLayout
from checks.finding import Finding, Verdict
from tests.checks import pair
from tests.checks.files import bf16, sample, tensor_bytes, with_header, write_tensors
from tests.checks.formats import texts
from tests.checks.test_data_formats import alarms, findings, of

# -- masks -------------------------------------------------------------------------------------------------------------

HEADERS = {
    "chatml": ("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>\n"),
    "llama3": ("<|start_header_id|>user<|end_header_id|>\n\n{}<|start_header_id|>assistant<|end_header_id|>\n\n", "\n"),
    "deepseek": ("<｜User｜>{}<｜Assistant｜>", "\n"),
    "kimi": ("<|im_user|>user<|im_middle|>{}<|im_assistant|>assistant<|im_middle|>", "\n"),
    "vicuna": ("USER: {} ASSISTANT:", "\n"),
}
ANSWERS = ["Sure", "No", "Yes", "Perhaps", "42", "Let us see", "It is", "They were", "Begin", "Go on", "Quite", "Well"]


def chat(folder: Path, template: str, shift: int = 0, thinking: str = "", files: int = 5, turns: int = 2) -> Path:
    """Byte-level conversations in a chat template, the mask of every answer moved by `shift` tokens."""
    chance = random.Random(0)
    head, tail = HEADERS[template]
    for number in range(files):
        raw, mask = b"", []
        for turn in range(turns):
            before = head.format(f"question {chance.randrange(10**6)}").encode()
            said = (thinking + ANSWERS[(number * turns + turn) % len(ANSWERS)] + f" {chance.random()}").encode()
            raw += before + said + tail.encode()
            mask += [0] * len(before) + [1] * len(said) + [0] * len(tail.encode())
        marks = np.roll(np.array(mask, dtype=np.int64), shift)
        states = np.random.default_rng(number).standard_normal((len(raw), 4, 16)).astype(np.float32)
        write_tensors(
            folder / f"hs_{number}.safetensors",
            {
                "hidden_states": bf16(states),
                "token_ids": np.frombuffer(raw, np.uint8).astype(np.int64),
                "loss_mask": marks,
            },
        )
    return folder


def mask_finding(folder: Path, target: Path | None = pair.TARGET) -> Finding:
    (finding,) = of(findings(folder, target=target), "data.loss_mask")
    return finding


@pytest.mark.parametrize("template", HEADERS)
@pytest.mark.parametrize("shift", [-2, -1, 0, 1, 2])
def test_a_shifted_mask_is_told_by_the_chat_template(tmp_path: Path, template: str, shift: int) -> None:
    finding = mask_finding(chat(tmp_path / "c", template, shift))
    if shift == 0:
        assert finding.verdict is Verdict.PASS, finding.summary
        assert "10 of 10 turns" in finding.summary
        return
    if (shift == -1 and template in ("chatml",)) or (shift in (-1, -2) and template == "llama3"):
        # Begun at the header's own white space, which some trainers learn: no fault of the mask.
        assert finding.verdict is Verdict.PASS
        return
    assert finding.verdict is Verdict.WARN, finding.summary
    evidence = finding.evidence
    assert (evidence["offset"], evidence["index"] - evidence["expected"]) == (shift, shift)
    assert evidence["file"] == "hs_0.safetensors"


@pytest.mark.parametrize("thinking", ["", "<think>\n\n</think>\n\n"])
def test_a_mask_that_leaves_out_the_thinking_is_no_shift(tmp_path: Path, thinking: str) -> None:
    assert mask_finding(chat(tmp_path / "c", "chatml", len(thinking), thinking)).verdict is Verdict.PASS


@pytest.mark.parametrize(("shift", "verdict"), [(0, Verdict.PASS), (1, Verdict.WARN), (-1, Verdict.PASS)])
def test_without_a_tokenizer_a_late_mask_is_told_by_what_never_varies(
    tmp_path: Path, shift: int, verdict: Verdict
) -> None:
    finding = mask_finding(chat(tmp_path / "c", "vicuna", shift, files=6), target=None)
    assert finding.verdict is verdict, finding.summary
    if shift == 1:
        assert finding.evidence["offset"] == 1


def test_a_mask_of_another_length_and_of_other_values_are_told(tmp_path: Path) -> None:
    folder = chat(tmp_path / "c", "chatml")
    cache = open_cache(folder)
    sample = cache.samples(0, 0)[1]
    assert sample.loss_mask is not None
    states = {"hidden_states": np.zeros((sample.length, 4, 16), np.float32) + 1, "token_ids": sample.token_ids}
    write_tensors(folder / "hs_1.safetensors", {**states, "loss_mask": sample.loss_mask[:-2]})
    write_tensors(folder / "hs_2.safetensors", {**states, "loss_mask": sample.loss_mask * 3})
    said = [item for item in of(findings(folder), "data.loss_mask") if item.verdict is Verdict.FAIL]
    assert {item.evidence["samples"][0]["file"] for item in said} == {"hs_1.safetensors", "hs_2.safetensors"}


def test_token_texts_are_read_from_a_byte_level_tokenizer() -> None:
    found = read_tokens(pair.TARGET)
    assert found is not None
    assert (found[ord("a")], found[ord("\n")], found[ord(" ")], found[256]) == (b"a", b"\n", b" ", b"<bos>")


LEAVES = st.none() | st.integers() | st.text(max_size=5)
KEYS = st.sampled_from(["model", "vocab", "added_tokens", "id", "content", "decoder"])
JSON = st.recursive(LEAVES, lambda leaf: st.lists(leaf) | st.dictionaries(KEYS, leaf), max_leaves=12)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
@settings(deadline=None)
def test_no_tokenizer_file_makes_reading_it_raise(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_bytes(raw)
    read_tokens(folder)


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_bytes_of_another_float_type_are_told_and_states_are_not() -> None:
    for index in range(3):
        for k in range(pair.N + 1):
            state = pair.all_states(index)[k][:32].astype(np.float32)
            for dtype in ("BF16", "F16", "F32"):
                assert oddness(state, dtype) is None, (index, k, dtype)
            as_half = bf16(state).view(np.float16).astype(np.float32)
            assert oddness(as_half, "F16") is not None
            as_brain = (state.astype(np.float16).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            assert oddness(as_brain, "BF16") is not None
    assert oddness(np.full((4, 512), 1e-20, np.float32), "F32") is not None
    assert oddness(np.full((1, 8), 1e-20, np.float32), "F32") is None


def test_float16_at_its_limit_is_a_warning_and_beyond_it_a_fault(tmp_path: Path) -> None:
    for name, value, verdict in (("cut", 65504, Verdict.WARN), ("over", np.inf, Verdict.FAIL)):
        for number, text in enumerate(texts(3)):
            blocks = np.concatenate([text.slots, text.pre[:, None]], axis=1).astype(np.float16)
            if number == 1:
                blocks[12, 2, 5] = value
            write_tensors(
                tmp_path / name / f"hs_{number}.safetensors", {"hidden_states": blocks, "token_ids": text.ids}
            )
        found = findings(tmp_path / name)
        assert alarms(found) == [("data.finite", verdict)]
        assert of(found, "data.finite")[0].evidence["faults"][0]["first_row"] == 12


def test_long_samples_are_read_in_stretches_from_the_first_row_to_the_last() -> None:
    for length in (257, 1000, 32_000):
        parts = list(stretches(length, thorough=False))
        assert parts[0][0] == 0
        assert parts[-1][1] == length
        assert sum(stop - start for start, stop in parts) == 256
        assert sum(stop - start for start, stop in stretches(length, thorough=True)) == length
    assert list(stretches(10, thorough=False)) == [(0, 10)]
    assert list(stretches(0, thorough=False)) == []


def test_everything_is_read_when_all_samples_are_asked_for(tmp_path: Path) -> None:
    """A fault in a row that stretches skip shows only then."""
    states = np.random.default_rng(0).standard_normal((2000, 2, 8)).astype(np.float32)
    states[40, 0, 0] = np.nan
    ids = np.arange(2000) % 250
    write_tensors(tmp_path / "c" / "hs_0.safetensors", {"hidden_states": bf16(states), "token_ids": ids})
    assert of(findings(tmp_path / "c"), "data.finite")[0].verdict is Verdict.PASS
    (finding,) = of(findings(tmp_path / "c", samples=0), "data.finite")
    assert finding.verdict is Verdict.FAIL
    assert finding.evidence["rows"] == 2000


def test_repetitive_text_is_no_copy(tmp_path: Path) -> None:
    """One token over and over has one state over and over, where nothing else came before."""
    ids = np.concatenate([np.zeros(30, np.int64) + 7, np.arange(20)])
    states = np.random.default_rng(0).standard_normal((50, 2, 16)).astype(np.float32)
    states[:30] = states[0]
    write_tensors(tmp_path / "c" / "hs_0.safetensors", {"hidden_states": bf16(states), "token_ids": ids})
    assert of(findings(tmp_path / "c"), "data.duplicates")[0].verdict is Verdict.PASS


def test_rows_that_differ_in_one_number_are_no_copies(tmp_path: Path) -> None:
    states = np.random.default_rng(0).standard_normal((50, 2, 400)).astype(np.float32)
    for more, verdict in ((1, Verdict.PASS), (0, Verdict.FAIL)):
        states[41, 1] = states[3, 1]
        states[41, 1, 7] += more
        folder = tmp_path / verdict.value
        write_tensors(folder / "hs_0.safetensors", {"hidden_states": bf16(states), "token_ids": np.arange(50)})
        assert of(findings(folder), "data.duplicates")[0].verdict is verdict


# -- files -------------------------------------------------------------------------------------------------------------


def small(folder: Path, numbers: range | list[int], name: str = "hs_{}.safetensors") -> Path:
    for number in numbers:
        chance = np.random.default_rng(number)
        ids = chance.integers(0, 250, 12)
        blocks = bf16(chance.standard_normal((12, 4, 16)))
        write_tensors(folder / name.format(number), {"hidden_states": blocks, "token_ids": ids})
    return folder


def test_gaps_in_the_numbers_are_told_and_are_no_fault(tmp_path: Path) -> None:
    folder = small(tmp_path / "c", [0, 1, 2, 5, 6, 9, 10, 11])
    found = of(findings(folder), "data.files")
    assert [item.verdict for item in found] == [Verdict.INFO, Verdict.PASS]
    assert found[0].evidence["gaps"] == [["hs_", 3, 4], ["hs_", 7, 8]]
    assert "4 numbers are missing" in found[0].summary
    assert [path.name for path in list_files(folder).files][-2:] == ["hs_10.safetensors", "hs_11.safetensors"]


def test_many_damaged_files_are_counted(tmp_path: Path) -> None:
    folder = small(tmp_path / "c", range(30))
    for number in range(3, 30):
        (folder / f"hs_{number}.safetensors").write_bytes(b"")
    failed = [item for item in of(findings(folder), "data.files") if item.verdict is Verdict.FAIL]
    assert len(failed) == 21
    assert failed[-1].evidence["count"] == 7


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "empty"),
        (b"\x40", "truncated"),
        (tensor_bytes({"a": np.zeros(9)})[:-1], "truncated"),
        (tensor_bytes({"a": np.zeros(9)}) + b"x", "follow the last tensor"),
        (with_header({"__metadata__": {}}), ""),
        (b"version https://git-lfs.github.com/spec/v1\n" + b"x" * 90, "git-lfs"),
    ],
    ids=["empty", "short", "truncated", "trailing", "empty-metadata", "pointer"],
)
def test_each_kind_of_damage_has_its_own_words(tmp_path: Path, raw: bytes, says: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw)
    if not says:
        prove(path)
        return
    with pytest.raises(BadTensors, match=says):
        prove(path)


@given(st.binary(max_size=300), st.sampled_from(["a.safetensors", "a.pt", "a.ckpt", "a.ckpt.gz"]))
@settings(deadline=None)
def test_proving_a_file_raises_nothing_else(tmp_path_factory: pytest.TempPathFactory, raw: bytes, name: str) -> None:
    path = tmp_path_factory.mktemp("file") / name
    path.write_bytes(raw)
    try:
        prove(path)
    except BadTensors as error:
        assert str(path) in str(error)


# -- layouts -----------------------------------------------------------------------------------------------------------


def test_an_unknown_layout_asks_for_a_mapping_and_the_mapping_opens_it(tmp_path: Path) -> None:
    held = texts(4)
    for number, text in enumerate(held):
        wide = text.slots.reshape(len(text.ids), -1).astype(np.float32)
        tensors = {"tok": text.ids, "feats": bf16(wide), "last": bf16(text.post), "keep": text.mask}
        write_tensors(tmp_path / "c" / f"{number}.safetensors", tensors)
    (finding,) = of(findings(tmp_path / "c"), "data.layout")
    assert finding.verdict is Verdict.UNKNOWN
    for said in ("feats [96, 384] BF16", "tok [96] I64", "custom: ids=KEY"):
        assert said in finding.summary
    layout = "custom: ids=tok, slots=feats, final=last:post, mask=keep"
    report = answer(
        {
            "caches": [{"path": str(tmp_path / "c"), "layout": layout}],
            "target": str(pair.TARGET),
            "only": ["data", "align"],
        },
        lambda event: None,
    )
    verdicts = {item["check"]: item["verdict"] for item in report["findings"]}
    assert verdicts["data.layout"] == verdicts["data.loss_mask"] == verdicts["align.final"] == "PASS"
    assert verdicts["align.embedding"] == "PASS"
    sample = open_cache(tmp_path / "c", layout).samples(0, 0)[2]
    np.testing.assert_array_equal(sample.loss_mask, held[2].mask)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layout", "slots", "final"),
    [
        ("custom: ids=tok, slots=a+b, final=last-slot:pre", 1, "pre"),
        ("custom: ids=tok, slots=a+b", 2, "none"),
        ("custom: ids=tok, slots=all", 3, "none"),
        ("custom: ids=tok, slots=all, final=last-slot", 2, "unknown"),
        ("custom: ids=tok, slots=wide, count=2, final=a:post", 2, "post"),
        ("custom: ids=tok, slots=none, final=b:post", 0, "post"),
    ],
)
def test_a_mapping_takes_states_in_any_shape(tmp_path: Path, layout: str, slots: int, final: str) -> None:
    chance = np.random.default_rng(0)
    tensors = {
        "tok": np.arange(5),
        "a": bf16(chance.standard_normal((5, 16))),
        "b": bf16(chance.standard_normal((1, 5, 16))),
        "all": bf16(chance.standard_normal((5, 3, 16))),
        "wide": bf16(chance.standard_normal((5, 32))),
    }
    write_tensors(tmp_path / "0.safetensors", tensors)
    cache = open_cache(tmp_path, layout)
    assert (cache.slots, cache.hidden, cache.final) == (slots, 16, final)
    sample = cache.samples(0, 0)[0]
    for slot in range(slots):
        assert sample.slot(slot, 1, 4).shape == (3, 16)


@pytest.mark.parametrize(
    "layout",
    ["custom:", "custom: ids=tok", "custom: ids=tok, slots=a, colour=red", "custom: ids=tok, slots=a, count=many",
     "custom: ids=tok, slots=a, final=a:mid", "custom: ids=nowhere, slots=a", "custom: ids=tok, slots=wide, count=3",
     "custom: ids=tok, ids=tok, slots=a"],
)  # fmt: skip
def test_a_wrong_mapping_says_what_is_wrong(tmp_path: Path, layout: str) -> None:
    write_tensors(
        tmp_path / "0.safetensors", {"tok": np.arange(5), "a": bf16(np.ones((5, 16))), "wide": bf16(np.ones((5, 32)))}
    )
    with pytest.raises(UnknownLayout):
        open_cache(tmp_path, layout)


def test_what_an_unknown_cache_holds_is_told_once_and_pointed_to(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", {"feats": np.zeros((4, 48), np.float32), "tok": np.arange(4)})
    request: dict[str, Any] = {"caches": [{"path": str(tmp_path)}]}
    found = answer({**request, "only": ["data", "align", "replay"]}, lambda event: None)["findings"]
    (full,) = [item for item in found if item["check"] == "data.layout"]
    assert "feats [4, 48] F32; tok [4] I64" in full["summary"]
    assert 'layout = "custom: ids=KEY' in full["summary"]
    others = [item for item in found if item["check"] not in ("data.layout", "data.files")]
    assert len(others) >= 12
    for item in others:
        assert item["verdict"] == "UNKNOWN"
        assert "the layout of the cache is not known: see data.layout" in item["summary"]
        assert "F32" not in json.dumps(item["evidence"])
    # Asked alone, a check says it itself.
    (alone,) = answer({**request, "only": ["data.finite"]}, lambda event: None)["findings"]
    assert "feats [4, 48] F32; tok [4] I64" in alone["summary"]


def test_one_cache_that_cannot_be_opened_leaves_the_others_to_be_judged(tmp_path: Path) -> None:
    write_tensors(tmp_path / "strange" / "x.safetensors", {"aux": np.zeros((4, 48), np.float32)})
    caches = [{"path": str(tmp_path / "strange")}, {"path": str(pair.CACHE)}]
    report = answer(
        {"caches": caches, "target": str(pair.TARGET), "only": ["data", "align.embedding"]}, lambda event: None
    )
    assert [item["layout"] for item in report["inputs"]["cache"]] == [None, "speculators"]
    by_check = {}
    for item in report["findings"]:
        by_check.setdefault(item["check"], []).append(item["verdict"])
    assert by_check["data.layout"] == ["UNKNOWN", "PASS"]
    assert by_check["data.finite"] == by_check["align.embedding"] == ["PASS"]
    assert by_check["data.files"] == ["PASS", "PASS"]


def test_torch_files_without_torch_leave_their_ends_to_be_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    (tmp_path / "rows_0-2000").mkdir()
    (tmp_path / "rows_0-2000" / "data_0.ckpt").write_bytes(b"PK\x03\x04 and no end")
    found = findings(tmp_path)
    assert of(found, "data.files")[0].verdict is Verdict.FAIL
    (layout,) = of(found, "data.layout")
    assert layout.verdict is Verdict.UNKNOWN
    assert layout.evidence["needs"] == ["torch in the python that runs the checks"]


def test_a_cache_of_another_width_is_of_another_target(tmp_path: Path) -> None:
    (finding,) = of(findings(small(tmp_path / "c", range(3))), "data.layout")
    assert finding.verdict is Verdict.FAIL
    assert "16 wide and the target's are 128" in finding.summary


NAMES = st.sampled_from(
    ["hidden_states", "token_ids", "input_ids", "aux_hidden_states", "target_probs", "attention_mask", "loss_mask"]
)
TENSORS = st.tuples(
    st.sampled_from(["F32", "BF16", "F16", "I64", "U8", "BOOL", "F8_E4M3"]), st.lists(st.integers(0, 4), max_size=3)
)


@given(st.dictionaries(NAMES, TENSORS), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_no_header_makes_a_reader_raise_anything_else(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, tuple[str, list[int]]], cut: int
) -> None:
    sizes = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "U8": 1, "BOOL": 1, "F8_E4M3": 1}
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = int(np.prod(shape, dtype=int)) * sizes[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    folder = tmp_path_factory.mktemp("cache")
    for name in ("hs_0", "shard-000000"):
        raw = with_header(header, bytes(at))
        (folder / f"{name}.safetensors").write_bytes(raw[: len(raw) - cut] if cut > 20 else raw)
    walk(folder)


@given(st.binary(max_size=400), st.lists(st.binary(min_size=56, max_size=56), max_size=3))
@settings(deadline=None)
def test_no_index_makes_a_reader_raise_anything_else(
    tmp_path_factory: pytest.TempPathFactory, shard: bytes, records: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    manifest = {"hidden_size": 4, "target_layer_ids": [1], "hidden_dtype": "bfloat16", "shards": [{"file_name": "s"}]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    near = struct.pack("<QIIQQQQQ", 0, 0, len(shard) % 9, 0, 0, 0, 0, 3)
    (folder / "samples.idx").write_bytes(b"".join([near, *records]))
    (folder / "s").write_bytes(shard)
    walk(folder)


def walk(folder: Path) -> None:
    """Open and read everything; nothing but a CheckError may come out."""
    try:
        cache = open_cache(folder, hints=Hints(slots=3, hidden=4))
        samples = cache.samples(0, 0)
    except CheckError:
        return
    for index in range(len(samples)):
        try:
            sample = samples[index]
            ids = sample.token_ids
            assert sample.loss_mask is None or sample.loss_mask.dtype == np.int64
            for slot in range(cache.slots):
                assert sample.slot(slot, 0, len(ids)).shape[1] == cache.hidden
            sample.final(0, len(ids))
        except CheckError:
            continue


@pytest.mark.parametrize(
    ("empty", "verdict"), [(0, Verdict.PASS), (2, Verdict.WARN), (4, Verdict.WARN), (5, Verdict.FAIL)]
)
def test_masks_that_train_nothing_fail_above_a_fifth_of_the_samples(
    tmp_path: Path, empty: int, verdict: Verdict
) -> None:
    for index in range(20):
        mask = np.array([0, 0, 0, 1, 1, 1, 1]) * (index >= empty)
        write_tensors(tmp_path / f"hs_{index}.safetensors", {**sample(seed=index), "loss_mask": mask.astype(np.int64)})
    (finding,) = of(findings(tmp_path, samples=0), "data.loss_mask")
    assert finding.verdict is verdict
