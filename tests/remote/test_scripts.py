"""The small programs that run on the host: they stand alone, and a host without Python is an error that says so."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from remote import scripts
from remote.errors import CommandFailed, PythonMissing
from remote.files import read
from remote.host import Host

ON_HOST = Path(scripts.__file__).parent / "on_host"
PROGRAMS = sorted(one.stem for one in ON_HOST.glob("*.py") if "__main__" in one.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_imports_only_the_standard_library(name: str) -> None:
    tree = ast.parse(scripts.source(name), feature_version=(3, 9))
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in imported} <= set(sys.stdlib_module_names)
    assert len(scripts.source(name)) < 100_000  # one argument may hold 128 KiB


def test_the_programs_are_those_of_the_folder() -> None:
    assert {"files", "follow", "lock", "relay", "server", "supervise"} <= set(PROGRAMS)


async def test_a_host_without_python_is_an_error_that_says_so(host: Host, tmp_path: Path) -> None:
    host.python = str(tmp_path / "no-python")
    host.facts["script_python"] = host.python
    with pytest.raises(CommandFailed, match="127"):
        await read(host, "/etc/hosts", 10)
    del host.facts["script_python"]
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "sh").symlink_to("/bin/sh")

    async def without_path(argv: list[str], **options: object) -> object:
        return await run(["env", f"PATH={bare}", *[word for word in argv if word != "/usr/bin/python3"]], **options)

    run, host.run = host.run, without_path  # type: ignore[method-assign,assignment]
    with pytest.raises(PythonMissing, match=r"no Python 3\.9 or newer"):
        await read(host, "/etc/hosts", 10)


async def test_the_deployments_python_is_preferred_and_a_wrong_one_is_passed_over(host: Host) -> None:
    host.python = sys.executable
    assert await scripts.script_python(host) == sys.executable
    host.facts.clear()
    host.python = "~/no/such/python"
    assert (await scripts.script_python(host)).endswith("python3")
    assert await read(host, "/proc/self/comm", 10)


@pytest.mark.parametrize("line", [b"", b"[]", b"1", b"{", b"\xff", b'"x"', b"[" * 100_000, b"NaN"])
def test_lines_that_are_no_object(line: bytes) -> None:
    assert scripts.decoded(line) is None


def test_this_machine_is_reached_without_asyncssh() -> None:
    code = (
        "import asyncio, sys\n"
        "from remote import files, follow, gpu, host, http, process, relay, server, ship\n"
        "async def main():\n"
        "    here = await host.open_host(None)\n"
        "    await here.run(['true'])\n"
        "asyncio.run(main())\n"
        "sys.exit(any(name.split('.')[0] in ('asyncssh', 'textual', 'numpy') for name in sys.modules))\n"
    )
    root = Path(scripts.__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
