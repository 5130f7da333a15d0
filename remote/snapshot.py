"""What a host shows of a server at one moment, as plain JSON: GPUs, processes, port, disks, files, and its health."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from remote import gpu, http, scripts
from remote.errors import BadResponse, CommandFailed, NotListening, TimedOut
from remote.host import Host, resolve
from remote.server import STATE

HEALTH_TIMEOUT = 10.0
"""Seconds. A health endpoint that generates a token takes more than one by design."""
LOOK_TIMEOUT = 30.0
"""Seconds for the host's files and processes: a network file system that is gone never answers."""


@dataclass(frozen=True, slots=True)
class Sought:
    """What to look at. `pid` and `pgid` are the known server's, 0 for none; `places` are paths by name.

    `health` is the URL asked for the server's health, "" for not asked, with `headers`, which may hold a key; `draft`
    the folder or file of the draft.
    """

    port: int
    pid: int = 0
    pgid: int = 0
    health: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    draft: str = ""
    places: Mapping[str, str] = field(default_factory=dict)


async def snapshot(host: Host, sought: Sought, state_dir: str = STATE) -> dict[str, Any]:
    """Look once. A part that cannot be seen says so under its own key; raises remote's errors for the rest."""
    gpus, gpu_error = await _gpus(host)
    request = {
        "op": "snapshot",
        "state": await resolve(host, state_dir),
        "port": sought.port,
        "server": {"pid": sought.pid, "pgid": sought.pgid},
        "pids": sorted({pid for one in gpus for pid in one["pids"]}),
        "gpus": bool(gpus),
        "places": dict(sought.places),
        "draft": sought.draft,
    }
    answer, _ = await scripts.call(host, "snapshot", request, timeout=LOOK_TIMEOUT)
    health = await _health(host, sought.health, sought.headers) if sought.health else None
    return {**answer, "gpus": gpus, "gpu_error": gpu_error, "health": health}


async def _gpus(host: Host) -> tuple[Sequence[dict[str, Any]], str]:
    try:
        return [asdict(one) for one in await gpu.snapshot(host)], ""
    except (CommandFailed, TimedOut) as error:
        return (), str(error)


async def _health(host: Host, url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """One question: `status` is 0 where no answer came, and `outcome` says how it went."""
    began = time.monotonic()
    status, outcome, why = 0, "answered", ""
    try:
        status = (await http.get(host, url, headers=headers, timeout=HEALTH_TIMEOUT)).status
    except NotListening as error:
        outcome, why = "refused", str(error)
    except TimedOut as error:
        outcome, why = "timed out", str(error)
    except BadResponse as error:
        outcome, why = "unreadable", str(error)
    took = round(time.monotonic() - began, 3)
    return {"url": url, "status": status, "outcome": outcome, "why": why, "took": took, "limit": HEALTH_TIMEOUT}
