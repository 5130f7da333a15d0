"""Reading a release of vLLM for what our tables do not say: rules, flags and the lines of its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checks.test_probe_vllm import BOTH, tree
from tests.drift.__main__ import named
from tests.drift.vllm import drift, flags, lines, rules

NAMES = {"Toy": "Llama", "Older": "DeepseekV3"}
METRICS = """
class SpecDecodingLogging:
    def log(self, log_fn):
        log_fn(
            "SpecDecoding metrics: "
            "Mean acceptance length: %.2f, "
            "Accepted: %d tokens, "
            "Drafted: %d tokens, "
            "Per-position acceptance rate: %s, "
            "Avg Draft acceptance rate: %.1f%%",
            *self.values,
        )
"""
LOGGERS = """
class LoggingStatLogger:
    def log(self):
        log_parts = [
            "Avg prompt throughput: %.1f tokens/s",
            "Avg generation throughput: %.1f tokens/s",
            "Running: %d reqs",
            "Waiting: %d reqs",
        ]
        if self.skipped:
            log_parts.append("Deferred: %d reqs")
        log_parts.extend(["%s KV cache usage: %.1f%%", "Prefix cache hit rate: %.1f%%"])
"""
FILES = {**BOTH, "v1/spec_decode/metrics.py": METRICS, "v1/metrics/loggers.py": LOGGERS}
ARGUMENTS = "class EngineArgs:\n    model: str = 'm'\n    def add(parser):\n        parser.add_argument('--model')\n"


def release(root: Path, *changes: tuple[str, str, str], **more: str) -> Path:
    """A small vLLM whose targets bear names that the tables know."""
    folder = tree(root, *changes, **{**FILES, **more})
    for path in folder.rglob("*.py"):
        text = path.read_text()
        for name, known in NAMES.items():
            text = text.replace(f'"{name}ForCausalLM"', f'"{known}ForCausalLM"')
            text = text.replace(f'("{name.lower()}", "{known}', f'("{name.lower()}", "{name}')
        path.write_text(text)
    return folder


def of_known(found: Any) -> list[str]:
    return [line for line in found if line.startswith(tuple(NAMES.values()))]


def test_a_release_like_the_table_has_no_line(tmp_path: Path) -> None:
    assert of_known(rules(release(tmp_path), "0.33.0")) == [
        "DeepseekV3ForCausalLM: ids [2, 30, 61] of 61 layers give 2,30 and breaks, the table says 2,30,61; "
        "ids [2, 18, 36] of 36 layers give 2,18 and breaks, the table says 2,18,36 (2 of 18 trials differ)"
    ]
    found = of_known(rules(release(tmp_path / "older", **{**BOTH, "config/vllm.py": ""}), "0.24.0"))
    assert [line.partition(":")[0] for line in found] == ["LlamaForCausalLM"]
    assert "ids are read at" in found[0]


def test_a_changed_rule_is_found(tmp_path: Path) -> None:
    patched = ("interfaces.py", "tuple(sorted(set(layers)))", "tuple([layer + 1 for layer in layers])")
    found = of_known(rules(release(tmp_path, patched), "0.33.0"))
    assert any("LlamaForCausalLM: ids None of 61 layers give 3,31,59, the table says" in line for line in found)


def test_a_rule_that_can_no_longer_be_read_is_told_of_targets_that_the_tables_name(tmp_path: Path) -> None:
    patched = ("older.py", "if idx in self", "if idx - 1 in self")
    found = of_known(rules(release(tmp_path, patched), "0.33.0"))
    assert any(line.startswith("DeepseekV3ForCausalLM: named in the tables, and its source says") for line in found)


def test_lines_of_metrics_are_parsed_as_the_source_writes_them(tmp_path: Path) -> None:
    assert list(lines(release(tmp_path), "0.33.0")) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("metrics.py", "Mean acceptance length", "Mean accepted"), "no accept_len is found"),
        (("metrics.py", "SpecDecoding metrics", "Speculation"), "writes no line that begins with 'SpecDecoding"),
        (("loggers.py", "Waiting: %d reqs", "Waiting on %d"), "no queue is found"),
        (("loggers.py", "KV cache usage", "cache in use"), "no token_usage is found"),
    ],
)
def test_a_line_that_changed_is_told(tmp_path: Path, change: tuple[str, str, str], said: str) -> None:
    assert any(said in line for line in lines(release(tmp_path, change), "0.33.0"))


def test_a_flag_that_went_is_told(tmp_path: Path) -> None:
    root = release(tmp_path, **{"engine/arg_utils.py": ARGUMENTS})
    found = list(flags(root, "0.33.0"))
    assert "--speculative-config is not declared" in found
    assert "--model is not declared" not in found


def test_what_cannot_be_read_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    found = list(drift(release(tmp_path), "0.33.0"))
    assert any(line.startswith("flags: not read") for line in found)
    assert any(line.startswith("rules: DeepseekV3ForCausalLM") for line in found)
    assert all("not read" in line for line in drift(tmp_path / "nothing", "0.33.0"))


def test_releases_are_named_with_their_engine_or_without() -> None:
    assert named("0.5.23") == ("sglang", "0.5.23")
    assert named("vllm==0.33.0") == ("vllm", "0.33.0")
    assert (named("vllm"), named("sglang")) == (("vllm", ""), ("sglang", ""))
