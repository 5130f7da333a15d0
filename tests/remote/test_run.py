"""Running commands, on every kind of host."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from remote.errors import CommandFailed, RemoteError, TimedOut
from remote.host import Host, resolve
from tests.remote.waiting import gone, until

ODD = ["", "a b", "it's", '"$HOME"', "`id`", "$(id)", "a\nb", "*", "~", "\\", "é", "-n", "\\'", ";exit 3"]
GRANDCHILD = "sleep 1000 & echo $$ $! ; wait"


async def test_arguments_arrive_as_they_were_given(host: Host) -> None:
    done = await host.run(["printf", "%s\\0", *ODD])
    assert done.stdout.decode().split("\0")[:-1] == ODD
    assert done.stderr == b""
    assert done.returncode == 0


async def test_bytes_that_are_no_text_come_through_both_ways(host: Host) -> None:
    data = bytes(range(256)) * 3
    assert (await host.run(["cat"], input=data)).stdout == data


async def test_large_input_and_output_do_not_lock_each_other(host: Host) -> None:
    data = os.urandom(1 << 20) * 6
    assert (await host.run(["cat"], input=data)).stdout == data


async def test_stdin_is_empty_when_nothing_is_given(host: Host) -> None:
    assert (await host.run(["cat"])).stdout == b""


async def test_input_that_nobody_reads_is_not_an_error(host: Host) -> None:
    assert (await host.run(["true"], input=b"x" * (1 << 20))).returncode == 0


async def test_exit_code_and_stderr_are_told(host: Host) -> None:
    argv = ["sh", "-c", "echo out; echo why >&2; exit 7"]
    done = await host.run(argv, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"why\n")
    with pytest.raises(CommandFailed, match="ended with code 7: why") as caught:
        await host.run(argv)
    assert caught.value.returncode == 7


async def test_a_missing_program_is_code_127(host: Host) -> None:
    done = await host.run(["no-such-program-here"], check=False)
    assert done.returncode == 127
    assert b"no-such-program-here" in done.stderr


async def test_working_folder_and_environment(host: Host, tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    folder.mkdir()
    done = await host.run(["sh", "-c", 'pwd; printf %s "$WORD"'], cwd=str(folder), env={"WORD": "a 'b' $c"})
    assert done.stdout.decode() == f"{folder}\na 'b' $c"


async def test_a_missing_working_folder_fails_the_command(host: Host, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed):
        await host.run(["true"], cwd=str(tmp_path / "nowhere"))


async def test_tilde_is_the_home_on_the_host(host: Host) -> None:
    home = (await host.run(["sh", "-c", "cd && pwd"])).stdout.decode().strip()
    assert await resolve(host, "~") == home
    assert await resolve(host, "~/a b") == f"{home}/a b"
    assert await resolve(host, "/x/~") == "/x/~"
    with pytest.raises(RemoteError, match="cannot resolve ~root/x"):
        await resolve(host, "~root/x")


async def test_timeout_kills_the_whole_group(host: Host, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(TimedOut, match=r"took longer than 1\.5 s"):
        await host.run(["sh", "-c", f"sleep 1000 & echo $$ $! > '{pids}'; wait"], timeout=1.5)
    for pid in pids.read_text().split():
        await gone(int(pid))


async def test_cancelling_kills_the_whole_group(host: Host) -> None:
    seen: list[bytes] = []

    async def consume() -> None:
        async with host.stream(["sh", "-c", GRANDCHILD]) as stream:
            async for chunk in stream:
                seen.append(chunk)

    task = asyncio.create_task(consume())
    await until(lambda: b"\n" in b"".join(seen))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for pid in b"".join(seen).split():
        await gone(int(pid))


async def test_leaving_a_stream_early_ends_its_command(host: Host) -> None:
    async with host.stream(["sh", "-c", GRANDCHILD]) as stream:
        pids = (await stream.read()).split()
    for pid in pids:
        await gone(int(pid))
    assert stream.returncode != 0


async def test_output_arrives_while_the_command_runs_and_stdin_stays_open(host: Host) -> None:
    async with host.stream(["cat"], input=None) as stream:
        await stream.write(b"one")
        assert await stream.read() == b"one"
        await stream.write(b"two")
        assert await stream.read() == b"two"
        stream.write_eof()
        assert await stream.read() == b""
        assert await stream.wait() == 0


async def test_a_flood_on_stderr_is_kept_bounded_and_its_end_stays(host: Host) -> None:
    done = await host.run(["sh", "-c", "head -c 2000000 /dev/zero | tr '\\0' x >&2; echo the end >&2"])
    assert len(done.stderr) == 1 << 18
    assert done.stderr.endswith(b"xthe end\n")


async def test_a_command_that_dies_of_a_signal_says_which(host: Host) -> None:
    # A container's client reports a signal as shells do, 128 and its number.
    done = await host.run(["sh", "-c", "kill -TERM $$"], check=False)
    assert done.returncode in (-15, 143)


async def test_many_commands_run_side_by_side(host: Host) -> None:
    done = await asyncio.gather(*(host.run(["sh", "-c", f"sleep 0.1; echo {n}"]) for n in range(25)))
    assert [int(one.stdout) for one in done] == list(range(25))


async def test_the_command_log_has_every_command_with_its_code(host: Host) -> None:
    await host.run(["true"])
    await host.run(["sh", "-c", "exit 3"], check=False, shown=["a short form"])
    first, second = list(host.commands)[-2:]
    assert (first.argv, first.returncode) == (("true",), 0)
    assert (second.argv, second.returncode) == (("a short form",), 3)
    assert first.took is not None and first.took > 0
    assert host.state.connected


async def test_errors_never_carry_terminal_escapes(host: Host) -> None:
    with pytest.raises(CommandFailed) as caught:
        await host.run(["sh", "-c", "printf '\\033]0;owned\\007' >&2; exit 1"])
    assert "\x1b" not in str(caught.value) and "owned" in str(caught.value)
