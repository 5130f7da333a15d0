"""The history: every run of a server and every version of a draft's config, in one SQLite file of the user's."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from console.errors import NotRun
from console.masking import mask_argv, mask_env, mask_json

if TYPE_CHECKING:
    from console.benching import Bench

T = TypeVar("T")

STARTING, READY, STOPPED, FAILED, LOST = "starting", "ready", "stopped", "failed", "lost"

_SCHEMA = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
  id INTEGER PRIMARY KEY,
  deployment TEXT NOT NULL, host TEXT NOT NULL, why TEXT NOT NULL,
  started REAL NOT NULL, ready REAL, ended REAL, state TEXT NOT NULL,
  pid INTEGER, argv TEXT NOT NULL, env TEXT NOT NULL, log TEXT NOT NULL, config_sha TEXT,
  verdict TEXT, summary TEXT, finding TEXT,
  accept_len REAL, tokens_per_s REAL, windows INTEGER NOT NULL DEFAULT 0, note TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS runs_of ON runs (deployment, started);
CREATE TABLE IF NOT EXISTS config_versions (
  id INTEGER PRIMARY KEY,
  host TEXT NOT NULL, path TEXT NOT NULL, sha TEXT NOT NULL, text TEXT NOT NULL,
  seen REAL NOT NULL, by TEXT NOT NULL, why TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS versions_of ON config_versions (host, path, id);
CREATE TABLE IF NOT EXISTS benches (
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL, time REAL NOT NULL, key TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS benches_of ON benches (run, id);
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One life of the server. Times are epoch seconds; argv and environment are masked.

    `accept_len` and `tokens_per_s` are means over `windows` decode lines; None before the first one.
    """

    id: int
    deployment: str
    host: str
    why: str
    started: float
    state: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    log: str = ""
    ready: float | None = None
    ended: float | None = None
    pid: int | None = None
    config_sha: str | None = None
    verdict: str | None = None
    summary: Mapping[str, int] | None = None
    finding: Mapping[str, Any] | None = None
    accept_len: float | None = None
    tokens_per_s: float | None = None
    windows: int = 0
    note: str = ""

    @property
    def served_well(self) -> bool:
        """It came up, was seen decoding, and no check failed it."""
        return self.ready is not None and self.windows > 0 and self.state != FAILED and self.verdict != "FAIL"


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a config.json: `by` is `console` or `outside`, `seen` when it was written or first noticed."""

    id: int
    host: str
    path: str
    sha: str
    text: str
    seen: float
    by: str
    why: str


# Named here because the history has a method called list.
Runs = list[Run]
Versions = list[Version]
Benches = list["Bench"]


def sha_of(text: str) -> str:
    """The SHA-256 of a file's text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


