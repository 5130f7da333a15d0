"""Starts a server detached on a host, adopts a running one, and stops it with proof. It knows no engine.

A record of each start lies on the host in STATE/servers/, so any console that connects later finds it.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from remote import process, scripts
from remote.errors import FileMissing, RemoteError
from remote.files import write_atomic
from remote.host import Host, resolve

STATE = "~/.local/state/eagle-console"
RECORD_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class StopPlan:
    """How long a server gets to end after SIGTERM, and how long SIGKILL may take, in seconds.

    SIGTERM goes to the server's own process, which ends its children in order; `term_group` sends it to all of them.
    """

    term_seconds: float = 30.0
    kill_seconds: float = 10.0
    term_group: bool = False


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """What to start. `env` is added to the account's environment; `cwd` "" is its home; `port` 0 is not checked."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    log: str = "~/server.log"
    port: int = 0
    stop: StopPlan = StopPlan()
    launcher: str = "setsid"

    @property
    def hash(self) -> str:
        """sha256 over everything that decides what runs, hexadecimal."""
        decisive = [list(self.argv), dict(sorted(self.env.items())), self.cwd, self.log, self.port, self.launcher]
        return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """One started or adopted server; the proof of identity is pid, start_time with boot_id, pgid and cmdline.

    `start_time` in clock ticks since boot; `started_at` in Unix seconds; `log_offset`: where in `log` it begins.
    `env_names` are names only: values may be secrets. `token` is "" for an adopted server.
    """

    pid: int
    pgid: int
    start_time: int
    boot_id: str
    argv: tuple[str, ...]
    cmdline: tuple[str, ...]
    env_names: tuple[str, ...]
    cwd: str
    log: str
    log_offset: int
    port: int
    started_at: float
    spec_hash: str
    stop: StopPlan
    launcher: str
    token: str = field(repr=False)
    file: str
    exit_file: str

    @classmethod
    def from_json(cls, text: bytes) -> ServerRecord:
        """A record from its file. Raises ValueError when it is not one."""
        try:
            raw = json.loads(text)
            values = {one.name: raw[one.name] for one in fields(cls)}
            for name in ("argv", "cmdline", "env_names"):
                values[name] = tuple(str(word) for word in values[name])
            return cls(**{**values, "stop": StopPlan(**values["stop"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a server record: {error}") from error


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """Whether the recorded server lives. `exit_code` of a dead one, negative for a signal, None when nobody saw it end.

    `record` is up to date: a launch script's `exec` changes the command line that proves the process.
    """

    alive: bool
    exit_code: int | None
    process: process.ProcessInfo | None
    record: ServerRecord


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a stop went: the processes there were, those still there (unkillable), signals sent, seconds it took."""

    members: tuple[int, ...]
    survivors: tuple[int, ...]
    signals: tuple[str, ...]
    exit_code: int | None
    took: float

    @property
    def gone(self) -> bool:
        """Whether every member is gone."""
        return not self.survivors

    @property
    def forced(self) -> bool:
        """Whether SIGKILL was needed."""
        return "KILL" in self.signals


async def prepared(host: Host, spec: ServerSpec, state_dir: str = STATE) -> tuple[dict[str, Any], dict[str, Any]]:
    """What on_host/server.py is asked to start `spec`, and what makes a record of its answer; both plain JSON."""
    state = await resolve(host, state_dir)
    token = uuid.uuid4().hex
    name = f"{state}/servers/{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{token[:8]}"
    known = {
        "argv": [await resolve(host, spec.argv[0]), *spec.argv[1:]],
        "cwd": await resolve(host, spec.cwd or "~"),
        "log": await resolve(host, spec.log),
        "port": spec.port,
        "token": token,
        "exit_file": f"{name}.exit",
    }
    fields = {
        **known,
        "env_names": sorted(spec.env),
        "spec_hash": spec.hash,
        "stop": asdict(spec.stop),
        "launcher": "setsid",
        "file": f"{name}.json",
    }
    return {"op": "start", **known, "env": dict(spec.env)}, fields


async def _start_setsid(host: Host, spec: ServerSpec, state_dir: str) -> ServerRecord:
    request, fields = await prepared(host, spec, state_dir)
    answer, _ = await scripts.call(host, "server", request, timeout=60)
    record = ServerRecord.from_json(json.dumps({**fields, **answer}).encode())
    await _save(host, record)
    return record


async def _save(host: Host, record: ServerRecord) -> None:
    text = json.dumps(asdict(record), indent=1).encode() + b"\n"
    await write_atomic(host, record.file, text, backup=False, mode=0o600, make_folder=True)


async def _status_setsid(host: Host, record: ServerRecord) -> ServerStatus:
    answer, _ = await scripts.call(host, "server", {"op": "status", "record": asdict(record)})
    cmdline = tuple(answer.get("cmdline") or record.cmdline)
    if cmdline != record.cmdline:
        record = replace(record, cmdline=cmdline)
        await _save(host, record)
    return ServerStatus(answer["alive"], answer["exit_code"], process.from_answer(answer.get("process")), record)


async def _stop_setsid(host: Host, record: ServerRecord, plan: StopPlan) -> StopReport:
    request = {"op": "stop", "record": asdict(record), "stop": asdict(plan)}
    answer, _ = await scripts.call(host, "server", request, timeout=plan.term_seconds + plan.kill_seconds + 60)
    values: dict[str, Any] = {name: tuple(answer[name]) for name in ("members", "survivors", "signals")}
    return StopReport(**values, exit_code=answer["exit_code"], took=answer["took"])


@dataclass(frozen=True, slots=True)
class Launcher:
    """One way to run a server. `start` gets the folder for records; the others the record that `start` returned."""

    start: Callable[[Host, ServerSpec, str], Awaitable[ServerRecord]]
    status: Callable[[Host, ServerRecord], Awaitable[ServerStatus]]
    stop: Callable[[Host, ServerRecord, StopPlan], Awaitable[StopReport]]


LAUNCHERS: dict[str, Launcher] = {"setsid": Launcher(_start_setsid, _status_setsid, _stop_setsid)}


def _launcher(name: str) -> Launcher:
    if name not in LAUNCHERS:
        raise RemoteError(f"there is no launcher {name}", f"known are {', '.join(LAUNCHERS)}", "See [server] launcher")
    return LAUNCHERS[name]


async def start(host: Host, spec: ServerSpec, state_dir: str = STATE) -> ServerRecord:
    """Start a server in its own session, its stdout and stderr appended to its log; it outlives the connection.

    Raises PortTaken (says whose it is), FileMissing (program or working folder), PermissionDenied.
    """
    return await _launcher(spec.launcher).start(host, spec, state_dir)


async def status(host: Host, record: ServerRecord) -> ServerStatus:
    """Whether the recorded server still runs, and the exit code if it was seen to end."""
    return await _launcher(record.launcher).status(host, record)


async def stop(host: Host, record: ServerRecord, plan: StopPlan | None = None) -> StopReport:
    """Stop the recorded server and everything it started: SIGTERM, wait, SIGKILL, and see that all are gone.

    Only with proof: pid, boot, start time, process group and command line all as recorded. Otherwise NotOurs, and
    nothing is signalled; its `gone` says that the server had ended already. Children left behind by a dead server are
    stopped when they carry the token it was started with. An adopted server that does not lead its process group is
    stopped with its descendants, and the rest of the group is left alone.
    """
    return await _launcher(record.launcher).stop(host, record, plan or record.stop)


async def adopt(host: Host, port: int, plan: StopPlan | None = None) -> ServerRecord | None:
    """A record of the server that listens on `port`, started by whomever; None when nothing does.

    `log` is the file its stdout goes to, "" when that is no file. Raises PermissionDenied for another user's process.
    """
    found = await process.listener(host, port)
    if found is None:
        return None
    return ServerRecord(
        pid=found.pid,
        pgid=found.pgid,
        start_time=found.start_time,
        boot_id=found.boot_id,
        argv=found.argv,
        cmdline=found.argv,
        env_names=tuple(sorted(found.env)),
        cwd=found.cwd,
        log=found.stdout,
        log_offset=0,
        port=port,
        started_at=0.0,
        spec_hash="",
        stop=plan or StopPlan(),
        launcher="setsid",
        token="",
        file="",
        exit_file="",
    )


async def recorded(host: Host, state_dir: str = STATE) -> list[ServerRecord]:
    """All records on the host, newest first; files that are not records are passed over."""
    folder = f"{await resolve(host, state_dir)}/servers"
    try:
        answer, _ = await scripts.call(host, "files", {"op": "names", "path": folder})
    except FileMissing:
        return []
    found = []
    for name in answer["names"]:
        if not name.endswith(".json"):
            continue
        _, text = await scripts.call(
            host, "files", {"op": "read", "path": f"{folder}/{name}", "offset": 0, "limit": RECORD_LIMIT}
        )
        try:
            found.append(ServerRecord.from_json(text))
        except ValueError:
            continue
    return sorted(found, key=lambda record: record.started_at, reverse=True)
