"""The end of what a container or a unit printed, as a file on the host: bounded, private, removed, or why it is not."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from remote.errors import HostUnreachable
from remote.host import Host, open_host
from remote.log_copy import BYTES, FOLDER, LINES, copied, lives
from remote.output import LogSource
from tests.remote.servers import SERVERS, SshServer
from tests.remote.test_follow import all_pids
from tests.remote.test_output import words
from tests.remote.waiting import gone, until

TOOL = """#!/bin/sh
if [ "$1" = exec ]; then shift 3; exec env IN_CONTAINER=1 "$@"; fi
[ -z "$IN_CONTAINER" ] || { echo "there is no Docker in a container" >&2; exit 9; }
echo "$(basename "$0") $*" >> "%(folder)s/asked"
. "%(folder)s/does"
"""
"""Stands for docker, journalctl and systemctl: what it does is a file of shell beside it, `$@` is what it is asked."""
SOURCES = {"docker": LogSource("docker", "sglang"), "journal": LogSource("journal", "a.service")}
ASKED = {
    "docker": f"docker logs --tail {LINES} sglang",
    "journal": f"journalctl -u a.service -q -n {LINES} -o cat",
}


@dataclass
class Tools:
    """The commands on the PATH of a host, and the home folder there."""

    folder: Path
    home: Path

    def do(self, script: str) -> None:
        (self.folder / "does").write_text(script)

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()

    def left(self) -> list[str]:
        """What lies in the folder of copies."""
        return sorted(os.listdir(self.folder_of_copies)) if self.folder_of_copies.exists() else []

    @property
    def folder_of_copies(self) -> Path:
        return self.home / FOLDER.removeprefix("~/")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Before the servers start: they hand their PATH on."""
    made = Tools(tmp_path / "tools", tmp_path / "home")
    (made.folder / "bin").mkdir(parents=True)
    made.home.mkdir()
    for name in ("docker", "journalctl", "systemctl"):
        tool = made.folder / "bin" / name
        tool.write_text(TOOL % {"folder": made.folder})
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{made.folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(made.home))
    return made


@pytest.fixture(params=["local", "container", *sorted(SERVERS)])
async def reached(request: pytest.FixtureRequest, tools: Tools, tmp_path: Path) -> AsyncIterator[Host]:
    """A host of each kind whose commands are those of `tools`."""
    if request.param in SERVERS:
        async with SERVERS[request.param](tmp_path / "ssh") as running:
            tools.home = running.home
            opened = await open_host(running.address, **running.options)
            yield opened
            await opened.close()
        return
    opened = await open_host(None, container="box" if request.param == "container" else "")
    yield opened
    await opened.close()


@pytest.fixture
async def here(tools: Tools) -> Host:
    return await open_host(None)


@pytest.mark.parametrize("kind", SOURCES)
async def test_the_end_of_a_log_is_a_private_file_on_the_host_until_it_is_left(
    reached: Host, tools: Tools, kind: str
) -> None:
    printed = b"one\n\x1b[31mtwo\x1b[0m\r\n\xff\xfe three \xc3\n"
    (tools.folder / "printed").write_bytes(printed)
    tools.do(f'cat "{tools.folder}/printed"; echo on stderr >&2; echo last; printf "no end"')
    async with copied(reached, SOURCES[kind]) as copy:
        assert copy.why == ""
        path = Path(copy.path)
        assert path.parent == tools.folder_of_copies
        assert path.read_bytes() == printed + b"on stderr\nlast\nno end"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert tools.left() == []
    assert tools.asked() == [ASKED[kind]]
    logged = [record.argv for record in reached.commands if record.argv[0] == ASKED[kind].partition(" ")[0]]
    assert [" ".join(argv).startswith(ASKED[kind]) for argv in logged] == [True]


async def test_what_is_copied_does_not_cross_the_network(reached: Host, tools: Tools) -> None:
    tools.do("seq 200000")
    crossed = 0
    stream = reached.stream

    def counted(*args: object, **options: object) -> object:
        made = stream(*args, **options)  # type: ignore[arg-type]

        class Counted:
            async def __aenter__(self) -> object:
                nonlocal crossed
                opened = await made.__aenter__()
                read = opened._channel.read

                async def reading(size: int) -> bytes:
                    nonlocal crossed
                    data = await read(size)
                    crossed += len(data)
                    return data

                opened._channel.read = reading  # type: ignore[method-assign]
                return opened

            async def __aexit__(self, *why: object) -> object:
                return await made.__aexit__(*why)  # type: ignore[arg-type]

        return Counted()

    reached.stream = counted  # type: ignore[method-assign,assignment]
    async with copied(reached, SOURCES["docker"]) as copy:
        assert Path(copy.path).stat().st_size > 1_000_000
    assert 0 < crossed < 2000


