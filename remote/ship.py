"""Puts a zipapp on a host once, runs it there, and streams back the JSON lines it prints."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from remote import scripts
from remote.errors import CommandFailed, FileMissing, PythonMissing, printable
from remote.files import sha256, write_atomic
from remote.follow import LineBuffer
from remote.host import Host, resolve

CACHE = "~/.cache/eagle-console"
LINE_LIMIT = 1 << 26  # bytes; findings are small, and a program that prints no newline must not fill our memory
OLDEST_PYTHON = (3, 9)
# Beside a loaded server: one thread for each library that would otherwise take every core.
CAPS: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
NICE = 10


async def find_python(host: Host, python: str) -> str:
    """`python` with `~` resolved on the host. Raises PythonMissing when it does not run or is older than 3.9."""
    full = await resolve(host, python)
    code = "import sys; print(*sys.version_info[:2])"
    done = await host.run([full, "-I", "-S", "-c", code], check=False, timeout=30)
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 2 or not all(word.isdigit() for word in words):
        raise PythonMissing(
            full, host.name, printable(done.stderr, 300).strip() or f"it ended with code {done.returncode}"
        )
    version = (int(words[0]), int(words[1]))
    if version < OLDEST_PYTHON:
        raise PythonMissing(full, host.name, f"it is Python {version[0]}.{version[1]}, and 3.9 or newer is needed")
    return full


async def ship(host: Host, zipapp: bytes, python: str) -> str:
    """The path of `zipapp` on the host, `~/.cache/eagle-console/SHA256.pyz`, uploaded unless it is there and intact.

    Raises PythonMissing, and what write_atomic raises.
    """
    await find_python(host, python)
    digest = hashlib.sha256(zipapp).hexdigest()
    path = f"{await resolve(host, CACHE)}/{digest}.pyz"
    try:
        if await sha256(host, path) == digest:
            return path
    except FileMissing:
        pass
    await write_atomic(host, path, zipapp, backup=False, mode=0o600, make_folder=True, anywhere=True)
    return path


async def run_shipped(
    host: Host,
    path: str,
    python: str,
    request: dict[str, Any],
    *,
    env_caps: Mapping[str, str] = CAPS,
    nice: int = NICE,
) -> AsyncGenerator[dict[str, Any], None]:
    """Run the zipapp at `path` with `python`; give it `request` as one JSON line; yield each JSON object it prints.

    It runs niced, with the variables of `env_caps` set. Closing the generator (contextlib.aclosing), cancelling the
    consumer or losing the link ends it on the host. Raises PythonMissing, CommandFailed (a line that is no JSON object,
    an exit code other than 0; with the end of stderr), HostUnreachable.
    """
    full = await find_python(host, python)
    program = await resolve(host, path)
    argv = [full, "-I", "-S", "-c", scripts.source("supervise")]
    shown = [full, program]
    job = {"argv": [full, program], "env": dict(env_caps), "request": request, "nice": nice}
    lines = LineBuffer(LINE_LIMIT, carriage_returns=False)
    async with host.stream(argv, input=None, shown=shown) as stream:
        await stream.write(json.dumps(job).encode() + b"\n")
        number = 0
        try:
            async for chunk in stream:
                for line in lines.feed(chunk):
                    number += 1
                    yield _object(line, number, shown, stream.stderr_tail)
            code = await stream.wait()
        finally:
            # The end of its stdin has the supervisor end the program's group; killing it would leave grandchildren.
            stream.write_eof()
            await asyncio.shield(asyncio.ensure_future(stream.finish(3)))
        rest = lines.flush()
        if code != 0:
            raise CommandFailed(shown, code, stream.stderr_tail)
        for line in rest:
            yield _object(line, number + 1, shown, stream.stderr_tail)


def _object(line: bytes, number: int, shown: list[str], stderr: bytes) -> dict[str, Any]:
    answer = scripts.decoded(line)
    if answer is None:
        raise CommandFailed(
            shown, None, stderr, f"line {number} of its output is not a JSON object: {printable(line[:200])}"
        )
    return answer
