"""The processes on a host that listen on a TCP port."""

from __future__ import annotations

from dataclasses import dataclass

from remote import scripts
from remote.host import Host
from remote.process import ProcessInfo, from_answer


@dataclass(frozen=True, slots=True)
class Listening:
    """One process and the port it listens on. `log` is the file its output goes to, "" when that is none."""

    port: int
    process: ProcessInfo
    log: str


async def listening(host: Host) -> tuple[list[Listening], list[int]]:
    """The listening processes this account may see, by port, and the ports of those it may not."""
    answer, _ = await scripts.call(host, "listening", {"op": "listening"})
    found = []
    for item in answer["listening"]:
        process = from_answer(item["process"])
        if process is not None:
            found.append(Listening(int(item["port"]), process, process.stdout or str(item["stderr"])))
    return found, [int(port) for port in answer["closed"]]