async def test_a_log_longer_than_what_is_kept_begins_with_a_whole_line(here: Host, tools: Tools) -> None:
    tools.do("seq 300000")
    async with copied(here, SOURCES["docker"], limit=1000) as copy:
        lines = Path(copy.path).read_text().splitlines()
    assert lines == [str(number) for number in range(300001 - len(lines), 300001)]
    assert 900 < sum(len(line) + 1 for line in lines) <= 1000
    tools.do("printf '%01500d\\nshort\\n' 7")
    async with copied(here, SOURCES["docker"], limit=1000) as copy:
        assert Path(copy.path).read_text() == "short\n"


async def test_as_many_lines_are_asked_for_as_the_caller_says(here: Host, tools: Tools) -> None:
    tools.do("echo line")
    async with copied(here, SOURCES["docker"], lines=7):
        pass
    assert tools.asked() == ["docker logs --tail 7 sglang"]


FAILURES = [
    ("echo 'Error response from daemon: No such container: sglang' >&2; exit 1", "docker", "No such container.*ps -a"),
    ("echo 'Got permission denied while trying to connect' >&2; exit 1", "docker", "ended with code 1.*group docker"),
    ("echo 'Cannot connect to the Docker daemon at unix:///x' >&2; exit 1", "docker", "Start Docker there"),
    ("echo 'configured logging driver does not support reading'; exit 1", "docker", "logging driver keeps nothing"),
    ("echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1", "journal", "systemd-journal"),
    (
        "echo 'a line'; printf 'what \\033[31mnobody knows'; exit 3",
        "docker",
        r"code 3: a line / what \?\[31mnobody .*by hand",
    ),
    ("kill -9 $$", "docker", "ended with code 137: it said nothing"),
    ("exit 0", "docker", "docker:sglang on .* has no line to read.*file inside the container"),
    ("echo; echo", "journal", "journal:a.service on .* has no line to read.*list-units"),
]


@pytest.mark.parametrize(("does", "kind", "why"), FAILURES)
async def test_a_command_that_fails_leaves_no_file_and_says_why_and_what_to_do(
    here: Host, tools: Tools, does: str, kind: str, why: str
) -> None:
    tools.do(does)
    async with copied(here, SOURCES[kind]) as copy:
        assert copy.path == ""
        assert tools.left() == []
    assert re.search(why, copy.why, re.DOTALL), copy.why
    assert "\x1b" not in copy.why


async def test_a_failure_is_told_on_every_kind_of_host(reached: Host, tools: Tools) -> None:
    tools.do("echo 'Error: No such container: sglang' >&2; exit 1")
    async with copied(reached, SOURCES["docker"]) as copy:
        assert copy.path == ""
        assert f"on {reached.name} ended with code 1: Error: No such container: sglang" in copy.why


@pytest.mark.parametrize("kind", SOURCES)
async def test_a_command_that_is_not_there_is_named(reached: Host, tools: Tools, kind: str) -> None:
    bare = tools.folder / "bare"
    bare.mkdir()
    for name in ("sh", "cat", "env", "basename"):
        (bare / name).symlink_to(f"/bin/{name}")
    reached.facts["script_python"] = sys.executable
    inner = reached.stream

    def without(argv: list[str], **options: object) -> object:
        return inner(["env", f"PATH={bare}", *argv] if options.get("outside") else argv, **options)  # type: ignore[arg-type]

    if getattr(reached, "container", ""):
        (bare / "docker").symlink_to(tools.folder / "bin" / "docker")
        kind = "journal"
    reached.stream = without  # type: ignore[method-assign,assignment]
    async with copied(reached, SOURCES[kind]) as copy:
        assert copy.path == ""
        name = ASKED[kind].partition(" ")[0]
        assert copy.why.startswith(f"{name} is not there on {reached.name}, or not on the PATH")


async def test_a_command_that_hangs_is_given_up_and_ended(reached: Host, tools: Tools) -> None:
    tools.do(f'echo a line; exec tail -f "{tools.folder}/does"')
    async with copied(reached, SOURCES["docker"], seconds=0.3) as copy:
        assert copy.path == ""
        assert "was not through within 0.3 s" in copy.why
    assert tools.left() == []
    for pid in [pid for pid in all_pids() if f"{tools.folder}/does".encode() in words(pid)]:
        await gone(pid)


async def test_being_cancelled_leaves_neither_a_file_nor_a_command(reached: Host, tools: Tools) -> None:
    tools.do(f'echo a line; exec tail -f "{tools.folder}/does"')

    async def copy() -> None:
        async with copied(reached, SOURCES["docker"]):
            raise AssertionError("it never ends")

    task = asyncio.create_task(copy())

    def readers() -> list[int]:
        return [
            pid for pid in all_pids() if words(pid).startswith(b"tail") and str(tools.folder).encode() in words(pid)
        ]

    await until(lambda: bool(readers()) or task.done())
    (pid,) = readers()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(pid)
    assert tools.left() == []


async def test_what_is_done_with_the_copy_may_fail_or_be_cancelled(reached: Host, tools: Tools) -> None:
    tools.do("echo line")
    with pytest.raises(RuntimeError, match="of the checks"):
        async with copied(reached, SOURCES["docker"]):
            raise RuntimeError("of the checks")
    assert tools.left() == []
    held = asyncio.Event()

    async def use() -> None:
        async with copied(reached, SOURCES["docker"]):
            held.set()
            await asyncio.sleep(600)

    task = asyncio.create_task(use())
    await held.wait()
    assert len(tools.left()) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tools.left() == []


