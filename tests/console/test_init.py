"""A deployment file from what runs on a host: found, written once, without its secrets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from console import init
from console.cli import main
from console.demo.host import ALIAS
from console.deployment import HostSpec, load_deployment
from console.embedded import Embedded, embedded_host
from console.errors import NotRun, UsageError
from console.exits import Exit
from console.paths import config_dir
from remote.host import LocalHost
from tests.console.engine_process import READY, EngineProcess, running_engine, speculative_flags

# Holds a port under the command line of something else.
HOLD = """
import socket, sys, time
held = socket.create_server(("127.0.0.1", int(sys.argv[-1])))
print(flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with embedded_host("right") as running:
        yield running


@contextmanager
def serving(embedded: Embedded, tmp_path: Path, *flags: str) -> Iterator[EngineProcess]:
    """An engine on this machine that the console did not start."""
    home = embedded.folder.home
    with running_engine(tmp_path, home / "target", *speculative_flags(home / "draft"), *flags) as engine:
        engine.wait_for(READY)
        yield engine


def test_a_running_server_becomes_a_deployment_that_says_the_same(
    embedded: Embedded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = embedded.folder
    words = ["init", ALIAS, "-F", str(folder.deployment.ssh_config), "--cache", str(folder.home / "hidden_states")]
    file = config_dir() / f"{ALIAS}.toml"
    with serving(embedded, tmp_path, "--api-key", "s3cret", "--decode-log-interval", "7") as engine:
        words += ["--port", str(engine.port)]
        assert main([*words, "--dry-run"]) == Exit.OK
        shown = capsys.readouterr()
        assert f'ssh = "{ALIAS}"' in shown.out
        assert not file.exists()
        assert main(words) == Exit.FINDINGS, "nobody agreed"
        assert main([*words, "--yes", "--read-only"]) == Exit.FINDINGS
        assert not file.exists()
        assert main([*words, "--yes"]) == Exit.OK
        shown = capsys.readouterr()
        assert "left out, as secrets: --api-key" in shown.err
        assert shown.out.endswith(f"next: console check {ALIAS} -F {folder.deployment.ssh_config}\n")
        assert "s3cret" not in shown.out + shown.err + file.read_text("utf-8")
        written = load_deployment(ALIAS)
        server = written.server
        assert (written.model.target, written.model.draft) == (str(folder.home / "target"), str(folder.home / "draft"))
        assert (server.entrypoint, server.log, server.port) == (
            "console.demo.engine",
            str(engine.log_path),
            engine.port,
        )
        assert server.args["decode-log-interval"] == 7
        assert server.args["speculative-algorithm"] == "EAGLE3"
        assert file.stat().st_mode & 0o077 == 0

        assert main([*words, "--yes"]) == Exit.FINDINGS, "never over an existing file"
        assert "--force" in capsys.readouterr().err
        # The server found is the deployment's own, and runs as its file says, but for the secret.
        assert main(["status", ALIAS, "-F", str(folder.deployment.ssh_config)]) == Exit.OK
        status = capsys.readouterr().out
        assert f"process {engine.process.pid}" in status
        assert [line.split(":")[0].strip() for line in status.splitlines() if line.startswith("  --")] == ["--api-key"]
    file.unlink()


async def test_of_several_servers_one_must_be_picked(embedded: Embedded, tmp_path: Path) -> None:
    host = LocalHost()
    with serving(embedded, tmp_path) as one, serving(embedded, tmp_path) as two:
        with pytest.raises(UsageError, match=r"several servers.*--port") as told:
            await init.look(host, HostSpec(), "box")
        assert all(str(item.port) in str(told.value) for item in (one, two))
        found = await init.look(host, HostSpec(), "box", two.port)
    assert found.deployment.server.port == two.port
    assert found.deployment.host.python == sys.executable


async def test_where_no_server_runs_what_listens_is_named(tmp_path: Path) -> None:
    from console.demo.setup import free_port

    port = free_port()
    with subprocess.Popen([sys.executable, "-c", HOLD, str(port)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(NotRun, match=f"on port {port}"):
            await init.look(LocalHost(), HostSpec(), "box", port)
        other.kill()


def test_what_the_user_knows_wins() -> None:
    from console.deployment import Deployment

    found = init.completed(init.Found(Deployment("box"), ("set [server] log",)), ["/c"], "/d", "/l")
    assert (found.deployment.model.draft, found.deployment.server.log) == ("/d", "/l")
    assert [item.path for item in found.deployment.caches] == ["/c"]
    assert found.notes == ()


@pytest.mark.parametrize(
    ("host", "name"),
    [("me@gpu-box.example.org:22", "gpu-box"), ("local", "local"), ("me@10.0.0.7", "me-10-0-0-7"), ("../x", "local")],
)
def test_a_deployment_is_called_after_its_host(host: str, name: str) -> None:
    assert init.file_name(host) == name


@pytest.mark.parametrize("name", ["../evil", "/etc/x", ".hidden", "a/b", "a\\b", "-F", "a\nb", ""])
async def test_a_name_whose_file_would_lie_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no name for a deployment"):
        await init.look(LocalHost(), HostSpec(), name)
