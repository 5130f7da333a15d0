"""The config of the draft that the running server has loaded, where the one on disk was written after its start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.evidence import Evidence
from checks.ops.life import GRACE_S, course_of, ready_by
from checks.ops.process import served_draft
from checks.ops.snapshot import snapshot_of, stamp
from checks.started import started_at


@dataclass(frozen=True)
class Earlier:
    """The config that the running server has, or may have, instead of the one on disk.

    `started` and `written` are Unix seconds: of the server, and of the file on disk. `surely` is False where the file
    was written while the server may still have been about to read it. `config` is what the file held at the start;
    None where that is not known.
    """

    started: float
    written: float
    surely: bool
    by_content: bool
    config: Mapping[str, Any] | None

    @property
    def words(self) -> str:
        """The clause of a summary that says so."""
        has = "still has" if self.surely else "may still have"
        return f"the running server {has} the config of its start ({stamp(self.started)})"

    def as_json(self, states: tuple[int, ...] | None) -> dict[str, Any]:
        """For evidence; `states` are those that the running server feeds, None where they are not known."""
        return {
            "server_started": stamp(self.started),
            "config_written": stamp(self.written),
            "told_by": "content" if self.by_content else "time",
            "states": list(states) if states is not None else None,
        }


def earlier_config(evidence: Evidence) -> Earlier | None:
    """The earlier config of the running server; None where nothing says that it has another one. Memoised.

    By content where the console started the server and so knows what the file held then, else by the time at which the
    file was written. A server of another draft is told by `ops.identity`.
    """
    return evidence.memo("earlier config", lambda: _find(evidence))


def _find(evidence: Evidence) -> Earlier | None:
    draft, seen = evidence.draft, snapshot_of(evidence)
    if draft is None or draft.config_path is None or draft.config_error is not None or served_draft(evidence) is False:
        return None
    started = seen.server.started if seen.server is not None else None
    if started is None and evidence.request.snapshot is None:
        started = started_at(evidence.request.server.pid)
    if started is None or (seen.config_sha256 and seen.config_sha256 == draft.config_sha256):
        return None
    try:
        file = draft.config_path.stat()
    except OSError:
        return None
    # A copy that keeps old times changes the entry; without a content to compare, so does a mere change of its mode.
    written = max(file.st_mtime, file.st_ctime) if seen.config_sha256 else file.st_mtime
    if written <= started + GRACE_S:
        return None
    ready = ready_by(seen, started, course_of(evidence))
    return Earlier(
        started,
        written,
        surely=ready is not None and written > ready,
        by_content=bool(seen.config_sha256),
        config=_parsed(seen.config),
    )


def _parsed(text: str) -> Mapping[str, Any] | None:
    try:
        config = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return config if isinstance(config, Mapping) else None
