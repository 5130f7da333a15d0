"""Session: one open deployment. Wires host, server, checks, draft and history; all that screens and commands talk to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from console.wiring import Wiring

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from console.checking import CheckStep, Report
    from console.deployment import Deployment
    from console.draft import DraftStage
    from console.launch import LaunchPlan, ServerStatus
    from console.runs import Run, RunHistory
    from console.serving import Serving
    from remote.host import Host

OnStep = "Callable[[str, str], None]"


class Session:
    """One open deployment. Coroutines run on the caller's loop and never hold it; one Session, one loop."""

    deployment: Deployment
    host: Host
    """The connection; `host.state` is the link, `host.commands` the log of everything that ran there."""
    serving: Serving
    """What the log says of the running server, in rolling windows. Filled while `follow_log` is iterated."""
    draft: DraftStage
    runs: RunHistory
    report: Report | None
    """The last report of `check` in this session."""
    last_status: ServerStatus
    """What `status()` saw last; an unknown, stopped server before the first call."""
    read_only: bool

    @classmethod
    async def open(
        cls,
        deployment: Deployment,
        *,
        trust: Callable[[str, str], Awaitable[bool]] | None = None,
        read_only: bool = False,
        dry_run: bool = False,
        who: str = "",
    ) -> Session:
        """Connect to the deployment's host. `trust(host, fingerprint)` is asked about an unknown host key; None = no.

        Raises remote's errors: Unreachable, HostKeyUnknown and the like.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Close the connection and the history. The server keeps running."""
        raise NotImplementedError

    async def status(self) -> ServerStatus:
        """Look at the server: record, process, port, health. The running command line wins over the file."""
        raise NotImplementedError

    def plan(self, overrides: Mapping[str, Any] | None = None) -> LaunchPlan:
        """The exact command that would run, and its difference from the process `status()` saw last.

        `overrides` are staged flags on top of `[server.args]`: a value sets, None unsets. Raises DeploymentError.
        """
        raise NotImplementedError

    async def start(
        self, reason: str, on_step: Callable[[str, str], None] | None = None, overrides: Mapping[str, Any] | None = None
    ) -> Run:
        """Start the server and wait until it is ready; the run is recorded from its first second.

        `on_step(name, detail)` is called as phases pass by: lock, start, loading, capturing, warming, ready.
        Raises Refused, StartFailed, remote's errors.
        """
        raise NotImplementedError

    async def stop(self, reason: str, on_step: Callable[[str, str], None] | None = None) -> None:
        """Stop the server; only a process proven to be it is signalled. Raises Refused, remote's errors."""
        raise NotImplementedError

    async def restart(
        self,
        reason: str,
        on_step: Callable[[str, str], None] | None = None,
        overrides: Mapping[str, Any] | None = None,
        last_good: bool = False,
        finding: Mapping[str, Any] | None = None,
    ) -> Run:
        """Stop, then start. `last_good`: with the configuration and command of the last run that served well.

        `finding` is the finding whose fix caused it; the new run is linked to it.
        """
        raise NotImplementedError

    def follow_log(self, tail: int = 2000) -> AsyncIterator[list[Any]]:
        """The server's log as batches of events, parsed once, from `tail` lines before its end; survives rotation.

        Events are those of `checks.engines.<engine>.log`; each is also fed to `serving` before it is yielded.
        """
        raise NotImplementedError

    def check(
        self,
        only: Sequence[str] = (),
        skip: Sequence[str] = (),
        samples: int = 16,
    ) -> AsyncIterator[CheckStep]:
        """Run the checks on the host: `Progress`, then a `Found` for each finding, and last the `Report`.

        Closing the iterator kills the run on the host.
        """
        raise NotImplementedError

    def wiring(self) -> Wiring:
        """Trained against served, from the last report; from the config alone what can be said without one."""
        raise NotImplementedError
