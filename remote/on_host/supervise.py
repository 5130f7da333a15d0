"""Runs one program for a console: niced, with few threads, and ended as soon as the console is gone.

The request line has `argv`, `env` and `request`; the program gets `request` as its stdin, and its output is ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from remote.on_host.protocol import read_request

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """In the child: have the kernel end it if we are killed. Not on every system, so a best effort."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_the_rest() -> None:
    """SIGKILL to what the program left behind in our group."""
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError):
            if int(name) != os.getpid() and os.getpgid(int(name)) == os.getpid():
                os.kill(int(name), signal.SIGKILL)


def main() -> None:
    """Run the program and pass on its exit code; 128 and the number for a signal, as shells say it."""
    request = read_request()
    # One group for us and the program: whoever ends the group, from here or from outside, ends all of it.
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    with contextlib.suppress(OSError):
        os.nice(int(request["nice"]))
    environment = dict(os.environ, **request["env"])
    try:
        child = subprocess.Popen(request["argv"], stdin=subprocess.PIPE, env=environment, preexec_fn=die_with_parent)
    except OSError as error:
        sys.exit(f"{request['argv'][0]}: {error.strerror}")

    def stop(*_: Any) -> None:
        os.killpg(0, signal.SIGKILL)

    def watch() -> None:
        # Nothing more is ever sent on stdin: its end means that the console has left or the link is down.
        while os.read(0, 4096):
            pass
        stop()

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, stop)
    threading.Thread(target=watch, daemon=True).start()
    assert child.stdin
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(request["request"]).encode() + b"\n")
        child.stdin.close()
    code = child.wait()
    end_the_rest()
    sys.stdout.flush()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
