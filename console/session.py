"""Session: one open deployment, wiring host, server, checks, draft and history; what screens and commands talk to."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import socket
import time
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from console.checking import Report, request_for, run_on_host
from console.draft import LONGEST_CONFIG, DraftStage
from console.errors import ConsoleError, DeploymentError, Refused
from console.following import Tell, follow_events
from console.launch import LaunchPlan, ServerStatus, engine_part, with_secrets
from console.paths import history_file
from console.runs import FAILED, READY, STOPPED, Run, RunHistory, sha_of
from console.server import Server
from console.serving import Serving
from console.startup import healthy
from console.wiring import Wiring, ids_in, ids_key, read_wiring, served_by_ids
from remote import files, server
from remote.errors import PermissionDenied, RemoteError
from remote.host import home, open_host
from remote.output import log_source
from remote.server import STATE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from console.checking import CheckStep
    from console.deployment import Deployment
    from console.startup import OnStep
    from remote.host import Host, Trust
    from remote.server import ServerRecord

STAGED = "~/.cache/eagle-console/staged"
"""Where a staged config is put on the host for the `cfg` checks to read."""
_LAUNCH_S = 120.0
"""A launch says its process well within this; a run that has none by then never had one."""
_LOOKS = 16
"""How often, half a second apart, to see whether a server that was told to stop has ended."""


class Session:
    """One open deployment. Coroutines run on the caller's loop and never hold it; one Session, one loop.

    `host.state` is the link, `host.commands` the log of everything that ran there. `serving` is filled while
    `follow_log` is iterated. `report` is the last report of `check`.
    """

    def __init__(self, deployment: Deployment, host: Host, runs: RunHistory, at: str, read_only: bool) -> None:
        """Use `Session.open`. `at` is the account's home folder on the host."""
        self.deployment, self.host, self.runs, self.read_only = deployment, host, runs, read_only
        self.serving = Serving()
        self.server = Server(deployment, host, runs, self.serving, at)
        self.draft = DraftStage(
            host, self.server.at_host(deployment.model.draft), runs, self._draft_lock, self._diagnose
        )
        self.report: Report | None = None
        self._findings: list[dict[str, Any]] = []
        self._restarted = False
        """Whether the server began another life since the wiring was checked last."""
        self._changing = False
        self._told: tuple[ServerRecord, Run | None] | None = None
        """The server that was told to stop since the lock was taken last, and its run."""
        self._launched: ServerRecord | None = None
        """The server whose launch an interruption met."""

    @classmethod
    async def open(cls, deployment: Deployment, *, trust: Trust | None = None, read_only: bool = False) -> Session:
        """Connect to the deployment's host. `trust` is asked about an unknown host key (HostKeyUnknown -> bool).

        Raises remote's errors: HostUnreachable, HostKeyUnknown, HostKeyChanged, AuthenticationFailed.
        """
        for part in ("launch", "log"):
            # The first import takes long enough to be felt; from here on it is there.
            await asyncio.to_thread(engine_part, deployment.server.engine_name, part)
        spec = deployment.host
        config = [str(deployment.ssh_config)] if deployment.ssh_config else None
        host = await open_host(
            spec.ssh or None, container=spec.container, python=spec.python, config_paths=config, trust=trust
        )
        try:
            runs = RunHistory(deployment.history or history_file())
            session = cls(deployment, host, runs, await home(host), read_only)
        except BaseException:
            await host.close()
            raise
        return session

    async def close(self) -> None:
        """Note what the running server measured so far, close connection and history. The server keeps running."""
        try:
            await self.server.note_run()
        except (ConsoleError, RemoteError):
            pass  # whatever ails the link or the history must not keep them open
        finally:
            await self.host.close()
            await self.runs.close()

    # -- looking -----------------------------------------------------------------------------------------------

    @property
    def last_status(self) -> ServerStatus:
        """What `status` saw last; of phase "" before the first call."""
        return self.server.last

    async def status(self) -> ServerStatus:
        """Look at the server: record, process, port, health. The running command line wins over the file.

        A run that an interrupted command left at `starting` is settled by what is seen.
        """
        seen = await self.server.look()
        if not self._changing:
            await self._settle(seen)
        return seen

    async def _settle(self, seen: ServerStatus) -> None:
        """Close runs at `starting` that start no more. A server counts as ready when it answers as a start awaits."""
        if not self.runs.path.exists():
            return
        for run in await self.runs.starting(self.deployment.name):
            if run.pid is not None and run.pid == seen.pid:
                if seen.healthy and await healthy(self.host, self.deployment.server.url, self.server.headers):
                    note = "nobody waited for it; found ready"
                    await self.runs.update(run.id, state=READY, ready=time.time(), note=note)
            elif await self._is_over(run):
                note = "the command that started it was interrupted; found ended"
                await self.runs.update(run.id, state=FAILED, ended=time.time(), note=note)

    async def _is_over(self, run: Run) -> bool:
        if run.pid is None:
            return time.time() - run.started > _LAUNCH_S
        records = await server.recorded(self.host)
        record = next((item for item in records if item.pid == run.pid), None)
        return record is None or not (await server.status(self.host, record)).alive

    async def aftermath(self, command: str, before: int | None) -> str:
        """After an interrupted start, stop or restart: what the server is now, and what to do next.

        `before` is the process that ran when the command began. Raises ConsoleError, remote's errors.
        """
        name, again = self.deployment.name, "stopped and not started again" if command == "restart" else "stopped"
        if self._told is not None:
            record, run = self._told
            for _ in range(_LOOKS):
                if not (await server.status(self.host, record)).alive:
                    break
                await asyncio.sleep(0.5)
            else:
                return (
                    f"process {record.pid} was being stopped and still runs; see console status {name}, "
                    f"and when it stays: console stop {name}"
                )
            if run is not None:
                await self.runs.update(run.id, state=STOPPED, ended=time.time(), note="stopped: interrupted")
        if self._launched is not None:
            self.server.record = self._launched
            for begun in (await self.runs.starting(name))[-1:]:
                await self.runs.update(begun.id, pid=self._launched.pid)
        seen = await self.status()
        if not seen.up:
            wrong = f" ({seen.note})" if seen.phase == "crashed" and self._told is None else ""
            how = again if before and command != "start" else "not started"
            return f"the server was {how}{wrong}; start it: console start {name}"
        if seen.pid == before:
            return f"nothing was changed: process {seen.pid} runs on; try again: console {command} {name}"
        if seen.healthy:
            return f"the server is up as process {seen.pid}; nothing is left to do but to look: console status {name}"
        return (
            f"process {seen.pid} is starting and goes on without this command; "
            f"see when it is ready: console status {name}; or stop it: console stop {name}"
        )

    def plan(self, overrides: Mapping[str, Any] | None = None) -> LaunchPlan:
        """The exact command that would run, and its difference from the process `status` saw last.

        `overrides` are staged flags on top of `[server.args]`: a value sets, None unsets. Raises DeploymentError.
        """
        return self.server.plan(overrides)

    async def follow_log(self, tail: int = 2000, tell: Tell | None = None) -> AsyncGenerator[list[Any], None]:
        """The server's log as batches of events, parsed once, from `tail` lines before its end; survives rotation.

        `tell` hears when another log is followed than `[server] log` names, and when it is waited for.
        Events are those of `checks.engines.<engine>.log`; each is also fed to `serving` before it is yielded.
        """
        while True:
            path, opened = self.server.log_path, time.monotonic()
            self.server.followed = path
            self.server.log_moved.clear()
            engine = self.deployment.server.engine_name
            if tell is not None and (named := await self._other_log(path)):
                tell(f"following {path}, where the server writes, and not [server] log, which is {named}")
            coming = follow_events(self.host, path, engine, tail, self.server.log_moved, tell=tell)
            async with aclosing(coming) as events:
                async for batch in events:
                    # What was there before we looked is the past: it fills the curves, and is not "now".
                    self.serving.feed(batch, live=time.monotonic() - opened > 1.0)
                    yield batch

    async def _other_log(self, path: str) -> str:
        """The log that the deployment names, where `path` is another one; links lead to the same."""
        named = self.server.at_host(self.deployment.server.log)
        if not named or named == path or log_source(named) is not None:
            return "" if named == path else named
        there = await files.stat(self.host, named)
        return "" if there is not None and there.real == path else named

    # -- changing ----------------------------------------------------------------------------------------------

    async def start(
        self, reason: str, on_step: OnStep | None = None, overrides: Mapping[str, Any] | None = None
    ) -> Run:
        """Start the server and wait until it is ready; the run is recorded from its first second.

        `on_step(name, detail)` is called as phases pass by: lock, start, loading, capturing, warming, ready.
        Raises Refused, StartFailed, remote's errors.
        """
        step = on_step or _silent
        async with self.server_lock("start the server", step):
            if (await self.status()).up:
                raise Refused(f"it runs already (process {self.last_status.pid}); restart it, or stop it first")
            self._restarted = True
            snapshot = await self.snapshot()
            return await self.server.start(reason, step, self.plan(overrides), snapshot, None, self._launch)

    async def stop(self, reason: str, on_step: OnStep | None = None) -> None:
        """Stop the server; only a process proven to be it is signalled. Raises Refused, remote's errors."""
        step = on_step or _silent
        async with self.server_lock("stop the server", step):
            if not (await self.status()).up:
                raise Refused("no server of this deployment runs")
            await self._stop(reason, step)

    async def _launch(self, spec: server.ServerSpec) -> ServerRecord:
        work = asyncio.ensure_future(server.start(self.host, spec))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # Cut short, it could leave a process that nobody knows of.
            self._launched = await work
            raise

    async def _stop(self, reason: str, step: OnStep) -> None:
        record = self.server.record
        if record is None:
            return

        def heard(name: str, detail: str) -> None:
            # From here on it is told to end, whether or not anybody waits for that.
            if name == "stop":
                self._told = (record, run)
            step(name, detail)

        run = await self.runs.current(self.deployment.name, record.pid)
        await self.server.stop(reason, heard)

    async def restart(
        self,
        reason: str,
        on_step: OnStep | None = None,
        overrides: Mapping[str, Any] | None = None,
        last_good: bool = False,
        finding: Mapping[str, Any] | None = None,
    ) -> Run:
        """Stop, then start. `last_good`: with the configuration and command of the last run that served well.

        `finding` is the finding whose fix caused it; the new run is linked to it. Raises like `start` and `stop`.
        """
        step = on_step or _silent
        async with self.server_lock("restart the server", step):
            await self.status()
            plan, cause = self.plan(overrides), finding or self.draft.finding
            if last_good:
                plan = await self._return_to_good(plan, step)
            self._restarted = True
            if self.last_status.up:
                await self._stop(reason, step)
            run = await self.server.start(reason, step, plan, await self.snapshot(), cause, self._launch)
        self.draft.finding = None
        return run

    async def _return_to_good(self, plan: LaunchPlan, step: OnStep) -> LaunchPlan:
        good = await self.runs.last_good(self.deployment.name)
        if good is None:
            raise Refused("no run of this deployment has served well yet, so there is nothing to go back to")
        step("last good", f"run {good.id}")
        await self.draft.load_for_restore()
        if good.config_sha and self.draft.base_sha != good.config_sha:
            await self.draft.restore(good.config_sha)
            await self.draft.write(f"back to the config of run {good.id}")
        return LaunchPlan(with_secrets(good.argv, plan.argv), plan.env, plan.log, plan.port)

    async def snapshot(self) -> str | None:
        """Keep the draft's config as it is now; its sha256, or None when there is none to read."""
        if not self.deployment.model.draft:
            return None
        try:
            data = await files.read(self.host, self.draft.path, LONGEST_CONFIG + 1)
            text = data.decode()
        except (RemoteError, UnicodeDecodeError):
            return None
        if len(data) > LONGEST_CONFIG:
            return None
        await self.runs.keep_version(self.host.name, self.draft.path, text, "outside", "at the start of a run")
        return sha_of(text)

    @asynccontextmanager
    async def server_lock(self, action: str, step: OnStep) -> AsyncIterator[None]:
        """Hold what is changed while the server is started, stopped or replaced. Raises Refused (read-only), Busy."""
        self._refuse_read_only(action)
        step("lock", self.host.name)
        async with self._locked(f"{STATE}/locks/server-{self.deployment.server.port}.lock", action):
            self._changing, self._told, self._launched = True, None, None
            try:
                yield
            finally:
                self._changing = False

    def _refuse_read_only(self, action: str) -> None:
        if self.read_only:
            raise Refused(f"read-only: it was asked to {action}, and the console was opened to change nothing")

    @asynccontextmanager
    async def _draft_lock(self, action: str) -> AsyncIterator[None]:
        async with self._locked(f"{self.draft.path.rpartition('/')[0]}/.console/lock", action):
            yield

    @asynccontextmanager
    async def _locked(self, path: str, action: str) -> AsyncIterator[None]:
        """Hold the lock of what is about to be changed; others see who holds it. Raises Refused, Busy."""
        self._refuse_read_only(action)
        async with files.lock(self.host, path, who(action)):
            yield

    # -- judging -----------------------------------------------------------------------------------------------

    async def check(
        self, only: Sequence[str] = (), skip: Sequence[str] = (), samples: int = 16, engine_source: str = ""
    ) -> AsyncGenerator[CheckStep, None]:
        """Run the checks on the host: `Progress`, then a `Found` for each finding, and last the `Report`.

        Closing the iterator kills the run on the host. Raises NotRun, UsageError, remote's errors.
        """
        from console import host_look
        from console.log_at_hand import log_at_hand

        hidden = True
        with suppress(PermissionDenied):
            # Another user's process on the port keeps nobody from judging files; `ops.port` says so.
            await self.status()
            hidden = False
        request = self.request(only, skip, samples, engine_source)
        if host_look.is_asked(only, skip):
            request["snapshot"] = await host_look.look(self)
        async with (
            log_at_hand(self, request, hidden) as log,
            aclosing(run_on_host(self.host, self.python, request | log)) as steps,
        ):
            async for step in steps:
                if isinstance(step, Report):
                    await self._take(step, bool(only or skip))
                yield step

    @property
    def python(self) -> str:
        """The python that runs the checks on the host."""
        return self.deployment.host.python or self.server.default_python

    def request(
        self, only: Sequence[str] = (), skip: Sequence[str] = (), samples: int = 16, engine_source: str = ""
    ) -> dict[str, Any]:
        """What is asked of the checks on the host: the deployment's paths, and the server as `status` saw it last."""
        running, seen = self.server.argv, self.server.process
        record = self.server.record
        try:
            argv = running or self.plan().argv
        except DeploymentError:
            argv = ()
        server = {
            "url": self.deployment.server.url if self.last_status.healthy else "",
            "argv": list(running),
            "cwd": seen.cwd if seen is not None and running else "",
            "pythonpath": ":".join(seen.pythonpath) if seen is not None and running else "",
            "api_key": self.server.key if self.last_status.healthy else "",
            "pid": seen.pid if seen is not None and running else 0,
        }
        return request_for(
            self.deployment,
            host=self.host.name,
            at_host=self.server.at_host,
            server=server,
            argv=argv,
            # Given only when a server writes it: a log that is not there would end the run before it began.
            log=record.log if running and record is not None else "",
            python=self.server.at_host(self.python),
            only=only,
            skip=skip,
            samples=samples,
            engine_source=engine_source,
        )

    async def _take(self, report: Report, partial: bool) -> None:
        """Remember a report: whole, or the findings of the checks it ran in place of their older ones."""
        self.report = report
        checked = {item["check"] for item in report.findings}
        kept = [item for item in self._findings if item["check"] not in checked] if partial else []
        self._findings = kept + report.findings
        self._restarted = self._restarted and "align.engine_pair" not in checked
        pid = self.last_status.pid
        run = await self.runs.current(self.deployment.name, pid) if pid else None
        if run is not None and not partial and not _of_another(report):
            await self.runs.update(run.id, verdict=report.verdict, summary=report.raw["summary"])

    async def _diagnose(self, text: str) -> list[dict[str, Any]]:
        """The `cfg` findings for a config that is not the draft's yet: it is put in a folder of its own on the host."""
        folder = f"{STAGED}/{sha_of(text)[:16]}"
        await files.write_atomic(self.host, f"{folder}/config.json", text.encode(), backup=False, make_folder=True)
        request = self.request(("cfg",), (), 1) | {"draft": self.server.at_host(folder), "caches": []}
        async with aclosing(run_on_host(self.host, self.python, request)) as steps:
            async for step in steps:
                if isinstance(step, Report):
                    return step.findings
        return []

    def wiring(self) -> Wiring:
        """Trained against served, from the findings so far; unknown where they say nothing.

        After a restart what is served is not known until `align.engine_pair` is run again.
        """
        found = read_wiring(self._findings)
        return Wiring(found.n, found.trained, None, trained_by=found.trained_by) if self._restarted else found

    def wiring_of(self, text: str) -> Wiring:
        """The wiring as it would become with this config; what its ids feed is known only where findings say so."""
        now = read_wiring(self._findings)
        try:
            ids = ids_in(json.loads(text))
        except ValueError:
            return Wiring(now.n, now.trained, None, trained_by=now.trained_by)
        served = served_by_ids(self._findings).get(ids_key(ids))
        return Wiring(now.n, now.trained, served, now.source if served else "", now.trained_by, now.engine)


def who(action: str) -> str:
    """Who does something, for those who find it in their way."""
    return f"{getpass.getuser()}@{socket.gethostname()} (console {os.getpid()}): {action}"


def _of_another(report: Report) -> bool:
    """Whether what was judged is not what the running server has loaded, so that its run is not to be judged by it."""
    found = (report.find(check) for check in ("ops.stale_draft", "ops.identity"))
    return any(item is not None and item["verdict"] in ("FAIL", "WARN") for item in found)


def _silent(name: str, detail: str) -> None:
    """Steps that nobody asked to hear of."""
