"""Reading a release's source for what our tables do not say: rules, flags and fields of the log's lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.engines.sglang.flags import schema
from checks.engines.tree import SourceUnknown
from checks.engines.vllm import flags as vllm_flags
from tests.checks.test_probe import SETTER, source, tree
from tests.drift.report import drift, fields, flags, rules

FIRST_IS_1 = SETTER.replace(
    "        self.model.layers_to_capture = [val + 1 for val in layer_ids]",
    "        if layer_ids and layer_ids[0] == 1:\n"
    "            self.model.layers_to_capture = [val + 1 for val in layer_ids]\n"
    "        else:\n"
    "            self.model.layers_to_capture = list(layer_ids)",
)
MAX_IS_N = FIRST_IS_1.replace("layer_ids[0] == 1", "max(layer_ids) != self.config.num_hidden_layers")


def model(setter: str, architecture: str) -> str:
    return source(setter).replace("ToyForCausalLM", architecture)


def test_a_changed_rule_is_found_by_tables_of_the_release_before(tmp_path: Path) -> None:
    root = tree(tmp_path, deepseek_v2=model(FIRST_IS_1, "DeepseekV3ForCausalLM"))
    assert list(rules(root, "0.5.13")) == []
    (line,) = rules(root, "0.5.12")
    assert "DeepseekV3ForCausalLM" in line
    assert "give 2,30,58, the table says 3,31,59" in line


def test_a_rule_that_changed_at_the_largest_id_is_found(tmp_path: Path) -> None:
    root = tree(tmp_path, gpt_oss=model(MAX_IS_N, "GptOssForCausalLM"))
    (line,) = rules(root, "0.5.16")
    assert "GptOssForCausalLM: ids [49, 55, 61] of 61 layers give" in line


def test_a_target_that_the_table_lacks_is_named_and_a_draft_is_not(tmp_path: Path) -> None:
    root = tree(tmp_path, new=model(SETTER, "BrandNewForCausalLM"), draft=model(SETTER, "BrandNewForCausalLMEagle3"))
    (line,) = rules(root, "0.5.23")
    assert line.startswith("BrandNewForCausalLM: not in the table")


ARGUMENTS = """
LOADERS = ["auto", "dummy"]
class ServerArgs:
    decode_log_interval: A[int, "How often a decode line is printed."] = 40
    speculative_algorithm: A[Optional[str], Arg(help="Which " "one.", choices=["EAGLE", "EAGLE3"])] = None
    load_format: A[str, Arg(help="How.", choices=LOADERS, aliases=["--loader"])] = "auto"
    brand_new: A[bool, "What is that?"] = False
    inner: A[int, Arg(no_cli=True)] = 3
    tp_size: int = 1
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=ServerArgs.tp_size, help="Ranks.")
"""


def test_flags_are_read_in_both_ways_they_are_declared(tmp_path: Path) -> None:
    (tmp_path / "srt").mkdir()
    (tmp_path / "srt" / "server_args.py").write_text(ARGUMENTS)
    found = {flag.name: flag for flag in schema(tmp_path)}
    assert set(found) == {
        "decode-log-interval",
        "speculative-algorithm",
        "load-format",
        "brand-new",
        "tensor-parallel-size",
    }
    assert found["decode-log-interval"].default == "40"
    assert (found["speculative-algorithm"].help, found["speculative-algorithm"].choices) == (
        "Which one.",
        ("EAGLE", "EAGLE3"),
    )
    assert (found["load-format"].choices, found["load-format"].aliases) == (("auto", "dummy"), ("loader",))
    assert (found["tensor-parallel-size"].default, found["tensor-parallel-size"].help) == ("1", "Ranks.")
    lines = list(flags(tmp_path, "0.5.1"))
    assert "--brand-new is not known" in lines
    assert not any("decode-log-interval" in line for line in lines)


def test_a_default_that_is_relied_on_and_a_flag_that_went_are_told(tmp_path: Path) -> None:
    (tmp_path / "server_args.py").write_text(ARGUMENTS.replace("= 40", "= 100"))
    lines = list(flags(tmp_path, "0.5.23"))
    assert "--decode-log-interval defaults to 100, not to 40" in lines
    assert any(line.startswith("--speculative-draft-window-size should be there") for line in lines)


def test_arguments_that_are_not_there_or_not_python_are_an_error_and_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(SourceUnknown):
        schema(tmp_path)
    mark = tmp_path / "ran"
    (tmp_path / "server_args.py").write_text(f"open({str(mark)!r}, 'w')\n{ARGUMENTS}")
    assert schema(tmp_path)
    assert not mark.exists()
    (tmp_path / "server_args.py").write_text("class ServerArgs(:")
    with pytest.raises(SourceUnknown):
        schema(tmp_path)


def test_vllms_flags_have_the_same_shape(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "arg_utils.py").write_text(
        "class EngineArgs:\n    model: str = 'm'\n    seed: int = 0\n    def add(parser):\n"
        "        parser.add_argument('--seed', **model_kwargs['seed'])\n"
        "        parser.add_argument('--speculative-config', '-sc', **kwargs)\n"
    )
    found = {flag.name: flag for flag in vllm_flags.schema(tmp_path)}
    assert set(found) == {"seed", "speculative-config"}
    assert found["seed"].default == "0"


REPORTER = """
class Reporter:
    def report_decode_stats(self):
        msg = f"Decode batch{self.it}, #running-req: {self.n}, {self.usage}"
        msg += f"accept len: {self.a:.2f}, accept rate: {self.b:.2f}, "
        msg += f"#moon-phase: {self.moon}, gen throughput (token/s): {self.t:.2f}, #queue-req: {self.q}"
    def other(self):
        return f"something else: {self.x}"
"""


def test_a_field_that_nothing_reads_and_one_that_went_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "srt" / "managers" / "scheduler_components"
    folder.mkdir(parents=True)
    (folder / "metrics_reporter.py").write_text(REPORTER)
    assert list(fields(tmp_path, "0.5.23")) == ["batch lines carry '#moon-phase', which nothing reads"]
    (folder / "metrics_reporter.py").write_text(REPORTER.replace("accept len", "mean accepted"))
    assert "batch lines carry 'accept len' no longer" in list(fields(tmp_path, "0.5.23"))


def test_what_cannot_be_read_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    root = tree(tmp_path, llama=model(SETTER, "LlamaForCausalLM"))
    lines = list(drift(root, "0.5.12"))
    assert any(line.startswith("flags: not read") for line in lines)
    assert not any(line.startswith("rules:") for line in lines)
