"""A request for the flags of the engine that is there: its own source is read, whatever version was named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from checks.__main__ import answer
from checks.errors import NotRunnable
from tests.checks.files import write_target

SGLANG = """
class ServerArgs:
    tp_size: int = 1
    dtype: str = "auto"

def add_cli_args(parser):
    parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=ServerArgs.tp_size, help="Ranks.")
    parser.add_argument("--dtype", default=ServerArgs.dtype, choices=["auto", "half"])
"""
VLLM = '''
class FrontendArgs:
    api_key: str | None = None
    """Keys that
    are taken."""

class Other:
    hidden: int = 3
'''
ADDED = """
class EngineArgs:
    dtype: str = ModelConfig.dtype

def add(parser):
    parser.add_argument("--dtype", **model_kwargs["dtype"])
"""
CONFIG = '''
class ModelConfig:
    dtype: str = Field(default="auto")
    """How weights are held."""
'''


def ask(**request: Any) -> dict[str, Any]:
    return answer({"task": "flags", **request}, lambda event: None)


def package(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def test_the_flags_of_the_source_given_whatever_version_is_named(tmp_path: Path) -> None:
    root = package(
        tmp_path / "sglang",
        {"__init__.py": "", "srt/server_args.py": SGLANG, "version.py": '__version__ = "0.5.12"'},
    )
    found = ask(engines=[{"name": "sglang", "version": "0.4.9"}], engine_source=str(root))
    assert (found["engine"], found["why"], found["where"]) == ({"name": "sglang", "version": "0.5.12"}, "", str(root))
    assert [(item["name"], item["default"], item["choices"], item["aliases"]) for item in found["flags"]] == [
        ("dtype", "'auto'", ("auto", "half"), ()),
        ("tensor-parallel-size", "1", (), ("tp-size",)),
    ]


def test_how_a_value_is_read_is_known_where_the_source_says_it(tmp_path: Path) -> None:
    text = """
class ServerArgs:
    depth: A[int, "How deep."] = 1
    share: A[Optional[float], Arg(help="How much.")] = None
    sizes: A[Optional[List[int]], Arg(nargs="+")] = None
    hooks: A[Optional[List[dict]], Arg(type_parser=json.loads)] = None
    mode: A[Optional[Literal["full", "off"]], "Which."] = None
    flag: A[bool, "Whether."] = False
    raw: A[Dict[str, str], "A mapping."] = None

def add_cli_args(parser):
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--either", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--count", type=int, nargs="*")
    parser.add_argument("--plain", help="As it is.")
    parser.add_argument("--from-elsewhere", **known["from-elsewhere"])
    parser.add_argument("--parsed", type=parse_size)
"""
    (tmp_path / "server_args.py").write_text(text, "utf-8")
    found = {item["name"]: item for item in ask(engines=[{"name": "sglang"}], engine_source=str(tmp_path))["flags"]}
    assert {name: (item["type"], item["many"]) for name, item in found.items()} == {
        "depth": ("int", False),
        "share": ("float", False),
        "sizes": ("int", True),
        "hooks": ("", False),
        "mode": ("str", False),
        "flag": ("switch", False),
        "raw": ("", False),
        "bare": ("switch", False),
        "either": ("switch", False),
        "count": ("int", True),
        "plain": ("str", False),
        "from-elsewhere": ("", False),
        "parsed": ("", False),
    }
    assert found["mode"]["choices"] == ("full", "off")


def test_the_flags_of_the_server_that_runs(tmp_path: Path) -> None:
    package(tmp_path, {"sglang/__init__.py": "", "sglang/srt/server_args.py": SGLANG})
    server = {"argv": [sys.executable, "-m", "sglang.launch_server", "--port", "1"], "cwd": str(tmp_path)}
    found = ask(engines=[{"name": "sglang"}], server=server, python="/no/such/python")
    assert found["where"] == str(tmp_path / "sglang")
    assert len(found["flags"]) == 2


def test_why_there_are_none_is_said(tmp_path: Path) -> None:
    found = ask(engines=[{"name": "sglang"}], python="/no/such/python")
    assert (found["flags"], found["where"]) == ([], "")
    assert "/no/such/python" in found["why"]
    found = ask(engines=[{"name": "sglang"}], engine_source=str(write_target(tmp_path)))
    assert "server_args.py" in found["why"]


def test_vllm_settings_give_defaults_and_help_and_frontend_fields_are_flags(tmp_path: Path) -> None:
    root = package(
        tmp_path / "vllm",
        {
            "engine/arg_utils.py": ADDED,
            "entrypoints/openai/cli_args.py": VLLM,
            "config/model.py": CONFIG,
        },
    )
    found = ask(engines=[{"name": "vllm"}], engine_source=str(root))
    assert [(item["name"], item["default"], item["help"]) for item in found["flags"]] == [
        ("api-key", "None", "Keys that are taken."),
        ("dtype", "'auto'", "How weights are held."),
    ]


def test_a_request_without_a_known_engine_is_refused() -> None:
    with pytest.raises(NotRunnable, match="needs an engine"):
        ask()
    with pytest.raises(NotRunnable, match="not known"):
        ask(engines=[{"name": "other"}])