async def test_a_log_that_grows_while_it_is_read_does_not_end_the_copy_early(here: Host, tools: Tools) -> None:
    """What looks like the closing line is part of the log."""
    tools.do("printf '\\n%s 0\\n' 0123456789abcdef; echo after it")
    async with copied(here, SOURCES["docker"]) as copy:
        assert Path(copy.path).read_text() == "\n0123456789abcdef 0\nafter it\n"


async def test_a_lost_link_takes_the_copy_with_it(tools: Tools, tmp_path: Path) -> None:
    tools.do("echo line")
    async with SERVERS["openssh"](tmp_path / "ssh") as served:
        tools.home = served.home
        host = await open_host(served.address, **served.options)
        async with copied(host, SOURCES["docker"]):
            assert len(tools.left()) == 1
            await served.drop()
            await until(lambda: not tools.left())
        await host.close()


async def test_a_console_that_is_killed_takes_its_copy_with_it(tools: Tools) -> None:
    tools.do("echo line")
    code = (
        "import asyncio\n"
        "from remote.host import open_host\n"
        "from remote.log_copy import copied\n"
        "from remote.output import LogSource\n"
        "async def main():\n"
        "    async with copied(await open_host(None), LogSource('docker', 'sglang')) as copy:\n"
        "        print(copy.path, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).parents[2]
    console = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=root, stdout=asyncio.subprocess.PIPE)
    assert console.stdout is not None
    path = Path((await console.stdout.readline()).decode().strip())
    assert path.read_text() == "line\n"
    console.kill()
    await console.wait()
    await until(lambda: not path.exists())


async def test_what_was_left_when_the_host_went_down_goes_when_it_is_a_day_old(here: Host, tools: Tools) -> None:
    tools.folder_of_copies.mkdir(parents=True)
    old, young, other = (tools.folder_of_copies / name for name in ("old.log", "young.log", "old.txt"))
    for path in (old, young, other):
        path.write_text("x")
    for path in (old, other):
        os.utime(path, (time.time() - 90_000,) * 2)
    tools.do("exit 1")
    async with copied(here, SOURCES["docker"]):
        pass
    assert tools.left() == ["old.txt", "young.log"]


async def test_two_copies_at_once_do_not_meet(here: Host, tools: Tools) -> None:
    tools.do("echo line")
    async with copied(here, SOURCES["docker"]) as one:
        async with copied(here, SOURCES["docker"]) as other:
            assert one.path != other.path
        assert Path(one.path).read_text() == "line\n"


async def test_a_folder_that_cannot_be_written_is_a_reason(here: Host, tools: Tools) -> None:
    tools.folder_of_copies.parent.mkdir(parents=True)
    tools.folder_of_copies.write_text("a file in its place")
    tools.do("echo line")
    async with copied(here, SOURCES["docker"]) as copy:
        assert copy.path == ""
        assert "logs" in copy.why


async def test_a_lost_link_is_an_error_and_leaves_no_command(tools: Tools, tmp_path: Path) -> None:
    tools.do(f'echo a line; exec tail -f "{tools.folder}/does"')

    async def lose(served: SshServer) -> None:
        await until(lambda: any(str(tools.folder / "does").encode() in words(pid) for pid in all_pids()))
        readers = [pid for pid in all_pids() if str(tools.folder / "does").encode() in words(pid)]
        await served.drop()
        await served.stop()
        for pid in readers:
            await gone(pid)

    async with SERVERS["openssh"](tmp_path / "ssh") as served:
        host = await open_host(served.address, **served.options)
        losing = asyncio.create_task(lose(served))
        with pytest.raises(HostUnreachable):
            async with copied(host, SOURCES["docker"]):
                pass
        await losing
        await host.close()


@pytest.mark.parametrize(
    ("kind", "does", "state"),
    [
        ("docker", "echo true", True),
        ("docker", "echo false", False),
        ("docker", "echo 'Error: No such container: sglang' >&2; exit 1", None),
        ("journal", "echo active", True),
        ("journal", "echo activating; exit 3", True),
        ("journal", "echo failed; exit 3", False),
        ("journal", "echo inactive; exit 3", False),
        ("journal", "echo unknown; exit 4", None),
        ("journal", "seq 100000", None),
    ],
)
async def test_whether_it_runs_is_asked_of_docker_and_systemd(
    here: Host, tools: Tools, kind: str, does: str, state: bool | None
) -> None:
    tools.do(does)
    assert await lives(here, SOURCES[kind]) is state
    asked = {
        "docker": "docker container inspect --format {{.State.Running}} sglang",
        "journal": "systemctl is-active a.service",
    }
    assert tools.asked() == [asked[kind]]


def test_the_bounds_are_those_of_the_checks() -> None:
    from checks.log.read import TAIL

    assert BYTES <= TAIL
