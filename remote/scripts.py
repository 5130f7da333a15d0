"""Runs the small programs of on_host/ with a Python of the host, and turns what they refuse into errors.

The programs are stdlib only and run from `python -c`, so nothing is installed on the host for them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from remote.errors import (
    ChangedMeanwhile,
    CommandFailed,
    FileMissing,
    NotOurs,
    PermissionDenied,
    PortTaken,
    PythonMissing,
    RemoteError,
    StoreLink,
    printable,
)
from remote.host import Host, resolve

Fields = dict[str, Any]

_SHARED = re.compile(r"^from remote\.on_host\.(\w+) import (?:\([^)]*\)|.*)\n", re.MULTILINE)
_FUTURE = "from __future__ import annotations\n"
_FIND = """for each in "$@"; do
  if "$each" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1; then
    command -v -- "$each"; exit 0
  fi
done
exit 127"""


@functools.cache
def source(name: str) -> str:
    """The text of on_host/NAME.py with the modules of on_host it imports set in, each once, so that it stands alone."""
    seen: set[str] = set()

    def text(module: str) -> str:
        seen.add(module)
        body = (files("remote") / "on_host" / f"{module}.py").read_text(encoding="utf-8").replace(_FUTURE, "")
        return _SHARED.sub(lambda found: "" if found[1] in seen else text(found[1]), body)

    return _FUTURE + text(name)


async def script_python(host: Host) -> str:
    """A Python for our own small programs: the one the deployment names, else the host's. Raises PythonMissing."""
    if "script_python" not in host.facts:
        named = [await resolve(host, host.python)] if host.python else []
        names = [*named, "python3", "/usr/bin/python3", "python"]
        shown = ["command", "-v", *names]
        found = await host.run(["sh", "-c", _FIND, "sh", *names], check=False, shown=shown)
        path = found.stdout.decode("utf-8", "replace").strip()
        if found.returncode != 0 or not path:
            raise PythonMissing(host.python or "python3", host.name, "no Python 3.9 or newer was found there")
        host.facts["script_python"] = path
    return host.facts["script_python"]


async def command(host: Host, name: str, *args: str) -> tuple[list[str], list[str]]:
    """argv that runs on_host/NAME.py, and a short form of it for the command log."""
    python = await script_python(host)
    return [python, "-I", "-S", "-c", source(name), *args], [python, f"on_host/{name}.py", *args]


async def call(
    host: Host, name: str, request: Fields, payload: bytes = b"", timeout: float | None = None
) -> tuple[Fields, bytes]:
    """Send one request (JSON, then `payload`) to on_host/NAME.py; its answer (JSON, then payload).

    Raises what the program refuses with (see REFUSALS), CommandFailed when it does not answer in its protocol.
    """
    argv, shown = await command(host, name)
    line = json.dumps({**request, "size": len(payload)}).encode() + b"\n"
    log = [*shown, str(request.get("op", "")), str(request.get("path", ""))]
    done = await host.run(
        argv, input=line + payload, timeout=timeout, check=False, shown=[word for word in log if word]
    )
    head, _, rest = done.stdout.partition(b"\n")
    answer = decoded(head)
    if answer is None or done.returncode != 0:
        raise CommandFailed(shown, done.returncode, done.stderr, "" if done.returncode else "its answer is not JSON")
    if "refused" in answer:
        raise refusal(answer, host.name)
    return answer, rest


def decoded(line: bytes) -> Fields | None:
    """One line of JSON as an object; None when it is anything else."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


REFUSALS: dict[str, Callable[[Fields, str], RemoteError]] = {
    "FileMissing": lambda f, host: FileMissing(str(f.get("path", "")), host),
    "PermissionDenied": lambda f, host: PermissionDenied(
        f"not permitted on {host}: {printable(str(f.get('path', '')))}",
        printable(str(f.get("detail", ""))),
        "Use an account that owns it, or change its permissions",
    ),
    "StoreLink": lambda f, host: StoreLink(str(f.get("path", "")), str(f.get("target", ""))),
    "ChangedMeanwhile": lambda f, host: ChangedMeanwhile(
        str(f.get("path", "")), str(f.get("expected", "")), str(f.get("actual", ""))
    ),
    "NotOurs": lambda f, host: NotOurs(int(f["pid"]), [str(m) for m in f["mismatches"]], bool(f["gone"])),
    "PortTaken": lambda f, host: PortTaken(int(f["port"]), int(f["pid"]), [str(word) for word in f["argv"]]),
}


def refusal(answer: Fields, host: str) -> RemoteError:
    """The error that a program's `refused` answer stands for."""
    build = REFUSALS.get(str(answer["refused"]))
    if build is not None:
        return build(answer, host)
    what = f"{printable(str(answer.get('path', '')))} on {host}: {printable(str(answer['refused']))}"
    return RemoteError(what, printable(str(answer.get("detail", ""))), str(answer.get("next", "")))
