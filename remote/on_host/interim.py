"""Runs other servers in place of one for a while, and puts that one back, whatever becomes of the console.

It is told on stdin what to run, a JSON line each; a line `.` is a sign of life. At `{"back": true}`, at the end of
stdin, or when the console falls silent, the first server's command is started again. Starting and stopping is done by
on_host/server.py, whose text comes with the first line.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from remote.on_host.protocol import Fields

SILENCE = 60.0  # seconds without a sign of life after which the console counts as gone (it sends one every 10)
LINE_LIMIT = 1 << 22


class Failed(Exception):
    """A change that could not be made; `fields` is the refusal, or what survived."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self.fields = fields


class Place:
    """The one place a server runs in: what runs there now, and how to change it."""

    def __init__(self, program: str, record: Fields) -> None:
        self.program, self.record = program, record

    def put(self, spec: Fields) -> Fields:
        """Stop what runs and start what `spec` says; the new record, written to its file. Raises Failed."""
        answer = self._call({"op": "stop", "record": self.record, "stop": self.record["stop"]})
        # One that has ended by itself needs no stop; one that is not proven to be ours is left alone.
        if "refused" in answer and not answer.get("gone"):
            raise Failed(answer)
        if answer.get("survivors"):
            left = ", ".join(map(str, answer["survivors"]))
            raise Failed({"refused": "it survived SIGKILL", "path": f"process {left}", "detail": "look at it there"})
        started = self._call(spec["request"])
        if "refused" in started:
            raise Failed(started)
        self.record = dict(spec["record"], **started)
        keep(self.record["file"], self.record)
        return self.record

    def _call(self, request: Fields) -> Fields:
        line = json.dumps(dict(request, size=0)).encode() + b"\n"
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", self.program], input=line, stdout=subprocess.PIPE, check=False
        )
        try:
            answer = json.loads(done.stdout.partition(b"\n")[0])
        except ValueError:
            answer = {"refused": f"it ended with code {done.returncode}", "path": f"on_host/server.py {request['op']}"}
        return answer if isinstance(answer, dict) else {"refused": "its answer is no object"}


def keep(path: str, value: Any) -> None:
    """Write JSON for this account alone, whole or not at all."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file, indent=1)
    os.replace(path + ".new", path)


def lines() -> Iterator[bytes]:
    """The lines of stdin as they come, until its end or a silence."""
    held = b""
    while len(held) < LINE_LIMIT:
        line, newline, rest = held.partition(b"\n")
        if newline:
            held = rest
            yield line
            continue
        data = os.read(0, 1 << 16) if select.select([0], [], [], SILENCE)[0] else b""
        if not data:
            return
        held += data


def say(answer: Fields) -> None:
    """Answer the console, if it is still there."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(answer).encode() + b"\n")


def answered(place: Place, spec: Fields) -> bool:
    """Carry out one change and answer with the record or the refusal; whether it was made."""
    try:
        say({"record": place.put(spec)})
    except Failed as failed:
        say(failed.fields)
        return False
    return True


def stand_in() -> None:
    """Take orders until the console wants the first server back, or is gone; then put it back."""
    coming = lines()
    order = json.loads(next(coming))
    place, state = Place(order["program"], order["current"]), order["state"]
    keep(state, order["note"])
    say({"ready": True})
    changed = False
    for line in coming:
        said = json.loads(line) if line != b"." else {}
        if said.get("back"):
            break
        if "spec" in said:
            changed = True
            answered(place, said["spec"])
    # A server that was never replaced needs no putting back.
    if not changed or answered(place, order["back"]):
        with contextlib.suppress(OSError):
            os.unlink(state)
    else:
        keep(state, dict(order["note"], failed=True))


def main() -> None:
    """Leave the session of the command that brought us: whoever ends that must not end the way back."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        sys.exit(0 if status == 0 else 1)
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    stand_in()


if __name__ == "__main__":
    main()
