"""Keys that do nothing now: grey in the bottom line, and pressed all the same they say why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from textual.actions import ActionParseResult
from textual.dom import DOMNode

from console.screens.crashing import CrashingApp

if TYPE_CHECKING:
    from console.session import Session
    from console.state import Cockpit

READ_ONLY = "read-only: the console was opened to change nothing"
"""Why nothing that changes is possible."""


class Saying:
    """An app or a screen that knows why an action of its own is not possible now."""

    def why_not(self, action: str) -> str:
        """Why an action is not possible here and now; "" where it is."""
        return ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Grey what is not possible now."""
        return None if self.why_not(action) else True


class SayingApp(Saying, CrashingApp):
    """An app that says why nothing happens when a key is grey."""

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Do it; of what is grey say why it is not possible now."""
        if await super().run_action(action, default_namespace, namespaces):
            return True
        where = default_namespace or self
        why = where.why_not(action.partition("(")[0]) if isinstance(where, Saying) and isinstance(action, str) else ""
        if why:
            self.notify(why, severity="warning", markup=False)
        return bool(why)


def why_not_server(action: str, session: Session | None, cockpit: Cockpit) -> str:
    """Why the server cannot be started anew (`restart`) or stopped (`stop`) now; "" where it can."""
    if session is not None and session.read_only:
        return READ_ONLY
    if session is None or not session.last_status.known:
        return "not yet known whether a server runs: the host is still being asked"
    if action == "stop":
        return "" if session.last_status.up else "no server runs"
    return "a restart is under way (4 shows it)" if cockpit.timeline.busy else ""
