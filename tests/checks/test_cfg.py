"""cfg.aux_ids: present, in a place the engine reads, and legal; and what is odd but legal stays no fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checks.answer import answer
from checks.patch import apply_patch
from tests.checks.files import CONFIG, write_draft, write_target

KEY = "eagle_aux_hidden_state_layer_ids"


def finding(draft: Path, target: Path | None = None, **more: Any) -> dict[str, Any]:
    """The one finding of cfg.aux_ids."""
    asked = {"draft": str(draft), "target": str(target or ""), "only": ["cfg.aux_ids"], **more}
    (found,) = answer(asked, lambda event: None)["findings"]
    assert found["check"] == "cfg.aux_ids"
    return dict(found)


def with_ids(tmp_path: Path, ids: object, top: object = None, layers: int = 12, **more: Any) -> dict[str, Any]:
    config: dict[str, Any] = {**CONFIG, "eagle_config": {KEY: ids}}
    if top is not None:
        config[KEY] = top
    return finding(write_draft(tmp_path / "d", config, {}), write_target(tmp_path / "t", layers), **more)


def test_legal_ids_pass(tmp_path: Path) -> None:
    found = with_ids(tmp_path, [1, 5, 8])
    assert found["verdict"] == "PASS"
    assert found["evidence"]["configured_ids"] == [1, 5, 8]
    assert found["evidence"]["path"] == f"/eagle_config/{KEY}"


@pytest.mark.parametrize(
    ("layers", "ids"),
    [(36, [1, 17, 33]), (24, [1, 11, 21]), (61, [1, 29, 57]), (61, [-1, 2, 30]), (94, [1, 46, 90]), (36, [24, 30, 36])],
    ids=str,
)
def test_ids_that_shipped_drafts_carry_are_legal(tmp_path: Path, layers: int, ids: list[int]) -> None:
    assert with_ids(tmp_path, ids, layers=layers)["verdict"] == "PASS"


def test_other_counts_than_three_are_legal(tmp_path: Path) -> None:
    assert with_ids(tmp_path, [1, 3, 5, 7, 9])["verdict"] == "PASS"


def test_ids_out_of_order_are_only_noted(tmp_path: Path) -> None:
    found = with_ids(tmp_path, [8, 5, 1])
    assert found["verdict"] == "INFO"
    assert "ascending" in found["summary"]


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (5, "a number, not a list"),
        ("1,5,8", "a text, not a list"),
        ({"a": 1}, "an object, not a list"),
        ([], "empty list"),
        ([1, True, 8], "true or false"),
        ([1, 5.5, 8], "decimal point"),
        ([1, [5], 8], "a list"),
        ([1, None, 8], "null"),
        (["--1", 5, 8], "a text"),
        ([-2, 5, 8], "-2 is negative"),
        ([1, 5, 13], "13 is out of range: the target has 12 layers"),
        ([5, 5, 8], "2 slots for 3 ids"),
    ],
    ids=str,
)
def test_illegal_ids_fail(tmp_path: Path, ids: object, said: str) -> None:
    found = with_ids(tmp_path, ids)
    assert found["verdict"] == "FAIL"
    assert said in found["summary"]


@pytest.mark.parametrize(("ids", "verdict"), [(["1", " 5 ", "-1"], "FAIL"), ([1.0, 5, 8.0], "WARN")], ids=str)
def test_ids_that_spell_numbers_get_a_fix(tmp_path: Path, ids: list[object], verdict: str) -> None:
    found = with_ids(tmp_path, ids)
    assert found["verdict"] == verdict
    config = json.loads((tmp_path / "d" / "config.json").read_text())
    fixed = apply_patch(config, found["fix"]["patch"])
    (tmp_path / "d" / "config.json").write_text(json.dumps(fixed))
    assert all(type(item) is int for item in fixed["eagle_config"][KEY])
    assert finding(tmp_path / "d", tmp_path / "t")["verdict"] in ("PASS", "INFO")


def test_an_id_that_only_the_other_reading_reaches_is_left_to_the_layers(tmp_path: Path) -> None:
    assert with_ids(tmp_path, [2, 6, 12])["verdict"] == "PASS"


@pytest.mark.parametrize("eagle_config", ["absent", None, {}, {KEY: None}], ids=str)
def test_absent_ids_warn_and_name_the_guess(tmp_path: Path, eagle_config: object) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "eagle_config"}
    if eagle_config != "absent":
        config["eagle_config"] = eagle_config
    draft = write_draft(tmp_path / "d", config, {})
    found = finding(draft, write_target(tmp_path / "t", 61))
    assert found["verdict"] == "WARN"
    assert "states 2, 30 and 58 of 61 layers" in found["summary"]
    assert "[2, n//2, n-3]" in finding(draft)["summary"]


def test_a_misspelt_key_is_pointed_at(tmp_path: Path) -> None:
    config = {**CONFIG, "eagle_config": {"eagle_aux_hidden_states_layer_ids": [1, 5, 8]}}
    found = finding(write_draft(tmp_path / "d", config, {}))
    assert found["verdict"] == "WARN"
    assert "'eagle_aux_hidden_states_layer_ids' in eagle_config looks like it" in found["summary"]


def test_ids_at_the_top_level_alone_warn_for_sglang(tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "eagle_config"} | {KEY: [2, 6, 9]}
    found = finding(write_draft(tmp_path / "d", config, {}), write_target(tmp_path / "t"))
    assert found["verdict"] == "WARN"
    assert found["evidence"]["path"] == f"/{KEY}"
    assert "only at the top level" in found["summary"]
    assert found["fix"] is None


@pytest.mark.parametrize(
    ("top", "verdict"),
    [([1, 5, 8], "PASS"), ([2, 6, 9], "PASS"), ([3, 7, 10], "WARN"), ([2, 6], "WARN"), ("x", "WARN")],
    ids=str,
)
def test_two_places(tmp_path: Path, top: object, verdict: str) -> None:
    """SGLang reads one as id + 1 and vLLM the other as id: one apart is a pair that agrees."""
    assert with_ids(tmp_path, [1, 5, 8], top)["verdict"] == verdict


def test_a_draft_without_aux_states_has_no_ids_to_check(tmp_path: Path) -> None:
    config = {**CONFIG, "eagle_config": {"use_aux_hidden_state": False, KEY: "nonsense"}}
    assert finding(write_draft(tmp_path / "d", config, {}))["verdict"] == "INFO"


def test_eagle_config_of_another_kind_fails(tmp_path: Path) -> None:
    config = {**CONFIG, "eagle_config": [1, 5, 8]}
    assert finding(write_draft(tmp_path / "d", config, {}))["verdict"] == "FAIL"


@pytest.mark.parametrize("ids", [None, [2, 6, 9]])
def test_the_speculators_layout_is_one_quiet_finding(tmp_path: Path, ids: object) -> None:
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 10,
        "transformer_layer_config": {key: value for key, value in CONFIG.items() if key.startswith(("num", "hid"))},
        KEY: ids,
    }
    found = finding(write_draft(tmp_path / "d", config, {}))
    assert found["verdict"] == "INFO"
    assert "see cfg.format" in found["summary"]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "it is empty"),
        (b'{"a": 1,}', "line 1, column"),
        (b"[1, 2]", "a JSON list, not an object"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"[" * 100_000, "not"),
        (b'{"a": ' + b"9" * 5000 + b"}", ""),
    ],
    ids=["empty", "comma", "list", "utf-16", "deep", "long number"],
)
def test_a_config_that_cannot_be_parsed_fails_and_the_rest_goes_on(tmp_path: Path, raw: bytes, said: str) -> None:
    draft = write_draft(tmp_path / "d", raw)
    report = answer({"draft": str(draft), "only": ["cfg", "ckpt"]}, lambda event: None)
    by_check = {item["check"]: item for item in report["findings"]}
    if said:
        assert by_check["cfg.aux_ids"]["verdict"] == "FAIL"
        assert said in by_check["cfg.aux_ids"]["summary"]
        assert by_check["ckpt.shapes"]["verdict"] == "UNKNOWN"
        assert by_check["ckpt.vocab_map"]["verdict"] == "UNKNOWN"
    assert "internal" not in by_check


@pytest.mark.parametrize(
    ("ids", "architecture", "engine", "verdict"),
    [
        ([1, 5, 11], "LlamaForCausalLM", ["sglang", "0.5.12"], "FAIL"),
        ([1, 5, 11], "Gemma3ForCausalLM", ["sglang", "0.5.12"], "PASS"),
        ([4, 8, 12], "GptOssForCausalLM", ["sglang", "0.5.17"], "PASS"),
        ([4, 8, 12], "GptOssForCausalLM", ["sglang", "0.5.16"], "FAIL"),
        ([-1, 5, 8], "LlamaForCausalLM", ["sglang", "0.5.12"], "WARN"),
        ([1, 5, 8], "LlamaForCausalLM", ["sglang", "0.5.12"], "PASS"),
        ([1, 5, 11], "SomeOtherForCausalLM", ["sglang", "0.5.12"], "PASS"),
    ],
    ids=str,
)
def test_ids_beyond_the_loop_of_a_named_engine(
    tmp_path: Path, ids: list[int], architecture: str, engine: list[str], verdict: str
) -> None:
    target = write_target(tmp_path / "t", 12, architectures=[architecture])
    draft = write_draft(tmp_path / "d", {**CONFIG, "eagle_config": {KEY: ids}}, {})
    found = finding(draft, target, engines=[dict(zip(("name", "version"), engine))])
    assert found["verdict"] == verdict
    if verdict == "FAIL":
        said = "R_13 is not within" if 12 in ids else "the boundary after the last block"
        assert said in found["summary"]
    if verdict != "PASS":
        assert "sglang==" in found["summary"]


def test_the_numbers_of_the_default_states_are_told_as_boundaries(tmp_path: Path) -> None:
    """[2, n//2, n-3] means the defaults where id is the boundary, one late where it is the layer: never a verdict."""
    found = with_ids(tmp_path, [2, 21, 39], layers=42)
    assert found["verdict"] == "INFO"
    assert "k=id" in found["summary"]


@pytest.mark.parametrize(("version", "fed"), [("0.5.12", [3, 31, 59]), ("0.5.13", [2, 30, 58])])
def test_the_states_an_engine_feeds_under_legal_ids_are_named(tmp_path: Path, version: str, fed: list[int]) -> None:
    target = write_target(tmp_path / "t", 61, architectures=["KimiK25ForConditionalGeneration"])
    draft = write_draft(tmp_path / "d", {**CONFIG, "eagle_config": {KEY: [2, 30, 58]}}, {})
    found = finding(draft, target, engines=[{"name": "sglang", "version": version}])
    assert found["evidence"]["feeds"] == {f"sglang=={version}": fed}
    assert f"sglang=={version} feeds states {', '.join(map(str, fed))}" in found["summary"]


@pytest.mark.parametrize(
    ("version", "family", "inner", "top", "verdict"),
    [
        ("0.11.0", "Llama", [2, 30, 57], [2, 30, 57], "WARN"),  # reads no ids at all
        ("0.11.0", "Llama", [1, 29, 57], None, "PASS"),  # its defaults are what they mean to SGLang
        ("0.11.1", "Llama", [1, 28, 50], None, "WARN"),  # reads the top level alone
        ("0.11.1", "Llama", [1, 28, 50], [2, 29, 51], "PASS"),
        ("0.12.0", "DeepseekV3", None, [2, 30, 61], "FAIL"),  # the loop stops before the last boundary
        ("0.24.0", "DeepseekV3", None, [2, 30, 61], "FAIL"),  # and so it does for this family still
        ("0.33.0", "DeepseekV3", None, [2, 30, 61], "PASS"),
    ],
)
def test_ids_an_engine_passes_over(
    tmp_path: Path, version: str, family: str, inner: list[int] | None, top: list[int] | None, verdict: str
) -> None:
    config: dict[str, Any] = {**CONFIG, "eagle_config": {KEY: inner} if inner else {}}
    if top is not None:
        config[KEY] = top
    target = write_target(tmp_path / "t", 61, architectures=[f"{family}ForCausalLM"])
    engines = [{"name": "vllm", "version": version}]
    assert finding(write_draft(tmp_path / "d", config, {}), target, engines=engines)["verdict"] == verdict


@pytest.mark.parametrize(
    ("engine", "version", "architecture", "refused"),
    [
        ("vllm", "0.10.0", "Qwen3ForCausalLM", True),
        ("vllm", "0.10.1.1", "Qwen3ForCausalLM", False),
        ("vllm", "0.10.2", "Qwen3MoeForCausalLM", True),
        ("vllm", "0.11.1", "Qwen3MoeForCausalLM", False),
        ("vllm", "0.11.2", "MistralForCausalLM", True),  # its class would; the config of speculation does not
        ("vllm", "0.15.0", "MistralForCausalLM", False),  # not looked into
        ("vllm", "0.23.0", "Qwen3NextForCausalLM", True),
        ("vllm", "0.24.0", "Qwen3NextForCausalLM", False),
        ("vllm", "0.33.0", "Glm4MoeForCausalLM", True),
        ("vllm", "0.34.0", "Glm4MoeForCausalLM", False),
        ("vllm", "0.33.0", "SomethingForCausalLM", False),
        ("sglang", "0.5.8", "Qwen3NextForCausalLM", True),
        ("sglang", "0.5.9", "Qwen3NextForCausalLM", False),
        ("sglang", "0.5.4.post1", "KimiK25ForConditionalGeneration", True),
        ("sglang", "0.4.7", "Qwen3ForCausalLM", False),  # not looked into
        ("sglang", "0.5.23", "SomethingForCausalLM", False),
    ],
)
def test_a_release_that_takes_no_states_from_the_target_is_named(
    tmp_path: Path, engine: str, version: str, architecture: str, refused: bool
) -> None:
    ids = {KEY: [2, 30, 58], "eagle_config": {KEY: [1, 29, 57]}}
    target = write_target(tmp_path / "t", 61, architectures=[architecture])
    draft = write_draft(tmp_path / "d", {**CONFIG, **ids}, {})
    found = finding(draft, target, engines=[{"name": engine, "version": version}])
    assert ("cannot serve EAGLE-3 for" in found["summary"]) is refused
    assert found["verdict"] == ("WARN" if refused else "PASS")


def test_a_source_that_takes_no_states_from_the_target_condemns(tmp_path: Path) -> None:
    models = tmp_path / "e" / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (models / "qwen3.py").write_text("class Qwen3ForCausalLM:\n    pass\n\n\nEntryClass = Qwen3ForCausalLM\n")
    target = write_target(tmp_path / "t", 61, architectures=["Qwen3ForCausalLM"])
    draft = write_draft(tmp_path / "d", {**CONFIG, "eagle_config": {KEY: [1, 29, 57]}}, {})
    found = finding(draft, target, engine_source=str(tmp_path / "e"))
    assert found["verdict"] == "FAIL"
    assert "cannot feed an EAGLE-3 draft from it" in found["summary"]


def test_a_folder_of_weights_without_a_config_cannot_be_loaded(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d")
    (draft / "config.json").unlink()
    assert finding(draft)["verdict"] == "FAIL"
    # A lone file of weights was given on purpose.
    assert finding(draft / "model.safetensors")["verdict"] == "UNKNOWN"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"target_layer_ids": [1, 5, 9]}, "'target_layer_ids' holds [1, 5, 9]"),
        ({"layer_ids": [1, 5, 9]}, "'layer_ids' holds [1, 5, 9]"),
        ({"eagle_config": {"aux_layers": [1, 5, 9]}}, "'aux_layers' in eagle_config holds [1, 5, 9]"),
        ({"eagle3_layers_to_capture": [1, 5, 9]}, "'eagle3_layers_to_capture' holds [1, 5, 9]"),
        ({"layer_types": ["full_attention"]}, ""),
    ],
)
def test_ids_under_the_name_of_another_tool_are_pointed_out(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    config = {key: value for key, value in CONFIG.items() if key not in (KEY, "eagle_config")}
    found = finding(write_draft(tmp_path / "d", {**config, **change}, {}), write_target(tmp_path / "t"))
    assert found["verdict"] == "WARN"
    assert (told in found["summary"]) if told else ("holds" not in found["summary"])
