"""Which engine the evidence points to: named, given as source, running, installed, or assumed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checks.engines import Engine, engines_for
from checks.engines.locate import Entry, entry_of, locate, version_beside
from checks.errors import NotRunnable
from checks.request import EngineRequest, Request, ServerRequest
from tests.checks.test_probe import source, tree
from tests.console.engine_process import running_engine, speculative_flags
from tests.console.random_pair import write_random_pair

ROOT = Path(__file__).resolve().parents[2]
SGLANG = (EngineRequest("sglang"),)


def evidence(architecture: str = "ToyForCausalLM", config: dict[str, Any] | None = None, **request: Any) -> Any:
    return SimpleNamespace(
        request=Request(**request),
        target=SimpleNamespace(architecture=architecture, n=61),
        draft=SimpleNamespace(config=config or {}),
    )


def one(given: Any) -> Engine:
    (engine,) = engines_for(given)
    return engine


def package(root: Path, version: str = "0.5.12", **files: str) -> Path:
    """A folder that holds a package `sglang` with model files and its dist-info; returns the folder."""
    tree(root / "sglang", **(files or {"toy": source()}))
    (root / "sglang" / "__init__.py").write_text("raise RuntimeError('the engine was imported')\n")
    info = root / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n\nVersion: 9.9\n")
    return root


def test_nothing_given_is_no_engine() -> None:
    assert engines_for(evidence()) == ()


def test_a_named_version_is_answered_from_the_table() -> None:
    engine = one(evidence("DeepseekV3ForCausalLM", engines=(EngineRequest("sglang", "0.5.12"),)))
    assert (engine.source, engine.label) == ("given", "sglang==0.5.12")
    assert engine.rule is not None
    assert engine.rule.served([2, 30, 58], 61).states == (3, 31, 59)
    assert engine.as_json() == {"name": "sglang", "version": "0.5.12", "source": "given"}


def test_several_engines_each_get_their_own_rule() -> None:
    asked = (EngineRequest("sglang", "0.5.12"), EngineRequest("sglang", "0.5.23"), EngineRequest("vllm", "0.24.0"))
    engines = engines_for(evidence("DeepseekV3ForCausalLM", engines=asked))
    fed = [engine.rule.served([2, 30, 58], 61).states for engine in engines if engine.rule]
    assert fed == [(3, 31, 59), (2, 30, 58), (2, 30, 58)]


def test_an_unknown_name_cannot_be_run() -> None:
    with pytest.raises(NotRunnable, match="known are sglang, vllm"):
        engines_for(evidence(engines=(EngineRequest("other"),)))


@pytest.mark.parametrize("version", ["garbage", "main", "x1.2", "\x1b[2J", "."])
def test_what_is_no_version_cannot_be_run(version: str) -> None:
    with pytest.raises(NotRunnable, match=r"that is no version; give its numbers, like 0\.12\.3"):
        engines_for(evidence(engines=(EngineRequest("sglang", version),)))


@pytest.mark.parametrize("version", ["99.9", "7", "0.5.99.dev3"])
def test_a_release_beyond_the_table_is_judged_by_its_newest_rule_and_said_to_be(version: str) -> None:
    engine = one(evidence("LlamaForCausalLM", engines=(EngineRequest("sglang", version),)))
    assert engine.rule is not None
    assert f"{version} is newer than the table" in engine.note


def test_a_given_source_is_probed_and_names_its_version(tmp_path: Path) -> None:
    for root in (package(tmp_path), tmp_path / "sglang"):
        engine = one(evidence(engine_source=str(root)))
        assert (engine.source, engine.version) == ("probed", "0.5.12")
        assert engine.where.rpartition(":")[0].endswith("toy.py")


def test_a_source_that_is_no_engines_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(NotRunnable, match="no model files"):
        engines_for(evidence(engine_source=str(tmp_path)))


def test_a_source_unlike_the_table_says_so(tmp_path: Path) -> None:
    patched = source().replace("ToyForCausalLM", "LlamaForCausalLM").replace("val + 1", "val")
    ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [7, 8, 9]}}
    engine = one(evidence("LlamaForCausalLM", ids, engine_source=str(package(tmp_path, llama=patched))))
    assert "patched" in engine.note
    assert "the source feeds 7,8,9" in engine.note
    assert "the table says 8,9,10" in engine.note


def test_a_source_that_cannot_be_read_has_no_rule_and_is_not_guessed(tmp_path: Path) -> None:
    odd = (
        source().replace("ToyForCausalLM", "LlamaForCausalLM").replace("[val + 1 for val in layer_ids]", "f(layer_ids)")
    )
    engine = one(evidence("LlamaForCausalLM", engine_source=str(package(tmp_path, llama=odd))))
    assert engine.rule is None
    assert "llama.py:" in engine.note


def test_the_running_servers_own_source_is_found_and_not_imported(tmp_path: Path) -> None:
    package(tmp_path)
    server = ServerRequest(
        argv=(sys.executable, "-m", "sglang.launch_server", "--model-path", "m"), cwd="/", pythonpath=str(tmp_path)
    )
    for given in (evidence(server=server), evidence(server=server, engines=SGLANG)):
        engine = one(given)
        assert (engine.source, engine.version) == ("probed", "0.5.12"), engine.note
        assert str(tmp_path) in engine.where


def test_a_relative_interpreter_and_module_mean_those_of_the_servers_folder(tmp_path: Path) -> None:
    package(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    server = ServerRequest(argv=("bin/python", "-msglang.launch_server"), cwd=str(tmp_path))
    assert str(tmp_path) in one(evidence(server=server)).where


def test_the_deployments_python_is_asked_when_nothing_runs(tmp_path: Path) -> None:
    package(tmp_path)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    engine = one(evidence(engines=SGLANG, python=str(python)))
    assert (engine.source, engine.version) == ("probed", "0.5.12")


def test_nothing_found_is_assumed_and_says_why() -> None:
    engine = one(evidence("LlamaForCausalLM", engines=SGLANG, python="/nowhere/python"))
    assert engine.source == "assumed"
    assert "/nowhere/python" in engine.note
    assert engine.rule is not None


def test_a_module_of_another_name_is_not_given_this_engines_version(tmp_path: Path) -> None:
    tree(tmp_path / "mine" / "engine", toy=source())
    server = ServerRequest(argv=(sys.executable, "-m", "mine.engine"), cwd=str(tmp_path))
    engine = one(evidence(engines=SGLANG, server=server))
    assert (engine.source, engine.version) == ("probed", "")
    assert engine.label == "sglang"


def test_vllm_reads_the_ids_from_the_place_that_is_there() -> None:
    top, inside = "/eagle_aux_hidden_state_layer_ids", "/eagle_config/eagle_aux_hidden_state_layer_ids"
    asked = (EngineRequest("vllm", "0.24.0"),)
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}
    assert one(evidence("X", ids, engines=asked)).pointer == top
    assert one(evidence("X", {"eagle_config": ids, **ids}, engines=asked)).pointer == top
    assert one(evidence("X", {"eagle_config": ids}, engines=asked)).pointer == inside
    assert one(evidence("X", {}, engines=asked)).pointer == top


def test_without_a_target_the_rule_is_not_known() -> None:
    given = evidence("", engines=(EngineRequest("sglang", "0.5.12"),))
    engine = one(given)
    assert engine.rule is None
    assert engine.note


def test_the_embedded_engine_is_probed_through_its_running_process(tmp_path: Path) -> None:
    target, draft = write_random_pair(tmp_path)
    with running_engine(tmp_path, target, *speculative_flags(draft)) as engine:
        # What the console sees of the process on the host: its command line, folder and environment in /proc.
        proc = Path("/proc") / str(engine.process.pid)
        engine.wait_for("server_args=")
        argv = tuple(part.decode() for part in (proc / "cmdline").read_bytes().rstrip(b"\0").split(b"\0"))
        environment = dict(
            item.decode().split("=", 1) for item in (proc / "environ").read_bytes().split(b"\0") if b"=" in item
        )
        server = ServerRequest(
            argv=argv, cwd=os.readlink(proc / "cwd"), pythonpath=environment.get("PYTHONPATH", ""), url=engine.url
        )
        found = one(evidence("LlamaForCausalLM", engines=SGLANG, server=server))
    assert found.source == "probed", found.note
    assert Path(found.where.rpartition(":")[0]) == ROOT / "console" / "demo" / "engine" / "models" / "llama.py"
    assert found.rule is not None
    assert found.rule.served([2, 6, 9], 12).states == (3, 7, 10)


@pytest.mark.parametrize(
    ("argv", "entry"),
    [
        (["python3", "-m", "sglang.launch_server", "--tp", "8"], Entry("python3", "sglang.launch_server")),
        (["/v/bin/python3.11", "-u", "-X", "dev", "-m", "a.b"], Entry("/v/bin/python3.11", "a.b")),
        (["/v/bin/python", "/v/bin/sglang", "serve"], Entry("/v/bin/python", "sglang", script=True)),
        (["python", "-c", "import x"], None),
        (["python", "serve.py"], None),
        (["sglang::scheduler_TP0"], None),
        (["/usr/bin/node", "x"], None),
        ([], None),
    ],
)
def test_how_a_server_was_started_is_read_from_its_command_line(argv: list[str], entry: Entry | None) -> None:
    assert entry_of(argv) == entry


def test_a_console_script_names_its_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "sglang"
    script.write_text("#!/opt/venv/bin/python3\nimport sglang\n")
    assert entry_of([str(script), "serve"]) == Entry("/opt/venv/bin/python3", "sglang", script=True)
    assert entry_of(["./sglang", "serve"], str(tmp_path)) == Entry("/opt/venv/bin/python3", "sglang", script=True)


def test_the_working_folder_counts_for_a_module_and_not_for_a_script(tmp_path: Path) -> None:
    tree(tmp_path / "mine", toy=source())
    assert locate(Entry(sys.executable, "mine"), str(tmp_path))[0] is not None
    assert locate(Entry(sys.executable, "mine", script=True), str(tmp_path))[0] is None


def test_a_stdlib_name_in_the_working_folder_does_not_get_run(tmp_path: Path) -> None:
    tree(tmp_path / "mine", toy=source())
    for name in ("json", "importlib"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('ran')\n")
    found, why = locate(Entry(sys.executable, "mine"), str(tmp_path))
    assert found is not None, why


def test_an_interpreter_that_fails_says_how(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    python.chmod(0o755)
    found, why = locate(Entry(str(python), "sglang"))
    assert found is None
    assert "no such luck" in why


@pytest.mark.parametrize("name", ["a;b", "../x", "", "a.b-c"])
def test_a_module_name_is_a_module_name(name: str) -> None:
    assert locate(Entry(sys.executable, name))[0] is None


def test_the_version_is_a_literal_or_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "sglang"
    folder.mkdir()
    (folder / "version.py").write_text("import os\n__version__ = os.getcwd()\n")
    assert version_beside(folder) == ""
    (folder / "_version.py").write_text("__version__ = version = '0.5.14'\n")
    assert version_beside(folder) == "0.5.14"
