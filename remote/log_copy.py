"""Copies the end of a log that is no file into one on the host, for a program there that reads files."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from remote import scripts
from remote.errors import CommandFailed, HostUnreachable, RemoteError, printable
from remote.host import CommandHost, Host, resolve
from remote.output import TIED, LogSource
from remote.ship import CACHE
from remote.stream import Stream

FOLDER = f"{CACHE}/logs"
LINES = 40_000
"""Lines asked for; at the usual length of a decode line they are about BYTES."""
BYTES = 8 << 20
"""Bytes kept, from the end."""
SECONDS = 30.0
"""How long the command may take."""
_STATE_SECONDS = 10.0
_MARGIN = 15.0
"""Seconds beyond them for the programs around it to begin and to end."""
_END_SECONDS = 5.0
"""How long the programs may take to end, and to remove the file, once they are told to."""
_NO_SUCH_COMMAND = 127
_SAID = 300
"""Characters of a failed command's output that a reason repeats."""

# The first words are the command that prints the log, the others the program that keeps what it prints: the one runs
# beside the container that the other may run in. The token and the exit code follow what is printed, and then nothing
# until our end of stdin is closed, or gone.
_COPY = f"""words=$1 token=$2
shift 2
{{
  (
    at=0
    for word do
      at=$((at + 1))
      [ "$at" -gt "$words" ] || set -- "$@" "$word"
    done
    shift "$at"
    {TIED}
  )
  printf '\\n%s %s\\n' "$token" "$?"
  exec cat 4>&1 >/dev/null
}} | {{ shift "$words"; exec "$@"; }}
"""

_ADVICE: tuple[tuple[str, str], ...] = (
    ("no such container", "See the names there are with `docker ps -a`, and correct [server] log"),
    ("no such object", "See the names there are with `docker ps -a`, and correct [server] log"),
    ("permission denied", "Let the account use Docker (group docker), or set [server] log to a file that it may read"),
    ("cannot connect to the docker daemon", "Start Docker there, or set [server] log to a file"),
    ("does not support reading", "Its logging driver keeps nothing to read; set [server] log to a file"),
    ("insufficient permissions", "Let the account read the journal (group systemd-journal)"),
)
"""What to do next, by a part of what the command says."""
_EMPTY = {
    "docker": "Its server may write to a file inside the container: set [server] log to that",
    "journal": "See the names there are with `systemctl list-units`; reading the journal of the system may take the "
    "group systemd-journal",
}
_STATES = {"true": True, "false": False}
_STATES |= {"active": True, "activating": True, "reloading": True, "deactivating": True}
_STATES |= {"inactive": False, "failed": False}


@dataclass(frozen=True, slots=True)
class LogCopy:
    """The file on the host; where there is none `path` is "" and `why` says the reason and what to do."""

    path: str
    why: str = ""


@asynccontextmanager
async def copied(
    host: Host, source: LogSource, *, lines: int = LINES, limit: int = BYTES, seconds: float = SECONDS
) -> AsyncIterator[LogCopy]:
    """The last `lines` lines of a log, at most `limit` bytes, in a file of mode 0600 where commands of `host` run.

    The host removes it on leaving, and also when this process is killed or the link is lost. Only what the command says
    when it fails crosses the network. Raises HostUnreachable.
    """
    path = f"{await resolve(host, FOLDER)}/{uuid.uuid4().hex}.log"
    async with AsyncExitStack() as leaving:
        try:
            why = await _copy(leaving, host, source, path, lines, limit, seconds)
        except HostUnreachable:
            raise
        except RemoteError as error:
            why = str(error)
        yield LogCopy("" if why else path, why)


async def lives(host: Host, source: LogSource) -> bool | None:
    """Whether the container or the unit runs now; None where the host does not say."""
    argv, said = source.state_argv, b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STATE_SECONDS), host.stream(argv, outside=True) as stream:
            async for data in stream:
                said = (said + data)[-100:]
            await stream.wait()
    return _STATES.get(said.decode("utf-8", "replace").strip())


async def _copy(
    leaving: AsyncExitStack, host: Host, source: LogSource, path: str, lines: int, limit: int, seconds: float
) -> str:
    """Make the file, which is there until `leaving` is left; "" or why there is none."""
    argv, token, line = source.argv(lines, follow=False), uuid.uuid4().hex, b""
    program, shown = await scripts.command(host, "keep", path, str(limit), f"{seconds:g}", token)
    container = host.container if isinstance(host, CommandHost) else ""
    into = ["docker", "exec", "-i", container] if container else []
    command = ["sh", "-c", _COPY, "sh", str(len(argv)), token, *argv, *into, *program]
    running = host.stream(command, input=None, shown=[*argv, "|", *shown[:-1]], outside=True)
    answer: dict[str, Any] = {"late": True}
    try:
        async with asyncio.timeout(seconds + _MARGIN):
            stream = await leaving.enter_async_context(_ended(host, path, running))
            while not line.endswith(b"\n") and (data := await stream.read()):
                line += data
            said = scripts.decoded(line)
            if said is None:
                stream.write_eof()
                raise CommandFailed(shown, await stream.wait(), stream.stderr_tail)
            answer = said
    except TimeoutError:
        pass
    if not answer.get("size"):
        # There is no file to hold, and what hangs is not to hang on.
        await leaving.aclose()
    if "refused" in answer:
        raise scripts.refusal(answer, host.name)
    return _reason(source, argv, answer, seconds, host.name)


def _reason(source: LogSource, argv: Sequence[str], answer: dict[str, Any], seconds: float, name: str) -> str:
    """Why there is no copy, and what to do; "" where there is one."""
    command, code = f"`{' '.join(argv)}`", answer.get("code")
    # Its last words are about itself; what stands before them may be the log.
    said = " / ".join(printable(str(answer.get("said", "")), _SAID).strip().splitlines()[-2:])
    if answer.get("late"):
        return (
            f"{command} on {name} was not through within {seconds:g} s. Run it there by hand to see what holds it up, "
            "or set [server] log to a file"
        )
    if code == 0:
        return "" if answer.get("size") else f"{source} on {name} has no line to read. {_EMPTY[source.kind]}"
    if code == _NO_SUCH_COMMAND:
        return (
            f"{argv[0]} is not there on {name}, or not on the PATH of the account. Install it for the account, "
            "or set [server] log to a file"
        )
    ended = "was cut short" if code is None else f"ended with code {code}"
    advice = next((words for part, words in _ADVICE if part in said.lower()), "Run it there by hand to see more")
    stop = "" if said.endswith((".", "?")) else "."
    return f"{command} on {name} {ended}: {said or 'it said nothing'}{stop} {advice}"


@asynccontextmanager
async def _ended(host: Host, path: str, running: AbstractAsyncContextManager[Stream]) -> AsyncIterator[Stream]:
    """The command that holds the file: let end by itself, which removes it; where it was killed we do."""
    stream: Stream | None = None
    try:
        async with running as stream:
            try:
                yield stream
            finally:
                stream.write_eof()
                await _in_any_case(stream.finish(_END_SECONDS))
    finally:
        if stream is not None and stream.returncode != 0:
            await _in_any_case(_remove(host, path))


async def _in_any_case(work: Coroutine[Any, Any, None]) -> None:
    """Carry it out to its end, cancelled or not."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


async def _remove(host: Host, path: str) -> None:
    with contextlib.suppress(RemoteError):
        await host.run(["rm", "-f", "--", path], timeout=_STATE_SECONDS, check=False)
