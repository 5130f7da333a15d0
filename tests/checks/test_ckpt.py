"""ckpt.shapes and ckpt.vocab_map: weights against config, both families of names, damage, and the legal oddities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.answer import answer
from checks.patch import apply_patch
from tests.checks.files import CHOSEN, CONFIG, Array, bf16, draft_tensors, write_draft, write_target, write_tensors


def finding(check: str, draft: Path, **more: Any) -> dict[str, Any]:
    (found,) = answer({"draft": str(draft), "only": [check], **more}, lambda event: None)["findings"]
    return dict(found)


def shapes(tmp_path: Path, change: dict[str, Any] | None = None, **tensors: Array | None) -> dict[str, Any]:
    """ckpt.shapes of the standard draft with some config keys and tensors changed; None takes one out."""
    return finding("ckpt.shapes", changed(tmp_path, change, **tensors))


def vocab(tmp_path: Path, change: dict[str, Any] | None = None, **tensors: Array | None) -> dict[str, Any]:
    return finding("ckpt.vocab_map", changed(tmp_path, change, **tensors))


def changed(tmp_path: Path, change: dict[str, Any] | None = None, **tensors: Array | None) -> Path:
    config = {key: value for key, value in {**CONFIG, **(change or {})}.items() if value != "absent"}
    held: dict[str, Any] = draft_tensors()
    held.update({name.replace("__", "."): array for name, array in tensors.items()})
    return write_draft(tmp_path / "d", config, {name: array for name, array in held.items() if array is not None})


def ones(*shape: int) -> Array:
    return bf16(np.ones(shape))


@pytest.mark.parametrize("prefix", ["midlayer.", "layers.0.", "model.midlayer."])
def test_either_family_of_names_fits(tmp_path: Path, prefix: str) -> None:
    found = finding("ckpt.shapes", write_draft(tmp_path / "d", tensors=draft_tensors(prefix)))
    assert found["verdict"] == "PASS"
    assert found["evidence"]["names"] == prefix.replace("model.", "") + "*"
    assert found["evidence"]["checked"] == 13
    assert "fc reads 3 slots of 16" in found["summary"]


def test_fc_of_another_number_of_slots_fails(tmp_path: Path) -> None:
    found = shapes(tmp_path, fc__weight=ones(16, 32))
    assert found["verdict"] == "FAIL"
    assert found["evidence"]["wrong"] == [
        {"tensor": "fc.weight", "shape": [16, 32], "expected": [16, 48], "because": "3 slots (3 ids) of 16"}
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 5, 8]}},
        {"num_aux_hidden_states": 4},
        {"eagle_config": "absent", "eagle_aux_hidden_state_layer_ids": [1, 2, 5, 8]},
    ],
    ids=str,
)
def test_a_draft_of_four_slots_is_legal(tmp_path: Path, change: dict[str, Any]) -> None:
    assert shapes(tmp_path, change, fc__weight=ones(16, 64))["verdict"] == "PASS"


def test_a_draft_narrower_than_its_target_needs_to_say_so(tmp_path: Path) -> None:
    said = {"target_hidden_size": 40}
    own = ones(30, 16)
    assert shapes(tmp_path / "a", said, fc__weight=ones(16, 120), embed_tokens__weight=own)["verdict"] == "PASS"
    assert shapes(tmp_path / "b", None, fc__weight=ones(16, 120))["verdict"] == "FAIL"
    # Its embedding cannot be the target's, so it has to bring one.
    found = shapes(tmp_path / "c", said, fc__weight=ones(16, 120))
    assert found["verdict"] == "FAIL"
    assert found["evidence"]["missing"] == ["embed_tokens.weight"]


def test_a_target_of_another_width_is_the_configs_question(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d")
    assert finding("ckpt.shapes", draft, target=str(write_target(tmp_path / "t")))["verdict"] == "PASS"
    found = finding("ckpt.shapes", draft, target=str(write_target(tmp_path / "w", hidden=32)))
    assert found["verdict"] == "INFO"
    assert "the target's states are 32 wide: see cfg.hidden_vs_target" in found["summary"]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("midlayer.self_attn.q_proj.weight", (16, 16)),
        ("midlayer.self_attn.k_proj.weight", (16, 32)),
        ("midlayer.self_attn.o_proj.weight", (16, 12)),
        ("midlayer.mlp.down_proj.weight", (24, 16)),
        ("midlayer.hidden_norm.weight", (48,)),
        ("norm.weight", (1, 16)),
        ("lm_head.weight", (10, 8)),
        ("embed_tokens.weight", (30, 8)),
    ],
)
def test_each_shape_is_held_to_the_config(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    found = shapes(tmp_path, None, **{name.replace(".", "__"): ones(*shape)})
    assert found["verdict"] == "FAIL"
    assert [row["tensor"] for row in found["evidence"]["wrong"]] == [name]


@pytest.mark.parametrize("name", ["fc.weight", "norm.weight", "midlayer.mlp.up_proj.weight", "lm_head.weight"])
def test_a_missing_tensor_fails(tmp_path: Path, name: str) -> None:
    found = shapes(tmp_path, None, **{name.replace(".", "__"): None})
    assert found["verdict"] == "FAIL"
    assert "random numbers" in found["summary"]


def test_a_head_that_is_the_targets_may_be_absent(tmp_path: Path) -> None:
    whole = {"draft_vocab_size": 30}
    assert shapes(tmp_path, whole, lm_head__weight=None, d2t=None, t2d=None)["verdict"] == "PASS"


def test_the_rows_of_a_head_with_a_map_are_the_maps_question(tmp_path: Path) -> None:
    draft = changed(tmp_path / "a", None, lm_head__weight=ones(30, 16))
    assert (finding("ckpt.shapes", draft)["verdict"], finding("ckpt.vocab_map", draft)["verdict"]) == ("PASS", "FAIL")
    bare = {"d2t": None, "t2d": None, "lm_head__weight": ones(20, 16)}
    assert shapes(tmp_path / "b", {"draft_vocab_size": 30}, **bare)["verdict"] == "FAIL"


def test_another_head_dim_is_said_once(tmp_path: Path) -> None:
    """Heads of 8 where hidden / heads is 4: real models have it, and engines divide when the key is missing."""
    attention = {
        "midlayer__self_attn__q_proj__weight": ones(32, 32),
        "midlayer__self_attn__k_proj__weight": ones(16, 32),
        "midlayer__self_attn__v_proj__weight": ones(16, 32),
        "midlayer__self_attn__o_proj__weight": ones(16, 32),
    }
    draft = changed(tmp_path / "d", {"head_dim": "absent"}, **attention)
    found = finding("cfg.head_dim", draft)
    assert (finding("ckpt.shapes", draft)["verdict"], found["verdict"]) == ("UNKNOWN", "FAIL")
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(apply_patch(config, found["fix"]["patch"])))
    assert finding("ckpt.shapes", draft)["verdict"] == "PASS"
    # Another fault beside it is not hidden.
    both = changed(tmp_path / "e", {"head_dim": "absent"}, **attention, norm__weight=ones(1, 16))
    assert finding("ckpt.shapes", both)["verdict"] == "FAIL"


@pytest.mark.parametrize("part", ["qkv_proj.weight", "q_a_proj.weight"])
def test_fused_or_latent_attention_is_not_judged(tmp_path: Path, part: str) -> None:
    gone = {f"midlayer__self_attn__{each}_proj__weight": None for each in "qkvo"}
    found = shapes(tmp_path, None, **gone, **{f"midlayer__self_attn__{part.replace('.', '__')}": ones(32, 32)})
    assert found["verdict"] == "UNKNOWN"
    assert found["evidence"]["not_judged"] == [f"layers.0.self_attn.{part}"]
    assert found["evidence"]["checked"] == 9


def test_quantised_weights_are_not_judged(tmp_path: Path) -> None:
    gone: dict[str, Array | None] = {"midlayer__mlp__up_proj__weight": None}
    found = shapes(tmp_path, None, **gone, midlayer__mlp__up_proj__qweight=np.zeros((2, 16), dtype=np.int32))
    assert found["verdict"] == "UNKNOWN"


def test_names_of_no_eagle3_draft_are_unknown(tmp_path: Path) -> None:
    found = finding("ckpt.shapes", write_draft(tmp_path / "d", tensors={"h.0.attn": ones(3), "wte": ones(4)}))
    assert found["verdict"] == "UNKNOWN"
    assert "h.0.attn" in found["summary"]


def test_tensors_that_engines_skip_are_noted(tmp_path: Path) -> None:
    found = shapes(tmp_path, None, midlayer__extra__weight=ones(3), verifier_norm__weight=ones(16))
    assert found["verdict"] == "INFO"
    assert found["evidence"]["skipped_by_engines"] == ["layers.0.extra.weight"]


def test_the_speculators_layout_is_read_through(tmp_path: Path) -> None:
    nested = (
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size",
    )
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 10,
        "transformer_layer_config": {key: CONFIG[key] for key in nested},
    }
    draft = write_draft(tmp_path / "d", config, draft_tensors("layers.0."))
    assert finding("ckpt.shapes", draft)["verdict"] == "PASS"
    assert finding("ckpt.vocab_map", draft)["verdict"] == "PASS"


def test_a_draft_of_the_last_state_alone_may_not_have_a_wide_fc(tmp_path: Path) -> None:
    found = shapes(tmp_path, {"eagle_config": {"use_aux_hidden_state": False}})
    assert found["verdict"] == "FAIL"
    assert "reads 3 states of 16" in found["summary"]


def test_norms_the_config_announces_have_to_be_there(tmp_path: Path) -> None:
    norms = {f"fc_norm__{slot}__weight": ones(16) for slot in range(3)}
    assert shapes(tmp_path / "a", {"fc_norm": True}, **norms)["verdict"] == "PASS"
    assert shapes(tmp_path / "b", {"fc_norm": True})["verdict"] == "FAIL"
    assert shapes(tmp_path / "c", {"norm_before_fc": True}, input_norm__weight=ones(48))["verdict"] == "PASS"


def test_a_truncated_file_is_a_failure_with_its_sizes(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d")
    weights = draft / "model.safetensors"
    size = weights.stat().st_size
    weights.write_bytes(weights.read_bytes()[:-100])
    found = finding("ckpt.container", draft)
    assert found["verdict"] == "FAIL"
    assert finding("ckpt.shapes", draft)["verdict"] == "UNKNOWN"
    assert str(weights) in found["summary"]
    assert f"byte {size} and the file has {size - 100}" in found["summary"]
    assert finding("ckpt.vocab_map", draft)["verdict"] == "UNKNOWN"


def test_a_missing_shard_is_a_failure(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d", tensors={})
    tensors = draft_tensors()
    write_tensors(draft / "model-00001-of-00002.safetensors", {"fc.weight": tensors["fc.weight"]})
    places = {name: f"model-0000{1 if name == 'fc.weight' else 2}-of-00002.safetensors" for name in tensors}
    (draft / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    found = finding("ckpt.container", draft)
    assert found["verdict"] == "FAIL"
    assert "model-00002-of-00002.safetensors is missing" in found["summary"]
    assert finding("ckpt.shapes", draft)["verdict"] == "UNKNOWN"
    held = {name: value for name, value in tensors.items() if name not in ("fc.weight", "d2t")}
    write_tensors(draft / places["norm.weight"], held)
    assert "lacks 'd2t'" in finding("ckpt.container", draft)["summary"]
    write_tensors(draft / places["norm.weight"], {**held, "d2t": tensors["d2t"]})
    assert finding("ckpt.container", draft)["verdict"] == finding("ckpt.shapes", draft)["verdict"] == "PASS"


def test_an_index_cannot_point_out_of_its_folder(tmp_path: Path) -> None:
    write_tensors(tmp_path / "secret.safetensors", draft_tensors())
    draft = write_draft(tmp_path / "d", tensors={})
    index = {"weight_map": {"fc.weight": "../secret.safetensors"}}
    (draft / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "which is not in the folder" in finding("ckpt.shapes", draft)["summary"]


def test_without_weights_it_is_unknown_and_says_what_it_needs(tmp_path: Path) -> None:
    found = finding("ckpt.shapes", write_draft(tmp_path / "d", tensors={}))
    assert found["verdict"] == "UNKNOWN"
    assert found["evidence"]["needs"] == ["draft weights"]


# -- the vocabulary map ------------------------------------------------------------------------------------------------


def test_a_map_whose_numbers_agree_passes(tmp_path: Path) -> None:
    found = vocab(tmp_path)
    assert found["verdict"] == "PASS"
    four = {key: found["evidence"][key] for key in ("draft_vocab_size", "lm_head_rows", "d2t_rows", "t2d_true")}
    assert set(four.values()) == {10}


@pytest.mark.parametrize("name", ["d2t", "lm_head__weight", "t2d"])
def test_each_number_that_differs_fails_with_all_four(tmp_path: Path, name: str) -> None:
    marks = np.zeros(30, dtype=bool)
    marks[:7] = True
    wrong = {"d2t": draft_tensors()["d2t"][:6], "lm_head__weight": ones(12, 16), "t2d": marks}[name]
    found = vocab(tmp_path, None, **{name: wrong})
    assert found["verdict"] == "FAIL"
    for key in ("draft_vocab_size", "lm_head_rows", "d2t_rows", "t2d_true"):
        assert f"{key} {found['evidence'][key]}" in found["summary"]


def test_a_wrong_size_in_the_config_alone_is_fixed(tmp_path: Path) -> None:
    found = vocab(tmp_path, {"draft_vocab_size": 32})
    assert found["verdict"] == "FAIL"
    assert found["fix"]["patch"][-1] == {"op": "replace", "path": "/draft_vocab_size", "value": 10}


def test_marks_of_another_vocabulary_fail(tmp_path: Path) -> None:
    found = vocab(tmp_path, None, t2d=np.ones(31, dtype=bool))
    assert found["verdict"] == "FAIL"
    assert "t2d has 31 rows for a vocab_size of 30" in found["summary"]


def test_marks_elsewhere_than_the_offsets_point_fail(tmp_path: Path) -> None:
    marks = np.zeros(30, dtype=bool)
    marks[:10] = True
    found = vocab(tmp_path, None, t2d=marks)
    assert found["verdict"] == "FAIL"
    assert found["evidence"]["strays"] == int(np.count_nonzero(CHOSEN >= 10))


@pytest.mark.parametrize(("at", "offset", "said"), [(9, 21, "outside"), (0, -1, "outside"), (1, -1, "mapped to twice")])
def test_targets_out_of_range_or_twice_fail(tmp_path: Path, at: int, offset: int, said: str) -> None:
    offsets = draft_tensors()["d2t"].copy()
    offsets[at] = offset
    found = vocab(tmp_path, None, d2t=offsets, t2d=None)
    assert found["verdict"] == "FAIL"
    assert said in found["summary"]


def test_absolute_ids_in_place_of_offsets_are_named(tmp_path: Path) -> None:
    found = vocab(tmp_path, None, d2t=CHOSEN.astype(np.int64))
    assert found["verdict"] == "FAIL"
    assert "absolute ids" in found["summary"]


def test_a_map_without_marks_is_legal(tmp_path: Path) -> None:
    assert vocab(tmp_path, None, t2d=None)["verdict"] == "PASS"


def test_an_unfilled_map_warns(tmp_path: Path) -> None:
    assert vocab(tmp_path, None, d2t=np.zeros(10, dtype=np.int64), t2d=None)["verdict"] == "WARN"


def test_a_reduced_vocabulary_without_a_map_fails_unless_a_token_map_is_given(tmp_path: Path) -> None:
    draft = changed(tmp_path, None, d2t=None, t2d=None)
    assert finding("ckpt.vocab_map", draft)["verdict"] == "FAIL"
    for args in (["--speculative-token-map", "m.pt"], ["--speculative-token-map=m.pt"]):
        assert finding("ckpt.vocab_map", draft, args=args)["verdict"] == "INFO"
    (draft / "eagle_meta.pt").write_bytes(b"x")
    assert "eagle_meta.pt" in finding("ckpt.vocab_map", draft)["summary"]


def test_the_whole_vocabulary_needs_no_map(tmp_path: Path) -> None:
    whole = {"draft_vocab_size": 30}
    assert vocab(tmp_path, whole, d2t=None, t2d=None, lm_head__weight=ones(30, 16))["verdict"] == "PASS"


def test_the_alias_of_the_size_is_understood(tmp_path: Path) -> None:
    assert vocab(tmp_path, {"draft_vocab_size": "absent", "truncated_vocab_size": 10})["verdict"] == "PASS"


@pytest.mark.parametrize(
    "wrong", [np.zeros((10, 1), dtype=np.int64), np.zeros(10, dtype=np.float32)], ids=["2d", "float"]
)
def test_a_map_that_is_no_row_of_numbers_fails(tmp_path: Path, wrong: Array) -> None:
    assert vocab(tmp_path, None, d2t=wrong)["verdict"] == "FAIL"
