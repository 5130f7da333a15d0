"""The speculative flags: the algorithm for the draft, the three numbers, and what becomes of them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.checks.asking import Found, ask, ask_all, draft_of, draft_with, loud
from tests.checks.files import draft_tensors, write_draft, write_target

CHAIN = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
GOOD = f"--model-path /m --speculative-draft-model-path /d --speculative-algorithm EAGLE3 {CHAIN} --tp 2"


def numbers(steps: int | None, topk: int | None, tokens: int | None) -> str:
    given = {"num-steps": steps, "eagle-topk": topk, "num-draft-tokens": tokens}
    return "--speculative-algorithm EAGLE3 " + " ".join(
        f"--speculative-{key} {value}" for key, value in given.items() if value is not None
    )


def applied(args: str, found: Found) -> str:
    """The command line after a flags fix, without the flags it takes out."""
    fix = found["fix"]
    words, kept = args.split(), []
    while words:
        word = words.pop(0)
        value = words.pop(0) if words and not words[0].startswith("--") else None
        if word[2:].partition("=")[0] not in (*fix["unset"], *fix["set"]):
            kept += [word, *([value] if value is not None else [])]
    for key, value in fix["set"].items():
        kept += [f"--{key}", *([] if value is True else [str(value)])]
    return " ".join([*(f"{key}={value}" for key, value in fix["env"].items()), *kept])


def test_without_flags_every_question_is_unknown_once(tmp_path: Path) -> None:
    found = ask_all("flags", draft_of(tmp_path / "d"), engine=["sglang==0.5.12", "sglang==0.5.13"])
    assert {item["verdict"] for item in found} == {"UNKNOWN"}
    assert len({item["check"] for item in found}) == len(found)
    assert all("--args" in item["evidence"]["needs"][0] for item in found)


@pytest.mark.parametrize("engine", [(), "sglang==0.5.12", "sglang==0.5.23"])
def test_a_good_launch_gives_no_warning(tmp_path: Path, engine: Any) -> None:
    found = ask_all("flags", draft_with(tmp_path / "d"), write_target(tmp_path / "t"), engine, GOOD)
    assert loud(found) == {}


def test_other_engines_flags_are_unknown_once_and_not_judged(tmp_path: Path) -> None:
    found = ask_all("flags", draft_of(tmp_path / "d"), engine="vllm==0.30.0", args="--speculative-algorithm EAGLE")
    assert [item["check"] for item in found if item["verdict"] == "UNKNOWN"] == ["flags.parse"]
    assert {item["verdict"] for item in found if item["check"] != "flags.parse"} == {"INFO"}


def method(name: str | None) -> str:
    given = {"model": "/d", "num_speculative_tokens": 3, **({"method": name} if name else {})}
    return f"vllm serve /m --speculative-config {shlex.quote(json.dumps(given))}"


@pytest.mark.parametrize(
    ("args", "verdict"),
    [
        (method("eagle3"), "PASS"),
        (method("eagle"), "FAIL"),
        (method("mtp"), "FAIL"),
        (method(None), "INFO"),
        ("vllm serve /m", "INFO"),
        ("vllm serve /m --speculative-config nonsense", "INFO"),
    ],
)
def test_vllm_names_the_method_in_its_own_flag(tmp_path: Path, args: str, verdict: str) -> None:
    draft = draft_of(tmp_path / "d")
    found = ask("flags.algo_vs_arch", draft, engine="vllm==0.30.0", args=args)
    assert found["verdict"] == verdict
    if verdict == "FAIL":
        fixed = f"vllm serve /m --speculative-config {shlex.quote(found['fix']['set']['speculative-config'])}"
        assert ask("flags.algo_vs_arch", draft, engine="vllm==0.30.0", args=fixed)["verdict"] == "PASS"


def test_eagle3_without_a_draft_loads_the_target_twice(tmp_path: Path) -> None:
    args = f"--model-path /m --speculative-algorithm EAGLE3 {CHAIN}"
    target = write_target(tmp_path / "t")
    assert ask("flags.algo_vs_arch", None, target, "sglang==0.5.18", args)["verdict"] == "FAIL"
    # Flags that are planned go with the draft that is given, and a file of options may name it.
    assert ask("flags.algo_vs_arch", draft_of(tmp_path / "d"), target, "sglang==0.5.18", args)["verdict"] == "PASS"
    assert ask("flags.algo_vs_arch", None, target, "sglang==0.5.18", f"{args} --config f.yaml")["verdict"] == "INFO"
    # A model's own prediction layers need none.
    assert ask("flags.algo_vs_arch", None, target, args="--speculative-algorithm EAGLE")["verdict"] == "PASS"


@pytest.mark.parametrize("engine", [(), "sglang==0.5.12"])
def test_a_part_of_a_command_line_lacks_no_draft(tmp_path: Path, engine: Any) -> None:
    log = tmp_path / "server.log"
    log.write_text("")
    found = ask("flags.algo_vs_arch", engine=engine, args=f"--speculative-algorithm EAGLE3 {CHAIN}", log=str(log))
    assert found["verdict"] == "INFO"
    assert "nothing says which kind the draft is" in found["summary"]
    # A server that runs shows all of its command line, wherever it has its target from.
    argv = ["python", "-m", "sglang.launch_server", "--speculative-algorithm", "EAGLE3"]
    assert ask("flags.algo_vs_arch", engine=engine, server={"argv": argv})["verdict"] == "FAIL"


def test_a_running_server_without_a_draft_is_told_which(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d")
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "/m", "--speculative-algorithm", "EAGLE3"]
    found = ask("flags.algo_vs_arch", draft, engine="sglang==0.5.18", server={"argv": argv})
    assert found["verdict"] == "FAIL"
    assert found["fix"]["set"] == {"speculative-draft-model-path": str(draft)}


def test_a_slip_in_one_of_three_is_mended_in_one_go() -> None:
    args = "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-top-k 1"
    args += " --speculative-num-draft-tokens 4"
    found = ask("flags.triple", args=args)
    assert found["verdict"] == "FAIL"
    assert "--speculative-eagle-top-k is a slip" in found["summary"]
    after = applied(args, found)
    assert ask("flags.triple", args=after)["verdict"] == "PASS"
    assert ask("flags.parse", args=after)["verdict"] == "PASS"


@pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN", "eagle", "STANDALONE"])
@pytest.mark.parametrize("engine", [(), "sglang==0.5.11"])
def test_an_eagle3_draft_under_another_algorithm_fails(tmp_path: Path, algorithm: str, engine: Any) -> None:
    args = f"--speculative-algo {algorithm} {CHAIN}"
    found = ask("flags.algo_vs_arch", draft_of(tmp_path / "d"), engine=engine, args=args)
    assert found["verdict"] == "FAIL"
    assert found["fix"]["set"] == {"speculative-algorithm": "EAGLE3"}
    assert "every release of SGLang" in found["summary"]


def test_the_tensors_tell_an_eagle3_draft_whose_class_is_wrong(tmp_path: Path) -> None:
    draft = draft_with(tmp_path / "d", {"architectures": ["LlamaForCausalLM"]})
    found = ask("flags.algo_vs_arch", draft, args="--speculative-algorithm EAGLE")
    assert found["verdict"] == "FAIL"
    assert found["evidence"]["eagle3_by"] == "d2t"


def test_an_eagle1_draft_under_eagle3_fails(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d", {"architectures": ["LlamaForCausalLMEagle"], "hidden_size": 16}, {})
    assert ask("flags.algo_vs_arch", draft, args="--speculative-algorithm EAGLE3")["verdict"] == "FAIL"
    assert ask("flags.algo_vs_arch", draft, args="--speculative-algorithm EAGLE")["verdict"] == "PASS"


def test_a_draft_that_is_given_and_not_used_warns(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d")
    assert ask("flags.algo_vs_arch", draft, args="--speculative-draft-model /d")["verdict"] == "WARN"
    assert ask("flags.algo_vs_arch", draft, args="--tp 2")["verdict"] == "INFO"


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ((3, 1, 4), "PASS"),
        ((None, None, None), "INFO"),
        ((None, None, 4), "FAIL"),
        ((3, None, None), "FAIL"),
        ((3, 4, None), "FAIL"),
        ((None, 1, None), "FAIL"),
    ],
)
def test_all_three_numbers_or_none(given: tuple[Any, Any, Any], verdict: str) -> None:
    args = numbers(*given)
    found = ask("flags.triple", args=args)
    assert found["verdict"] == verdict
    if verdict == "FAIL":
        after = applied(args, found)
        assert ask("flags.triple", args=after)["verdict"] == "PASS"
        assert ask("flags.topk1_tokens", args=after)["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("engine", "architecture", "chosen"),
    [
        ("sglang==0.5.12", "LlamaForCausalLM", [5, 4, 8]),
        ("sglang==0.5.7", "Qwen3ForCausalLM", [5, 4, 8]),
        ("sglang==0.5.8", "Qwen3ForCausalLM", [3, 1, 4]),
    ],
)
def test_the_numbers_chosen_for_none_are_told(
    tmp_path: Path, engine: str, architecture: str, chosen: list[int]
) -> None:
    target = write_target(tmp_path / "t", architectures=[architecture])
    found = ask("flags.triple", None, target, engine, "--speculative-algorithm EAGLE3")
    assert found["evidence"]["chosen"] == chosen


def test_adaptive_steps_need_no_triple() -> None:
    args = "--speculative-algorithm EAGLE3 --speculative-adaptive --speculative-eagle-topk 1"
    assert ask("flags.triple", args=args)["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("given", "verdict", "now"),
    [((3, 1, 4), "PASS", 4), ((4, 1, 24), "WARN", 5), ((2, 1, 2), "WARN", 3), ((5, 4, 8), "PASS", None)],
)
def test_a_chain_has_steps_plus_one_tokens(given: tuple[int, int, int], verdict: str, now: int | None) -> None:
    args = numbers(*given)
    found = ask("flags.topk1_tokens", args=args)
    assert found["verdict"] == verdict
    assert found["evidence"].get("effective") == now
    if verdict == "WARN":
        assert "SGLang 0.4.6 and later" in found["summary"]
        assert ask("flags.topk1_tokens", args=applied(args, found))["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("given", "verdict", "drafted"),
    [
        ((3, 1, 4), "INFO", 3),
        ((2, 1, 2), "WARN", 2),
        ((4, 1, 24), "INFO", 4),
        ((2, 2, 30), "WARN", 29),
        ((0, 1, 1), "WARN", 0),
    ],
)
def test_the_tokens_really_drafted_are_told(given: tuple[int, int, int], verdict: str, drafted: int) -> None:
    found = ask("flags.effective_k", args=numbers(*given))
    assert found["verdict"] == verdict
    assert found["evidence"]["drafted"] == drafted


@pytest.mark.parametrize(
    ("args", "engine", "verdict"),
    [
        ("--page-size 1 --attention-backend fa3", "sglang==0.5.4", "PASS"),
        ("--page-size 64 --attention-backend fa3", "sglang==0.5.4", "FAIL"),
        ("--page-size 64 --attention-backend fa3", "sglang==0.5.12", "PASS"),
        ("--page-size 64 --attention-backend triton", "sglang==0.5.12", "FAIL"),
        ("--page-size 64 --attention-backend triton", "sglang==0.5.13", "PASS"),
        ("--page-size 64", "sglang==0.5.13", "UNKNOWN"),
        ("--page-size 64 --attention-backend triton", (), "UNKNOWN"),
        ("--attention-backend trtllm_mha", (), "FAIL"),
    ],
)
def test_a_tree_over_pages(args: str, engine: Any, verdict: str) -> None:
    assert ask("flags.topk_page_size", engine=engine, args=f"{numbers(5, 4, 8)} {args}")["verdict"] == verdict


@pytest.mark.parametrize(
    ("change", "engine", "verdict"),
    [
        ({}, "sglang==0.5.14", "FAIL"),
        ({}, (), "UNKNOWN"),
        ({"draft_vocab_size": 30}, "sglang==0.5.14", "PASS"),
    ],
    ids=str,
)
def test_rejection_sampling_needs_the_whole_vocabulary(
    tmp_path: Path, change: dict[str, Any], engine: Any, verdict: str
) -> None:
    args = f"{numbers(3, 1, 4)} --speculative-use-rejection-sampling"
    assert (
        ask("flags.rejection_sampling", draft_of(tmp_path / "d", change), engine=engine, args=args)["verdict"]
        == verdict
    )


@pytest.mark.parametrize(
    ("variable", "flags", "verdict"),
    [
        ("SGLANG_SIMULATE_ACC_LEN=3.5", "", "FAIL"),
        ("SGLANG_SIMULATE_ACC_LEN=-1", "", "PASS"),
        ("SIMULATE_ACC_LEN=2", "", "FAIL"),
        ("", "--speculative-draft-load-format dummy", "FAIL"),
        ("", "--load-format=dummy", "FAIL"),
        ("", "--load-format auto", "PASS"),
        ("CUDA_LAUNCH_BLOCKING=1", "", "WARN"),
        ("CUDA_LAUNCH_BLOCKING=0", "", "PASS"),
        ("", "--debug-tensor-dump-output-folder /tmp/x", "WARN"),
        ("", "--log-level debug", "INFO"),
    ],
)
def test_switches_left_on(variable: str, flags: str, verdict: str) -> None:
    args = f"{variable} python3 -m sglang.launch_server {GOOD} {flags}"
    found = ask("flags.debug", args=args)
    assert found["verdict"] == verdict
    if verdict in ("FAIL", "WARN"):
        env = found["fix"]["env"]
        after = applied(f"{GOOD} {flags}", found) if not env else GOOD
        assert ask("flags.debug", args=after, env=env)["verdict"] in ("PASS", "INFO")


def test_a_variable_of_another_release_is_no_fault() -> None:
    assert (
        ask("flags.debug", engine="sglang==0.5.12", args="SIMULATE_ACC_LEN=2 sglang serve --tp 1")["verdict"] == "PASS"
    )


@pytest.mark.parametrize(
    ("engine", "verdict"), [((), "WARN"), ("sglang==0.5.10", "INFO"), ("sglang==0.5.11", "WARN")], ids=str
)
def test_graphs_switched_off(engine: Any, verdict: str) -> None:
    assert ask("flags.cuda_graph", engine=engine, args=f"{GOOD} --disable-cuda-graph")["verdict"] == verdict


@pytest.mark.parametrize(
    ("value", "given", "engine", "verdict"),
    [
        ("1", (3, 1, 4), (), "INFO"),
        ("1", (3, 1, 4), "sglang==0.5.4", "INFO"),
        ("1", (3, 1, 4), "sglang==0.5.9", "INFO"),
        ("1", (5, 4, 8), "sglang==0.5.9", "WARN"),
        ("0", (3, 1, 4), "sglang==0.5.12", "INFO"),
        ("0", (3, 1, 4), "sglang==0.5.13", "WARN"),
        ("1", (3, 1, 4), "sglang==0.5.23", "WARN"),
    ],
)
def test_the_variable_of_the_second_worker(value: str, given: tuple[int, int, int], engine: Any, verdict: str) -> None:
    found = ask("flags.spec_v2_env", engine=engine, args=numbers(*given), env={"SGLANG_ENABLE_SPEC_V2": value})
    assert found["verdict"] == verdict


def test_flags_that_are_passed_over_are_told(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d")
    assert ask("flags.ignored", draft, args=f"{GOOD} --speculative-token-map m.pt")["verdict"] == "INFO"
    latent = draft_of(tmp_path / "l", {"architectures": ["Eagle3DeepseekV2ForCausalLM"]})
    args = f"{GOOD} --speculative-draft-window-size 512"
    assert ask("flags.ignored", draft, engine="sglang==0.5.12", args=args)["verdict"] == "PASS"
    assert ask("flags.ignored", latent, engine="sglang==0.5.12", args=args)["verdict"] == "WARN"


def test_every_warning_names_the_releases_of_its_rule(tmp_path: Path) -> None:
    """Advice without its version is what three generations of documents disagree on."""
    draft = draft_with(tmp_path / "d", {"hidden_size": 16})
    target = write_target(tmp_path / "t", hidden=16, sliding_window=512, architectures=["Gemma3ForCausalLM"])
    args = (
        f"{numbers(4, 1, 24)} --mem-fraction-static 0.95 --pp 2 --disaggregation-mode decode --quantization fp8 "
        "--cuda-graph-max-bs 2 --max-running-requests 64 --disable-cuda-graph --speculative-use-rejection-sampling"
    )
    env = {"SGLANG_SIMULATE_ACC_LEN": "3", "SGLANG_ENABLE_SPEC_V2": "0"}
    seen = set()
    for engine in ("sglang==0.5.3", "sglang==0.5.11", "sglang==0.5.20"):
        for item in ask_all("flags", draft, target, engine, args, env=env):
            assert item["check"] != "internal", item
            if item["verdict"] in ("WARN", "FAIL"):
                seen.add(item["check"])
                assert "SGLang" in item["summary"]
                assert item["evidence"]["versions"]
    assert len(seen) >= 8


@pytest.mark.parametrize(("value", "verdict"), [("0.5", "WARN"), ("1.0", "PASS"), ("9", "PASS"), ("x", "PASS")])
@pytest.mark.parametrize("name", ["single", "acc"])
def test_a_threshold_below_one_accepts_too_much(name: str, value: str, verdict: str) -> None:
    args = f"{GOOD} --speculative-accept-threshold-{name} {value}"
    found = ask("flags.accept_threshold", args=args)
    assert found["verdict"] == verdict
    if verdict == "WARN":
        assert ask("flags.accept_threshold", args=applied(args, found))["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("config", "engine", "right"),
    [
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {}}, "sglang==0.5.11", "DFLASH"),
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {}}, "sglang==0.5.10", None),  # not there yet
        ({"speculators_model_type": "dflash", "transformer_layer_config": {}}, "sglang==0.5.23", None),
    ],
)
def test_a_draft_of_another_family_under_eagle3_fails(
    tmp_path: Path, config: dict[str, Any], engine: str, right: str | None
) -> None:
    # Its map of the vocabulary does not make it an EAGLE-3 draft.
    draft = write_draft(tmp_path / "d", config, {"d2t": draft_tensors()["d2t"]})
    found = ask("flags.algo_vs_arch", draft, engine=engine, args=f"--speculative-algorithm EAGLE3 {CHAIN}")
    assert found["verdict"] == "FAIL"
    assert (found["fix"] or {}).get("set") == ({"speculative-algorithm": right} if right else None)
    args = f"--speculative-algorithm DFLASH {CHAIN}"
    assert ask("flags.algo_vs_arch", draft, engine="sglang==0.5.23", args=args)["verdict"] == "PASS"


def test_vllms_method_of_a_draft_of_another_family(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d", {"architectures": ["DFlashDraftModel"], "dflash_config": {}}, {})
    found = ask("flags.algo_vs_arch", draft, engine="vllm==0.32.0", args=method("eagle3"))
    assert found["verdict"] == "FAIL"
    assert '"method": "dflash"' in found["fix"]["set"]["speculative-config"]
    assert ask("flags.algo_vs_arch", draft, engine="vllm==0.32.0", args=method("dflash"))["verdict"] == "PASS"


def test_a_file_of_flags_is_not_taken_for_no_flags(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "d")
    assert ask("flags.algo_vs_arch", draft, engine="sglang==0.5.12", args="--config f.yaml")["verdict"] == "UNKNOWN"
