"""flags.parse: every spelling of one command line reads the same, and flags belong to releases."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.engines.sglang.launch import parse_argv
from checks.engines.sglang.options import NAMES, canonical
from tests.checks.asking import ask

SPELLINGS = [
    "python3 -m sglang.launch_server --model-path /m --speculative-algorithm EAGLE3 --speculative-draft-model-path /d "
    "--tp-size 8 --mem-fraction-static 0.8 --trust-remote-code",
    "sglang serve --model /m --speculative-algo EAGLE3 --speculative-draft /d --tp 8 --mem-fraction 0.8 --trust-remote",
    "python -m sglang.launch_server --model-path=/m --speculative-algorithm=EAGLE3 --speculative-draft-model=/d "
    "--tensor-parallel-size=8 --mem-fraction-static=0.8 --trust-remote-code",
    "CUDA_VISIBLE_DEVICES=0,1 X='a b' python3 -m sglang.launch_server \\\n  --model_path \"/m\" \\\n"
    "  --speculative_algorithm 'EAGLE3' \\\n  --speculative_draft_model_path /d \\\n  --tp 8 "
    "--mem_fraction_static 0.8 --trust-remote-code > server.log 2>&1 &",
    "nohup python3 -m sglang.launch_server --trust-remote-code --tp 4 --tp 8 --mem-fraction-static 0.8 "
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path /d --model-path /m | tee log",
]


@pytest.mark.parametrize("line", SPELLINGS)
def test_every_spelling_reads_the_same(line: str) -> None:
    facts = parse_argv(shlex.split(line))
    assert facts.flags == {
        "model-path": "/m",
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": "/d",
        "tp-size": "8",
        "mem-fraction-static": "0.8",
        "trust-remote-code": True,
    }
    assert (facts.model, facts.draft, facts.algorithm) == ("/m", "/d", "EAGLE3")


def test_a_list_of_items_as_a_container_has_them() -> None:
    items = ["python3", "-m", "sglang.launch_server", "--model-path", "/m", "--cuda-graph-bs", "1", "2", "--tp=8"]
    assert parse_argv(items).flags == {"model-path": "/m", "cuda-graph-bs": ["1", "2"], "tp-size": "8"}


def test_variables_in_front_are_the_environment() -> None:
    facts = parse_argv(shlex.split(SPELLINGS[3]))
    assert facts.env == {"CUDA_VISIBLE_DEVICES": "0,1", "X": "a b"}
    assert facts.entrypoint == "sglang.launch_server"


def test_options_of_a_wrapper_are_not_the_servers() -> None:
    line = "docker run --gpus all --shm-size 32g img python3 -m sglang.launch_server --model-path /m"
    assert parse_argv(shlex.split(line)).flags == {"model-path": "/m"}


@given(st.sampled_from(sorted(NAMES)))
def test_a_name_is_its_own_spelling(name: str) -> None:
    assert canonical(canonical(name)) == canonical(name)


@pytest.mark.parametrize("name", ["speculative", "speculative-num", "t", ""])
def test_an_ambiguous_beginning_stays_as_it_is(name: str) -> None:
    assert canonical(name) == name


@pytest.mark.parametrize(
    ("args", "engine", "verdict", "said"),
    [
        ("--tp 8", (), "PASS", "all known"),
        ("--no-such-flag 3", (), "INFO", "--no-such-flag"),
        ("--speculative-num-step-s 3", (), "INFO", "(--speculative-num-steps?)"),
        ("--speculative-draft-model-quantization unquant", "sglang==0.5.6", "FAIL", "0.5.7 and later"),
        ("--speculative-draft-model-quantization unquant", "sglang==0.5.7", "PASS", ""),
        ("--speculative-draft-model-quantization unquant", (), "PASS", ""),
        ("--speculative-draft /d", "sglang==0.5.1", "PASS", ""),
        ("--speculative-draft /d", "sglang==0.5.2", "FAIL", "up to 0.5.1"),
        ("--speculative-skip-dp-mlp-sync", "sglang==0.5.23", "FAIL", "0.5.11–0.5.22"),
        ("--speculative-algorithm eagle3", "sglang==0.5.11", "FAIL", "capitals"),
        ("--speculative-algorithm eagle3", "sglang==0.5.12", "PASS", ""),
        ("--speculative-algorithm DFLASH", "sglang==0.5.10", "FAIL", "0.5.11 and later"),
        ("--speculative-algorithm EAGEL3", "sglang==0.5.12", "INFO", "a slip"),
    ],
)
def test_flags_belong_to_releases(args: str, engine: Any, verdict: str, said: str) -> None:
    found = ask("flags.parse", engine=engine, args=args)
    assert found["verdict"] == verdict
    assert said in found["summary"]


def test_secrets_are_not_repeated() -> None:
    found = ask("flags.parse", args="--api-key sekrit --tp 8")
    assert "sekrit" not in str(found)


@given(st.text(max_size=60))
def test_any_text_gives_a_finding(text: str) -> None:
    words = text.split()
    (found,) = [item for item in _answers(words) if item["check"] == "flags.parse"] or [{"check": "flags.parse"}]
    assert found["check"] == "flags.parse"


def _answers(words: list[str]) -> list[dict[str, Any]]:
    from checks.answer import answer

    found = answer({"args": words, "only": ["flags"]}, lambda event: None)["findings"]
    assert all(item["check"] != "internal" for item in found)
    return [dict(item) for item in found]
