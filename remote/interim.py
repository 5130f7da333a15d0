"""Other servers in the place of a running one for a while: whatever becomes of us, the host puts that one back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from remote import scripts
from remote.errors import CommandFailed, FileMissing, HostUnreachable
from remote.files import HEARTBEAT, read
from remote.host import Host, resolve
from remote.server import STATE, ServerRecord, ServerSpec, prepared
from remote.stream import Stream

NOTE_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Pending:
    """A server that is to be put back, as noted in `file` on the host. `failed`: that was tried, and did not succeed.

    `since` in Unix seconds; `env_names` are names only: values may be secrets.
    """

    who: str
    since: float
    argv: tuple[str, ...]
    env_names: tuple[str, ...]
    failed: bool
    file: str


class Interim:
    """The place of a server. `record` is what runs there now."""

    def __init__(self, host: Host, stream: Stream, record: ServerRecord, state_dir: str, shown: list[str]) -> None:
        self._host, self._stream, self._state, self._shown = host, stream, state_dir, shown
        self._held = b""
        self._over = False
        self.record = record

    async def run(self, spec: ServerSpec) -> ServerRecord:
        """Stop what runs in the place and start `spec`. Raises what `server.start` and `server.stop` raise."""
        request, fields = await prepared(self._host, spec, self._state)
        return self._taken(await self._ask({"spec": {"request": request, "record": fields}}))

    async def back(self) -> ServerRecord:
        """Put the first server back, unless it was never replaced; the record of what runs then. Raises like `run`."""
        if self._over:
            return self.record
        self._over = True
        answer = await self._ask({"back": True})
        return self._taken(answer) if answer else self.record

    async def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """The answer to an order; {} when it ended without one."""
        await self._stream.write(json.dumps(order).encode() + b"\n")
        line = b""
        while b"\n" not in self._held and (data := await self._stream.read()):
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        if not line:
            return {}
        answer = scripts.decoded(line)
        if answer is None:
            raise CommandFailed(self._shown, None, self._stream.stderr_tail, "its answer is not JSON")
        if "refused" in answer:
            raise scripts.refusal(answer, self._host.name)
        return answer

    def _taken(self, answer: dict[str, Any]) -> ServerRecord:
        if "record" not in answer:
            raise CommandFailed(self._shown, None, self._stream.stderr_tail, "it ended without an answer")
        self.record = ServerRecord.from_json(json.dumps(answer["record"]).encode())
        return self.record

    async def beat(self) -> None:
        """Keep telling the host that we are here."""
        with contextlib.suppress(HostUnreachable):
            while True:
                await asyncio.sleep(HEARTBEAT)
                await self._stream.write(b".\n")


@asynccontextmanager
async def interim(
    host: Host, record: ServerRecord, first: ServerSpec, who: str, state_dir: str = STATE
) -> AsyncIterator[Interim]:
    """Let other servers run in the place of the one of `record`, which `first` starts again.

    A program on the host does it, in a session of its own: when the link is lost, or this process is killed, it puts
    the first one back by itself. Until then a note on the host says what is to be put back (`pending`).
    Raises what `server.start` and `server.stop` raise.
    """
    argv, shown = await scripts.command(host, "interim")
    request, fields = await prepared(host, first, state_dir)
    state = await note_file(host, first.port, state_dir)
    note = {"who": who, "since": time.time(), "argv": fields["argv"], "env_names": fields["env_names"]}
    order = {
        "program": scripts.source("server"),
        "current": asdict(record),
        "back": {"request": request, "record": fields},
        "state": state,
        "note": note,
    }
    async with host.stream(argv, input=None, shown=[*shown, who]) as stream:
        place = Interim(host, stream, record, state_dir, shown)
        if not (await place._ask(order)).get("ready"):
            raise CommandFailed(shown, None, stream.stderr_tail, "it did not begin")
        beating = asyncio.create_task(place.beat())
        try:
            yield place
        finally:
            try:
                await place.back()
            finally:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
                stream.write_eof()
                with contextlib.suppress(HostUnreachable, TimeoutError):
                    async with asyncio.timeout(10):
                        await stream.wait()


async def note_file(host: Host, port: int, state_dir: str = STATE) -> str:
    """Where the host notes what is to be put back on a port."""
    return f"{await resolve(host, state_dir)}/interim/{port}.json"


async def pending(host: Host, port: int, state_dir: str = STATE) -> Pending | None:
    """What is to be put back on a port, None when nothing is. A note that cannot be read counts as none."""
    file = await note_file(host, port, state_dir)
    try:
        note = scripts.decoded(await read(host, file, NOTE_LIMIT)) or {}
        return Pending(
            str(note["who"]),
            float(note["since"]),
            tuple(map(str, note["argv"])),
            tuple(map(str, note["env_names"])),
            bool(note.get("failed")),
            file,
        )
    except (FileMissing, KeyError, TypeError, ValueError):
        return None