class RunHistory:
    """The database, reached through coroutines that never hold the loop; several consoles may have it open at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = threading.Lock()
        self._database: sqlite3.Connection | None = None

    async def begin(
        self,
        deployment: str,
        host: str,
        why: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: str = "",
        config_sha: str | None = None,
        finding: Mapping[str, Any] | None = None,
    ) -> Run:
        """Record a run that starts now."""
        row = {
            "deployment": deployment,
            "host": host,
            "why": why,
            "started": time.time(),
            "state": STARTING,
            "argv": json.dumps(mask_argv(argv)),
            "env": json.dumps(mask_env(env)),
            "log": log,
            "config_sha": config_sha,
            "finding": json.dumps(mask_json(finding)) if finding else None,
        }
        columns, marks = ", ".join(row), ", ".join(f":{name}" for name in row)

        def insert(database: sqlite3.Connection) -> Run:
            number = database.execute(f"INSERT INTO runs ({columns}) VALUES ({marks})", row).lastrowid
            return _run(database.execute("SELECT * FROM runs WHERE id = ?", (number,)).fetchone())

        return await self._do(insert)

    async def update(self, run: int, **values: Any) -> Run:
        """Set columns of one run; ValueError for one that is not to be set."""
        unknown = values.keys() - {
            *("state", "ready", "ended", "pid", "verdict", "summary"),
            *("accept_len", "tokens_per_s", "windows", "note"),
        }
        if unknown:
            raise ValueError(f"runs have no column to set named {sorted(unknown)}")
        row = {name: json.dumps(value) if name == "summary" else value for name, value in values.items()}
        settings = ", ".join(f"{name} = :{name}" for name in row)

        def change(database: sqlite3.Connection) -> Run:
            database.execute(f"UPDATE runs SET {settings} WHERE id = :id", {**row, "id": run})
            return _run(database.execute("SELECT * FROM runs WHERE id = ?", (run,)).fetchone())

        return await self._do(change)

    async def list(self, deployment: str = "", limit: int = 200) -> Runs:
        """The newest runs first; of one deployment, or of all."""
        query = "SELECT * FROM runs WHERE deployment = ? OR ? = '' ORDER BY id DESC LIMIT ?"
        return await self._do(lambda db: [_run(row) for row in db.execute(query, (deployment, deployment, limit))])

    async def get(self, run: int) -> Run | None:
        """One run, or None."""
        rows = await self._do(lambda db: db.execute("SELECT * FROM runs WHERE id = ?", (run,)).fetchall())
        return _run(rows[0]) if rows else None

    async def current(self, deployment: str, pid: int) -> Run | None:
        """The newest run of this deployment that has this pid and has not ended."""
        query = "SELECT * FROM runs WHERE deployment = ? AND pid = ? AND ended IS NULL ORDER BY id DESC LIMIT 1"
        rows = await self._do(lambda db: db.execute(query, (deployment, pid)).fetchall())
        return _run(rows[0]) if rows else None

    async def starting(self, deployment: str) -> Runs:
        """The runs of this deployment that began and were not seen ready or ended."""
        query = "SELECT * FROM runs WHERE deployment = ? AND state = ? AND ended IS NULL ORDER BY id"
        return await self._do(lambda db: [_run(row) for row in db.execute(query, (deployment, STARTING))])

    async def last_good(self, deployment: str) -> Run | None:
        """The newest run of the deployment that served well."""
        return next((run for run in await self.list(deployment) if run.served_well), None)

    async def keep_version(self, host: str, path: str, text: str, by: str, why: str) -> Version:
        """Keep a version of a config; one whose text is the newest already kept is not kept twice."""

        def keep(database: sqlite3.Connection) -> Version:
            newest = "SELECT * FROM config_versions WHERE host = ? AND path = ? ORDER BY id DESC LIMIT 1"
            row = database.execute(newest, (host, path)).fetchone()
            if row is None or row["sha"] != sha_of(text):
                database.execute(
                    "INSERT INTO config_versions (host, path, sha, text, seen, by, why) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (host, path, sha_of(text), text, time.time(), by, why),
                )
                row = database.execute(newest, (host, path)).fetchone()
            return Version(**dict(row))

        return await self._do(keep)

    async def versions(self, host: str, path: str) -> Versions:
        """Every version kept of one file, newest first."""
        query = "SELECT * FROM config_versions WHERE host = ? AND path = ? ORDER BY id DESC"
        return await self._do(lambda db: [Version(**dict(row)) for row in db.execute(query, (host, path))])

    async def config(self, sha: str) -> str | None:
        """The text of a kept config by its sha256, or None."""
        query = "SELECT text FROM config_versions WHERE sha = ? LIMIT 1"
        rows = await self._do(lambda db: db.execute(query, (sha,)).fetchall())
        return str(rows[0]["text"]) if rows else None

    async def keep_bench(self, run: int, found: Bench) -> Bench:
        """Keep a measurement with its run; as it is kept."""
        kept = replace(found, run=run, time=time.time())
        values = {**asdict(kept), "accept_lens": list(kept.accept_lens), "speeds": list(kept.speeds)}
        row = (run, kept.time, kept.key, json.dumps(values))
        statement = "INSERT INTO benches (run, time, key, text) VALUES (?, ?, ?, ?)"
        await self._do(lambda db: db.execute(statement, row).lastrowid)
        return kept

    async def benches(self, run: int) -> Benches:
        """The measurements of one run, newest first."""
        query = "SELECT text FROM benches WHERE run = ? ORDER BY id DESC"
        return await self._do(lambda db: [_bench(row["text"]) for row in db.execute(query, (run,))])

    async def close(self) -> None:
        """Close the file."""
        await asyncio.to_thread(self._close)

    async def _do(self, action: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(self._locked, action)

    def _locked(self, action: Callable[[sqlite3.Connection], T]) -> T:
        with self._guard:
            try:
                database = self._database or self._open()
                with database:
                    return action(database)
            except (sqlite3.Error, OSError) as error:
                raise NotRun(
                    f"the history {self.path} cannot be used: {error}; see to its folder, or move it away"
                ) from error

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = sqlite3.connect(self.path, timeout=10, check_same_thread=False)
        database.row_factory = sqlite3.Row
        self.path.chmod(0o600)
        database.execute("PRAGMA journal_mode = WAL")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version > _SCHEMA:
            database.close()
            raise sqlite3.DatabaseError(f"it was written by a newer console (schema {version})")
        database.executescript(_TABLES)
        database.execute(f"PRAGMA user_version = {_SCHEMA}")
        self._database = database
        return database

    def _close(self) -> None:
        with self._guard:
            if self._database is not None:
                self._database.close()
                self._database = None


def _bench(text: str) -> Bench:
    from console.benching import Bench

    values = json.loads(text)
    return Bench(**{**values, "accept_lens": tuple(values["accept_lens"]), "speeds": tuple(values["speeds"])})


def _run(row: sqlite3.Row) -> Run:
    values = dict(row)
    values["argv"] = tuple(json.loads(values["argv"]))
    for name in ("env", "summary", "finding"):
        values[name] = json.loads(values[name]) if values[name] else None
    values["env"] = values["env"] or {}
    return Run(**values)
