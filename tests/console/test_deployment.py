"""The deployment file: what it says is read exactly, and what is wrong in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.deployment import CacheSpec, load_deployment, parse_deployment, save_deployment
from console.errors import DeploymentError
from console.paths import config_dir

FULL = """
[host]
ssh = "gpu-box"  # the alias
python = "~/ml-env/bin/python3"
[model]
target = "/models/target"
draft = "/models/draft"
[[cache]]
path = "/data/states"
states = [3, 31, 59]
[server]
engine = "sglang"
log = "/data/server.log"
url = "http://127.0.0.1:8000"
[server.env]
SGLANG_LOG_MS = "1"
[server.args]
tp-size = 8
trust-remote-code = true
cuda-graph-bs = [1, 2, 4]
"""


def test_a_full_file_is_read() -> None:
    deployment = parse_deployment(FULL, "box")
    assert deployment.name == "box"
    assert deployment.host.ssh == "gpu-box"
    assert deployment.caches == (CacheSpec("/data/states", "", (3, 31, 59)),)
    assert deployment.server.port == 8000
    assert deployment.server.args == {"tp-size": 8, "trust-remote-code": True, "cuda-graph-bs": (1, 2, 4)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[hots]\nssh = "a"', "'hots'; the nearest known one is 'host'"),
        ('[host]\nshh = "a"', "'shh'; the nearest known one is 'ssh'"),
        ('[model]\ntarget_path = "/m"', "the nearest known one is 'target'"),
        ('[server]\nlauncher = "tmx"', "did you mean 'tmux'"),
        ("[server]\nurl = 8000", "must be a string, not a number"),
        ('[server]\nurl = "127.0.0.1"', "is not a url"),
        ('[[cache]]\nstates = ["3"]', "list of whole numbers"),
        ('[cache]\npath = "/d"', "written [[cache]]"),
        ('[server.args]\n"--tp" = 1', "without the dashes"),
        ("[server.env]\nA = 1", "must be a string"),
        ("[host\n", "not valid TOML"),
        ('[host]\nssh = "a\\u0000b"', "NUL"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(DeploymentError) as told:
        parse_deployment(text, "box")
    assert says in str(told.value)


@pytest.mark.parametrize("line", ['model-path = "/other"', 'speculative-draft-model-path = "/other"', "port = 9000"])
def test_a_second_different_value_in_args_is_an_error(line: str) -> None:
    with pytest.raises(DeploymentError, match="contradicts"):
        parse_deployment(f"{FULL}{line}\n", "box")


def test_a_second_equal_value_in_args_is_none() -> None:
    assert parse_deployment(f"{FULL}port = 8000\n", "box").server.args["port"] == 8000


def test_a_name_that_is_not_there_is_met_with_the_nearest() -> None:
    config_dir().mkdir(parents=True, exist_ok=True)
    file = config_dir() / "prod-box.toml"
    file.write_text(FULL, "utf-8")
    try:
        assert load_deployment("prod-box").path == file
        with pytest.raises(DeploymentError, match="did you mean 'prod-box'"):
            load_deployment("prodbox")
    finally:
        file.unlink()


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    deployment = parse_deployment(FULL, "box")
    file = tmp_path / "new" / "box.toml"
    save_deployment(deployment, file)
    again = load_deployment(str(file))
    assert (again.host, again.model, again.caches, again.server) == (
        deployment.host,
        deployment.model,
        deployment.caches,
        deployment.server,
    )


def test_saving_over_a_file_keeps_its_comments(tmp_path: Path) -> None:
    from dataclasses import replace

    file = tmp_path / "box.toml"
    file.write_text(FULL, "utf-8")
    deployment = load_deployment(str(file))
    changed = replace(deployment, server=replace(deployment.server, args={"tp-size": 4}))
    save_deployment(changed, file)
    assert "# the alias" in file.read_text("utf-8")
    assert load_deployment(str(file)).server.args == {"tp-size": 4}
