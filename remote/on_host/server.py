"""Starts a server detached, says whether it lives, and stops it: only when it is proven to be the recorded one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import Any, NoReturn

from remote.on_host.proc import (
    TOKEN,
    Stat,
    alive,
    argv_of,
    boot_id,
    environ_of,
    info,
    listener,
    processes,
    stat_of,
)
from remote.on_host.protocol import Answer, Fields, Refused, serve

LOOK = 0.05
ORPHAN_GRACE = 2.0  # seconds for children to follow a leader that has ended


def keep(request: Fields, log: int, report: int) -> NoReturn:
    """Be the server's parent for its whole life, outside its group, only to write down its exit code."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    environment = dict(os.environ, **request["env"])
    environment[TOKEN] = request["token"]
    try:
        child = subprocess.Popen(
            request["argv"],
            stdin=null,
            stdout=log,
            stderr=log,
            cwd=request["cwd"] or None,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        said = {"errno": error.errno, "path": str(error.filename or request["argv"][0]), "detail": error.strerror}
        os.write(report, json.dumps(said).encode())
        os._exit(1)
    os.write(report, json.dumps({"pid": child.pid}).encode())
    os.close(report)
    os.close(log)
    code = child.wait()
    name = request["exit_file"]
    with open(name + ".tmp", "w") as file:
        json.dump({"code": code, "time": time.time()}, file)
    os.replace(name + ".tmp", name)
    os._exit(0)


def start(request: Fields, _: bytes) -> Answer:
    """Start the server in its own session, its output appended to its log. Refuses when the port is taken."""
    port = request["port"]
    pid = listener(port) if port else None
    if pid is not None:
        raise Refused("PortTaken", port=port, pid=pid, argv=argv_of(pid) if pid else [])
    os.makedirs(os.path.dirname(request["exit_file"]), mode=0o700, exist_ok=True)
    os.makedirs(os.path.dirname(request["log"]), exist_ok=True)
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    offset = os.fstat(log).st_size
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        keep(request, log, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = json.loads(pipe.read() or b"{}")
    if "pid" not in said:
        raise OSError(said.get("errno") or 0, said.get("detail") or "the server could not be started", said.get("path"))
    stat = stat_of(said["pid"])
    answer: dict[str, Any] = {
        "pid": said["pid"],
        "pgid": said["pid"],
        "start_time": stat.start_time if stat else 0,
        "boot_id": boot_id(),
        "cmdline": argv_of(said["pid"]) or request["argv"],
        "log_offset": offset,
        "started_at": time.time(),
    }
    return answer, b""


def mismatches(record: Fields, stat: Stat | None) -> list[str]:
    """Why the process with the recorded pid is not the recorded server; [] is the proof that it is."""
    if not alive(stat) or stat is None:
        return ["no such process runs any more"]
    found = []
    if record["boot_id"] != boot_id():
        found.append("the host was rebooted since the server was recorded")
    if record["start_time"] != stat.start_time:
        found.append("it started at another time ({} ticks, recorded {})".format(stat.start_time, record["start_time"]))
    if record["pgid"] != stat.pgid:
        found.append("its process group is {}, recorded {}".format(stat.pgid, record["pgid"]))
    argv = argv_of(stat.pid)
    if record["cmdline"] != argv:
        found.append(
            "its command line is `{}`, recorded `{}`".format(" ".join(argv)[:300], " ".join(record["cmdline"])[:300])
        )
    return found


def exit_code(record: Fields) -> int | None:
    """The exit code its keeper wrote down; negative is a signal's number. None when unknown."""
    try:
        with open(record["exit_file"]) as file:
            return int(json.load(file)["code"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def status(request: Fields, _: bytes) -> Answer:
    """Whether the recorded server lives; with its command line of now when an exec has changed it."""
    record = request["record"]
    stat = stat_of(record["pid"])
    same = (
        alive(stat) and stat is not None and record["boot_id"] == boot_id() and record["start_time"] == stat.start_time
    )
    if not same or stat is None:
        return {"alive": False, "exit_code": exit_code(record)}, b""
    answer: dict[str, Any] = {"alive": True, "exit_code": None, "process": info(stat)}
    # A launch script that ends in exec keeps pid, start time and our token, and changes only the command line.
    if record["token"] and environ_of(stat.pid).get(TOKEN) == record["token"]:
        answer["cmdline"] = argv_of(stat.pid)
    return answer, b""


class Members:
    """The processes that belong to one server: its group and session if it leads one, and all descendants seen so far.

    Each is known by pid and start time, so that a pid given to somebody else is never signalled.
    """

    def __init__(self, record: Fields) -> None:
        self.leader = int(record["pid"])
        # A server found running may share its group with the script or shell that started it: that is not ours to end.
        self.group = self.leader if record["pgid"] == self.leader else 0
        self.seen: dict[int, int] = {self.leader: int(record["start_time"])}

    def look(self) -> list[Stat]:
        """Those that still run."""
        everything = {stat.pid: stat for stat in processes()}
        now = {pid: stat for pid, stat in everything.items() if self.seen.get(pid) == stat.start_time}
        if self.leader not in everything or self.leader in now:
            in_group = (stat for stat in everything.values() if self.group and self.group in (stat.pgid, stat.sid))
            now.update((stat.pid, stat) for stat in in_group)
        fresh = set(now)
        while fresh:
            below = {pid: stat for pid, stat in everything.items() if stat.ppid in fresh and pid not in now}
            now.update(below)
            fresh = set(below)
        self.seen.update((pid, stat.start_time) for pid, stat in now.items())
        return list(now.values())

    def signal(self, number: int, only_leader: bool = False) -> None:
        """Send a signal to those that still run."""
        for stat in self.look():
            if only_leader and stat.pid != self.leader:
                continue
            current = stat_of(stat.pid)
            if current is not None and current.start_time == stat.start_time:
                try:
                    os.kill(stat.pid, number)
                except ProcessLookupError:
                    continue

    def wait(self, seconds: float, grace: float) -> bool:
        """Wait until none runs; true then. Once the leader has ended the others get no more than `grace` seconds."""
        end = time.monotonic() + seconds
        followed = False
        while True:
            now = self.look()
            if not now:
                return True
            if not followed and all(stat.pid != self.leader for stat in now):
                followed, end = True, min(end, time.monotonic() + grace)
            if time.monotonic() >= end:
                return False
            time.sleep(LOOK)


def proven(record: Fields) -> bool:
    """True for the recorded server itself, false for orphans that carry its token. Refuses with NotOurs."""
    stat = stat_of(record["pid"])
    wrong = mismatches(record, stat)
    if not wrong:
        return True
    if alive(stat) or record["boot_id"] != boot_id() or not record["token"]:
        raise Refused("NotOurs", pid=record["pid"], mismatches=wrong, gone=not alive(stat))
    group = [one for one in processes() if one.pgid == record["pgid"] == one.sid]
    if not any(environ_of(one.pid).get(TOKEN) == record["token"] for one in group):
        raise Refused("NotOurs", pid=record["pid"], mismatches=wrong, gone=True)
    return False


def stop(request: Fields, _: bytes) -> Answer:
    """SIGTERM, wait, SIGKILL, and look whether every member is gone."""
    record, plan = request["record"], request["stop"]
    started = time.monotonic()
    led = proven(record)
    members = Members(record)
    before = [stat.pid for stat in members.look()]
    signals = ["TERM"]
    # Only its own handler knows how to drain: SGLang reads a scheduler killed beside it as a crash.
    members.signal(signal.SIGTERM, only_leader=led and not plan["term_group"])
    if not members.wait(plan["term_seconds"], ORPHAN_GRACE):
        signals.append("KILL")
        end = time.monotonic() + plan["kill_seconds"]
        while members.look() and time.monotonic() < end:
            members.signal(signal.SIGKILL)
            members.wait(4 * LOOK, 4 * LOOK)
    survivors = [stat.pid for stat in members.look()]
    code = exit_code(record)
    for _attempt in range(20):
        if code is not None or not record["token"] or survivors:
            break
        time.sleep(LOOK)  # its keeper writes the code a moment after the end
        code = exit_code(record)
    answer: dict[str, Any] = {
        "members": before,
        "survivors": survivors,
        "signals": signals,
        "exit_code": code,
        "took": time.monotonic() - started,
    }
    return answer, b""


def look(request: Fields, _: bytes) -> Answer:
    """The process with a pid, or the one that listens on a port; `process` is None when there is none."""
    pid = request["pid"] or listener(request["port"])
    if pid == 0:
        raise Refused(
            "PermissionDenied", path="port {}".format(request["port"]), detail="another user's process listens on it"
        )
    stat = stat_of(pid) if pid else None
    return {"process": info(stat) if stat is not None and alive(stat) else None}, b""


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a stop that has begun is carried to its end
    serve({"start": start, "status": status, "stop": stop, "look": look})
