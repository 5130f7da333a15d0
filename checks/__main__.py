"""The command line of checks, as it runs on the host: a request in on stdin, JSON lines out on stdout.

The request is one JSON object. Out come `{"event": "progress", …}` and `{"event": "finding", …}` lines, and last either
`{"event": "report", "report": {…}}` or `{"event": "error", "exit": 2 or 3, "message": …}`, with that exit code.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from checks.errors import CheckError, NoSuchCheck, NotRunnable

EXIT_OK, EXIT_USAGE, EXIT_NOT_RUN, EXIT_INTERRUPTED, EXIT_GONE = 0, 2, 3, 130, 141

_OLDEST = (3, 9)
# A request is paths and flags; this is far beyond any.
_MAX_REQUEST = 4_000_000
# Beside a loaded server: one thread, and the last in the queue. More threads spin while they wait for each other on a
# busy machine, which has made a replay of two seconds last forty.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_NICE = 10


def main() -> int:
    """Answer the request on stdin; returns the exit code. Leaves quietly when nobody listens, and on Ctrl-C."""
    try:
        return _run()
    except BrokenPipeError:
        os._exit(EXIT_GONE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def answer(request: Mapping[str, Any], emit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The checks, or where `task` says so a capture or the engine's flags, once this python has what they need.

    Raises NotRunnable when it has not.
    """
    if sys.version_info < _OLDEST:
        raise NotRunnable(
            f"{sys.executable} is Python {sys.version.split()[0]}, and the checks need {_OLDEST[0]}.{_OLDEST[1]} or "
            "newer; name another: python under [host] in the deployment"
        )
    for name in _THREADS:
        os.environ.setdefault(name, "1")  # read when numpy is imported, so it is set before
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        raise NotRunnable(
            f"{sys.executable} (Python {sys.version.split()[0]}) cannot import numpy ({error}), and the checks compute "
            "with it; name a python that has it: python under [host] in the deployment, or install numpy there"
        ) from None
    if request.get("task") == "capture":
        from checks.capture_run import answer as captured

        return captured(request, emit)
    if request.get("task") == "flags":
        from checks.flag_list import answer as listed

        return listed(request)
    from checks.answer import answer as answered

    return answered(request, emit)


def _run() -> int:
    out = _Lines()
    if hasattr(os, "nice"):
        os.nice(_NICE)
    signal.signal(signal.SIGTERM, _leave)
    try:
        report = answer(_request(sys.stdin.buffer.read(_MAX_REQUEST)), out)
        out({"event": "report", "report": report})
        return EXIT_OK
    except CheckError as error:
        code = EXIT_USAGE if isinstance(error, NoSuchCheck) else EXIT_NOT_RUN
        out({"event": "error", "exit": code, "message": str(error)})
        return code


class _Lines:
    """One JSON object a line on what was stdout; stdout itself becomes stderr, so that no stray print tears a line."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii", newline="\n")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def __call__(self, event: dict[str, Any]) -> None:
        self._out.write(json.dumps(event, allow_nan=False) + "\n")
        self._out.flush()


def _request(raw: bytes) -> Mapping[str, Any]:
    try:
        request = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise NotRunnable(f"the request on stdin is not one JSON object: {str(error)[:120]}") from None
    if not isinstance(request, dict):
        raise NotRunnable("the request on stdin is not a JSON object")
    return request


def _leave(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
