"""`console flags`: every launch flag of the engine that is there, what is set of it, and what runs otherwise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.cli import main
from console.deployment import save_deployment
from console.embedded import Embedded, embedded_host
from console.exits import Exit
from console.masking import MASK
from console.session import Session

KEY = "hush-hush-27c1"
SOURCE = """
class ServerArgs:
    tp_size: int = 1
    dtype: str = "auto"

def add_cli_args(parser):
    parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=ServerArgs.tp_size, help="Ranks.")
    parser.add_argument("--dtype", default=ServerArgs.dtype, choices=["auto", "half"], help="Of \\x1b[31mweights.")
    parser.add_argument("--cuda-graph-bs", type=int, nargs="+")
    parser.add_argument("--enable-metrics", action="store_true")
"""
Ran = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tree(tmp_path: Path) -> str:
    """An unpacked engine."""
    for name, text in (("__init__.py", ""), ("version.py", '__version__ = "0.5.12"'), ("srt/server_args.py", SOURCE)):
        file = tmp_path / "sglang" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return str(tmp_path / "sglang")


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Ran:
    def call(*words: str) -> tuple[int, str, str]:
        code = main(["flags", *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


# -- of a tree on this machine -----------------------------------------------------------------------------------


def test_the_flags_of_an_unpacked_engine_are_listed_with_type_default_choices_and_help(ran: Ran, tree: str) -> None:
    code, out, err = ran("--engine-source", tree)
    assert (code, err) == (Exit.OK, "")
    assert out.splitlines()[0] == f"sglang 0.5.12, {tree}: 4 flags"
    blocks = {block.split()[0]: block.splitlines()[1:] for block in out.split("\n\n")[1:]}
    shown = {name: [" ".join(line.split()) for line in lines] for name, lines in blocks.items()}
    assert shown == {
        "--cuda-graph-bs": ["default not known"],
        "--dtype": ["default auto", "one of auto, half", r"Of \x1b[31mweights."],
        "--enable-metrics": ["default not known"],
        "--tensor-parallel-size": ["default 1", "also --tp-size", "Ranks."],
    }
    assert "--cuda-graph-bs INT ...\n" in out and "--enable-metrics\n" in out and "--dtype STR\n" in out


def test_words_find_flags_by_name_and_help(ran: Ran, tree: str) -> None:
    code, out, _ = ran("--engine-source", tree, "--json", "RANKS")
    found = json.loads(out)
    assert (code, [flag["name"] for flag in found["flags"]]) == (Exit.OK, ["tensor-parallel-size"])
    assert found["engine"] == {"name": "sglang", "version": "0.5.12", "source": tree}
    assert found["flags"][0] == {
        "name": "tensor-parallel-size",
        "type": "int",
        "many": False,
        "default": "1",
        "choices": [],
        "aliases": ["tp-size"],
        "help": "Ranks.",
        "set": None,
        "set_by": None,
        "running": None,
        "differs": False,
        "refused": None,
    }
    code, out, err = ran("--engine-source", tree, "graph", "nothing")
    assert (code, len(out.splitlines())) == (Exit.FINDINGS, 1)
    assert "graph nothing" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--engine-source", "/no/such/tree"], Exit.NOT_RUN, "/no/such/tree"),
        (["--engine-source", "/", "--engine", "other"], Exit.USAGE, "sglang, vllm"),
        (["no-such-deployment"], Exit.USAGE, "no deployment"),
    ],
)
def test_what_cannot_be_read_says_why(ran: Ran, words: list[str], code: Exit, says: str) -> None:
    found, out, err = ran(*words)
    assert (found, out) == (code, "")
    assert says in err


# -- of a deployment ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def serving() -> Iterator[Embedded]:
    """An embedded host whose server runs with a key, and with another interval than the deployment says."""
    with embedded_host("right") as embedded:
        made = embedded.folder.deployment
        server = replace(made.server, args={**made.server.args, "api-key": KEY}, env={**made.server.env, "SECRET": KEY})
        deployment = replace(made, server=server)
        assert deployment.path is not None
        save_deployment(deployment, deployment.path)
        embedded.folder = replace(embedded.folder, deployment=deployment)
        asyncio.run(start(embedded))
        yield embedded


async def start(embedded: Embedded) -> None:
    session = await Session.open(embedded.folder.deployment)
    try:
        await session.start("test", overrides={"decode-log-interval": 5, "log-level": "debug"})
    finally:
        await session.close()


def on_host(embedded: Embedded, *words: str) -> list[str]:
    return [str(embedded.folder.deployment.path), "-F", str(embedded.folder.deployment.ssh_config), *words]


def test_what_the_deployment_sets_and_what_runs_otherwise_stand_by_each_flag(serving: Embedded, ran: Ran) -> None:
    code, out, err = ran(*on_host(serving, "--json"))
    assert code == Exit.OK, err
    found = json.loads(out)
    assert found["engine"]["source"].endswith("console/demo/engine") and found["pid"]
    flags: dict[str, dict[str, Any]] = {flag["name"]: flag for flag in found["flags"]}
    keys = ("set", "set_by", "running", "differs")
    assert {name: tuple(flags[name][key] for key in keys) for name in ("log-level", "api-key", "dtype")} == {
        "log-level": (None, "only the process that runs has it", "debug", True),
        "api-key": (MASK, "[server.args]", MASK, False),
        "dtype": (None, None, None, False),
    }
    assert tuple(flags["decode-log-interval"][key] for key in keys) == (10, "[server.args]", "5", True)
    assert flags["enable-metrics"]["set"] is flags["enable-metrics"]["running"] is True
    assert flags["model-path"]["running"] == serving.folder.deployment.model.target
    assert found["env"]["SECRET"] == MASK and found["env"]["OPENBLAS_NUM_THREADS"] == "1"
    assert KEY not in out + err


def test_as_text_only_what_is_set_can_be_asked_for(serving: Embedded, ran: Ran) -> None:
    code, out, err = ran(*on_host(serving, "--set"))
    assert code == Exit.OK, err
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0].endswith("2 other than process " + lines[0].rpartition(" process ")[2])
    at = lines.index("--decode-log-interval INT")
    assert lines[at + 1 : at + 4] == ["set 10 ([server.args])", "runs with 5", "default 40"]
    assert f"set {MASK} ([server.args])" in lines and f"set {MASK} ([server.env])" in lines
    assert "--mem-fraction-static FLOAT" not in lines
    assert KEY not in out + err


def test_a_host_whose_python_is_missing_exits_with_3(serving: Embedded, ran: Ran, tmp_path: Path) -> None:
    made = serving.folder.deployment
    file = tmp_path / "other.toml"
    save_deployment(replace(made, host=replace(made.host, python="/no/python")), file)
    code, out, err = ran(str(file), "-F", str(made.ssh_config))
    assert (code, out) == (Exit.NOT_RUN, "")
    assert "/no/python" in err
