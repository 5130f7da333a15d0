"""Session: one open deployment. Wires host, server, checks, draft and history; all that screens and commands talk to."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import socket
import sys
import time
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from console.checking import Report, request_for, run_on_host
from console.draft import DraftStage
from console.errors import ConsoleError, NotRun, Refused, StartFailed
from console.following import follow_events
from console.launch import (
    LaunchPlan,
    ServerStatus,
    argv_differences,
    ceiling_of,
    flags_of,
    plan_launch,
    with_secrets,
)
from console.measure import run_values
from console.paths import history_file
from console.runs import FAILED, READY, STOPPED, Run, RunHistory, sha_of
from console.serving import Serving
from console.startup import Stopwatch, await_ready, healthy
from console.wiring import Wiring, ids_in, ids_key, read_wiring, served_by_ids

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from console.checking import CheckStep
    from console.deployment import Deployment
    from console.startup import OnStep
    from remote.host import Host, Trust
    from remote.process import ProcessInfo
    from remote.server import ServerRecord

# Answered without a generation, in the order to try: SGLang 0.5.20 and newer, then all of SGLang, then vLLM.
_LIGHT_HEALTH = ("/ready", "/get_model_info", "/v1/models")
_INFO = ("/server_info", "/get_server_info")
_LIGHT_TIMEOUT = 3.0
_RESCAN_S = 10.0
STAGED = "~/.cache/eagle-console/staged"
"""Where a staged config is put on the host for the `cfg` checks to read."""


class Session:
    """One open deployment. Coroutines run on the caller's loop and never hold it; one Session, one loop.

    `host.state` is the link, `host.commands` the log of everything that ran there. `serving` is filled while
    `follow_log` is iterated. `report` is the last report of `check`, `last_status` what `status` saw last.
    """

    def __init__(self, deployment: Deployment, host: Host, runs: RunHistory, home: str, read_only: bool) -> None:
        """Use `Session.open`. `home` is the account's home folder on the host."""
        self.deployment, self.host, self.runs, self.read_only = deployment, host, runs, read_only
        self.serving = Serving()
        self.report: Report | None = None
        self.last_status = ServerStatus(url=deployment.server.url)
        self.draft = DraftStage(
            host, self._at_host_with(home, deployment.model.draft), runs, self._draft_lock, self._diagnose
        )
        self._home = home
        self._findings: list[dict[str, Any]] = []
        self._record: ServerRecord | None = None
        self._process: ProcessInfo | None = None
        self._scanned = float("-inf")
        self._engine: tuple[int, str] = (0, "")
        self._log_moved = asyncio.Event()

    @classmethod
    async def open(
        cls, deployment: Deployment, *, trust: Trust | None = None, read_only: bool = False, runs: RunHistory | None = None
    ) -> Session:
        """Connect to the deployment's host. `trust` is asked about an unknown host key (HostKeyUnknown -> bool).

        Raises remote's errors: HostUnreachable, HostKeyUnknown, HostKeyChanged, AuthenticationFailed.
        """
        from remote.host import home, open_host

        spec = deployment.host
        config = [str(deployment.ssh_config)] if deployment.ssh_config else None
        host = await open_host(
            spec.ssh or None, container=spec.container, python=spec.python, config_paths=config, trust=trust
        )
        try:
            session = cls(deployment, host, runs or RunHistory(history_file()), await home(host), read_only)
            plan = session.plan()
            session.serving.ceiling = ceiling_of(flags_of(deployment, plan.argv))
        except BaseException:
            await host.close()
            raise
        return session

    async def close(self) -> None:
        """Note what the running server measured so far, close the connection and the history. The server keeps running."""
        try:
            await self._note_run()
        except (ConsoleError, OSError, _remote_error()):
            pass  # whatever ails the link or the history must not keep them open
        finally:
            await self.host.close()
            await self.runs.close()

    # -- looking -----------------------------------------------------------------------------------------------

    async def status(self) -> ServerStatus:
        """Look at the server: record, process, port, health. The running command line wins over the file."""
        from remote import server

        record, exit_code = await self._find(), None
        if record is not None:
            seen = await server.status(self.host, record)
            self._process, exit_code = seen.process, seen.exit_code
            if not seen.alive:
                self.last_status = await self._ended(record, exit_code)
                self._record = self._process = None
                return self.last_status
            record = self._record = seen.record
        if record is None:
            self.last_status = ServerStatus(url=self.deployment.server.url)
            return self.last_status
        argv = record.cmdline or record.argv
        plan = self.plan()
        ours = record.file != "" or self._belongs(argv)
        up = ours and await self._answers()
        self.serving.ceiling = ceiling_of(flags_of(self.deployment, argv)) or self.serving.ceiling
        self.last_status = ServerStatus(
            phase="foreign" if not ours else self._phase(up),
            record=record,
            pid=record.pid,
            argv=argv,
            url=self.deployment.server.url,
            healthy=up,
            engine=await self._engine_label(record.pid) if up else "",
            since=record.started_at or None,
            differences=argv_differences(self.deployment, argv, plan.argv) if ours else (),
            note="" if ours else f"process {record.pid} owns port {record.port} and is not this deployment's server",
        )
        return self.last_status

    async def _find(self) -> ServerRecord | None:
        """The record of the server: the one known, else what listens, else the newest recorded for this port."""
        from remote import process, server

        if self._record is not None:
            return self._record
        listening = await process.listener(self.host, self.deployment.server.port)
        if listening is None and time.monotonic() - self._scanned < _RESCAN_S:
            return None
        self._scanned = time.monotonic()
        mine = [item for item in await server.recorded(self.host) if item.port == self.deployment.server.port]
        if listening is not None:
            known = next((item for item in mine if listening.pid == item.pid or listening.pgid == item.pgid), None)
            self._set_record(known or await server.adopt(self.host, self.deployment.server.port))
        elif mine:
            self._set_record(mine[0])
        return self._record

    def _set_record(self, record: ServerRecord | None) -> None:
        before, self._record = self._record, record
        if record is not None and record.log and (before is None or before.log != record.log):
            self._log_moved.set()

    async def _ended(self, record: ServerRecord, exit_code: int | None) -> ServerStatus:
        """The status of a server that runs no more: stopped when somebody stopped it, else crashed."""
        url = self.deployment.server.url
        run = await self.runs.current(self.deployment.name, record.pid)
        if run is not None:
            state = STOPPED if exit_code == 0 else FAILED
            note = "" if exit_code == 0 else f"ended by itself with code {exit_code}"
            await self.runs.update(run.id, state=state, ended=time.time(), note=note)
        newest = await self.runs.list(self.deployment.name, 1)
        stopped = exit_code == 0 or (newest and newest[0].pid == record.pid and newest[0].state == STOPPED)
        if stopped:
            return ServerStatus(url=url)
        code = "" if exit_code is None else f" with code {exit_code}"
        note = f"process {record.pid} ended{code}; {self.serving.last_error or f'its log is {record.log}'}"
        return ServerStatus("crashed", url=url, argv=record.argv, note=note)

    def _belongs(self, argv: Sequence[str]) -> bool:
        """Whether a server nobody recorded is this deployment's: it runs this target or draft."""
        model = self.deployment.model
        mine = {self._at_host(path).rstrip("/") for path in (model.target, model.draft) if path}
        return any(word.partition("=")[2].rstrip("/") in mine or word.rstrip("/") in mine for word in argv)

    async def _answers(self) -> bool:
        url = self.deployment.server.url
        return any([await healthy(self.host, url, path, _LIGHT_TIMEOUT) for path in _LIGHT_HEALTH[:1]]) or any(
            [await healthy(self.host, url, path, _LIGHT_TIMEOUT) for path in _LIGHT_HEALTH[1:]]
        )

    def _phase(self, up: bool) -> str:
        said = self.serving.phase
        if up:
            return said if said in ("ready", "serving", "draining") else "ready"
        return said if said not in (None, "ready", "serving", "stopped", "crashed") else "starting"

    async def _engine_label(self, pid: int) -> str:
        from remote import http
        from remote.errors import RemoteError

        if self._engine[0] == pid:
            return self._engine[1]
        name, label = self.deployment.server.engine_name, ""
        for path in _INFO:
            try:
                answer = await http.get(self.host, self.deployment.server.url.rstrip("/") + path, timeout=_LIGHT_TIMEOUT)
                info = answer.json() if answer.ok else None
            except RemoteError:
                continue
            if isinstance(info, dict):
                label = f"{info.get('engine') or name} {info.get('version') or ''}".strip()
                break
        self._engine = (pid, label) if label else (0, "")
        return label or name

    def plan(self, overrides: Mapping[str, Any] | None = None) -> LaunchPlan:
        """The exact command that would run, and its difference from the process `status()` saw last.

        `overrides` are staged flags on top of `[server.args]`: a value sets, None unsets. Raises DeploymentError.
        """
        running = self.last_status.argv if self.last_status.up and self.last_status.phase != "foreign" else ()
        return plan_launch(self.deployment, overrides, running, self._at_host, self._default_python)

    @property
    def _default_python(self) -> str:
        return "python3" if self.deployment.host.ssh or self.deployment.host.container else sys.executable

    def _at_host(self, path: str) -> str:
        return self._at_host_with(self._home, path)

    @staticmethod
    def _at_host_with(home: str, path: str) -> str:
        return home.rstrip("/") + path[1:] if path == "~" or path.startswith("~/") else path

    @property
    def log_path(self) -> str:
        """The log of the running server, else the one the deployment names."""
        return (self._record.log if self._record is not None else "") or self.plan().log

    async def follow_log(self, tail: int = 2000) -> AsyncGenerator[list[Any], None]:
        """The server's log as batches of events, parsed once, from `tail` lines before its end; survives rotation.

        Events are those of `checks.engines.<engine>.log`; each is also fed to `serving` before it is yielded.
        """
        live = False
        while True:
            self._log_moved.clear()
            batches = follow_events(
                self.host, self.log_path, self.deployment.server.engine_name, tail, self._log_moved, None if not live else 0
            )
            opened = time.monotonic()
            async with aclosing(batches) as events:
                async for batch in events:
                    # What was there before we looked is the past: it fills the curves, and is not "now".
                    live = live or time.monotonic() - opened > 1.0
                    self.serving.feed(batch, live)
                    yield batch

    # -- changing ----------------------------------------------------------------------------------------------

    async def start(
        self, reason: str, on_step: OnStep | None = None, overrides: Mapping[str, Any] | None = None
    ) -> Run:
        """Start the server and wait until it is ready; the run is recorded from its first second.

        `on_step(name, detail)` is called as phases pass by: lock, start, loading, capturing, warming, ready.
        Raises Refused, StartFailed, remote's errors.
        """
        step = on_step or _silent
        async with self._server_lock("start the server", step):
            if (await self.status()).up:
                raise Refused(f"it runs already (process {self.last_status.pid}); restart it, or stop it first")
            return await self._start(reason, step, self.plan(overrides), None)

    async def stop(self, reason: str, on_step: OnStep | None = None) -> None:
        """Stop the server; only a process proven to be it is signalled. Raises Refused, remote's errors."""
        step = on_step or _silent
        async with self._server_lock("stop the server", step):
            if not (await self.status()).up:
                raise Refused("no server of this deployment runs")
            await self._stop(reason, step)

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
        async with self._server_lock("restart the server", step):
            await self.status()
            plan = self.plan(overrides)
            if last_good:
                plan = await self._return_to_good(plan, step)
            if self.last_status.up:
                await self._stop(reason, step)
            return await self._start(reason, step, plan, finding or self.draft.finding)

    async def _start(self, reason: str, step: OnStep, plan: LaunchPlan, finding: Mapping[str, Any] | None) -> Run:
        from remote import server

        launcher = self.deployment.server.launcher
        watch = Stopwatch()
        run = await self.runs.begin(
            self.deployment.name,
            self.host.name,
            reason,
            plan.argv,
            plan.env,
            plan.log,
            await self._snapshot(),
            finding,
        )
        step("start", plan.shown)
        self.serving.restarted()
        self.serving.ceiling = ceiling_of(flags_of(self.deployment, plan.argv))
        try:
            spec = server.ServerSpec(plan.argv, plan.env, log=plan.log, port=plan.port, launcher=launcher)
            record = await server.start(self.host, spec)
            await self.runs.update(run.id, pid=record.pid)
            self._set_record(record)
            await await_ready(self.host, record, self.deployment.server.url, self.deployment.server.engine_name, step)
        except (ConsoleError, OSError, _remote_error()) as error:
            await self.runs.update(run.id, state=FAILED, ended=time.time(), note=str(error))
            if isinstance(error, StartFailed):
                self._record = None
            raise
        self.draft.finding = None
        step("ready", watch.words)
        run = await self.runs.update(run.id, state=READY, ready=time.time())
        await self.status()
        return run

    async def _stop(self, reason: str, step: OnStep) -> None:
        from remote import server

        record = self._record
        if record is None:
            return
        if self.last_status.phase == "foreign":
            raise Refused(f"{self.last_status.note}; it is left alone: stop it by hand, or choose another port")
        run = await self._note_run()
        self.serving.baseline = self.serving.usual_tokens_per_s
        step("stop", f"process {record.pid}")
        report = await server.stop(self.host, record)
        if report.survivors:
            raise NotRun(f"processes {report.survivors} of the server survived SIGKILL; look at them on {self.host.name}")
        self._record = self._process = None
        self._engine = (0, "")
        self.last_status = ServerStatus(url=self.deployment.server.url)
        if run is not None:
            await self.runs.update(run.id, state=STOPPED, ended=time.time(), note=f"stopped: {reason}")
        step("stopped", f"{report.took:.1f} s" + (", SIGKILL was needed" if report.forced else ""))

    async def _return_to_good(self, plan: LaunchPlan, step: OnStep) -> LaunchPlan:
        good = await self.runs.last_good(self.deployment.name)
        if good is None:
            raise Refused("no run of this deployment has served well yet, so there is nothing to go back to")
        step("last good", f"run {good.id}")
        if not self.draft.loaded or self.draft.base_sha != good.config_sha:
            await self.draft.load()
        if good.config_sha and self.draft.base_sha != good.config_sha:
            await self.draft.restore(good.config_sha)
            await self.draft.write(f"back to the config of run {good.id}")
        return LaunchPlan(with_secrets(good.argv, plan.argv), plan.env, plan.log, plan.port)

    async def _snapshot(self) -> str | None:
        """Keep the draft's config as it is now; its sha256, or None when there is none to read."""
        from remote import files
        from remote.errors import RemoteError

        if not self.deployment.model.draft:
            return None
        try:
            text = (await files.read(self.host, self.draft.path, 1 << 22)).decode()
        except (RemoteError, UnicodeDecodeError):
            return None
        await self.runs.keep_version(self.host.name, self.draft.path, text, "outside", "at the start of a run")
        return sha_of(text)

    async def _note_run(self) -> Run | None:
        """Write what the log says of the running server into its run; the run, or None when it has none."""
        record = self._record
        run = await self.runs.current(self.deployment.name, record.pid) if record is not None else None
        if record is None or run is None:
            return None
        values = await run_values(self.host, record, self.deployment.server.engine_name)
        return await self.runs.update(run.id, **values) if values else run

    @asynccontextmanager
    async def _server_lock(self, action: str, step: OnStep) -> AsyncIterator[None]:
        from remote.server import STATE

        self._writable(action)
        step("lock", self.host.name)
        async with self._locked(f"{STATE}/locks/server-{self.deployment.server.port}.lock", action):
            yield

    @asynccontextmanager
    async def _draft_lock(self, action: str) -> AsyncIterator[None]:
        self._writable(action)
        async with self._locked(f"{self.draft.path.rpartition('/')[0]}/.console/lock", action):
            yield

    @asynccontextmanager
    async def _locked(self, path: str, action: str) -> AsyncIterator[None]:
        from remote import files

        who = f"{getpass.getuser()}@{socket.gethostname()} (console {os.getpid()}): {action}"
        async with files.lock(self.host, path, who):
            yield

    def _writable(self, action: str) -> None:
        if self.read_only:
            raise Refused(f"read-only: it was asked to {action}, and the console was opened to change nothing")

    # -- judging -----------------------------------------------------------------------------------------------

    async def check(
        self, only: Sequence[str] = (), skip: Sequence[str] = (), samples: int = 16, engine_source: str = ""
    ) -> AsyncGenerator[CheckStep, None]:
        """Run the checks on the host: `Progress`, then a `Found` for each finding, and last the `Report`.

        Closing the iterator kills the run on the host. Raises NotRun, UsageError, remote's errors.
        """
        await self.status()
        request = self._request(only, skip, samples, engine_source)
        async with aclosing(run_on_host(self.host, self._python, request)) as steps:
            async for step in steps:
                if isinstance(step, Report):
                    await self._take(step, bool(only or skip))
                yield step

    @property
    def _python(self) -> str:
        return self.deployment.host.python or self._default_python

    def _request(
        self, only: Sequence[str], skip: Sequence[str], samples: int, engine_source: str = ""
    ) -> dict[str, Any]:
        running = self.last_status.up and self.last_status.phase != "foreign"
        argv = self.last_status.argv if running else self.plan().argv
        flags = flags_of(self.deployment, argv)
        seen = self._process
        server = {
            "url": self.deployment.server.url if self.last_status.healthy else "",
            "argv": list(self.last_status.argv) if running else [],
            "cwd": seen.cwd if seen is not None and running else "",
            "pythonpath": ":".join(seen.pythonpath) if seen is not None and running else "",
            "api_key": str(flags.get("api-key") or ""),
        }
        return request_for(
            self.deployment,
            host=self.host.name,
            at_host=self._at_host,
            server=server,
            argv=argv,
            log="",
            python=self._at_host(self._python),
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
        run = await self.runs.current(self.deployment.name, self.last_status.pid) if self.last_status.pid else None
        if run is not None and not partial:
            await self.runs.update(run.id, verdict=report.verdict, summary=report.raw["summary"])

    async def _diagnose(self, text: str) -> list[dict[str, Any]]:
        """The `cfg` findings for a config that is not the draft's yet: it is put in a folder of its own on the host."""
        from remote import files

        folder = f"{STAGED}/{sha_of(text)[:16]}"
        await files.write_atomic(self.host, f"{folder}/config.json", text.encode(), backup=False, make_folder=True)
        request = self._request(("cfg",), (), 1) | {"draft": self._at_host(folder), "caches": []}
        async with aclosing(run_on_host(self.host, self._python, request)) as steps:
            async for step in steps:
                if isinstance(step, Report):
                    return step.findings
        return []

    def wiring(self) -> Wiring:
        """Trained against served, from the findings so far; unknown where they say nothing."""
        return read_wiring(self._findings)

    def wiring_of(self, text: str) -> Wiring:
        """The wiring as it would become with this config; what its ids feed is known only where findings say so."""
        now = read_wiring(self._findings)
        try:
            ids = ids_in(json.loads(text))
        except ValueError:
            return Wiring(now.n, now.trained, None, trained_by=now.trained_by, engine=now.engine)
        served = served_by_ids(self._findings).get(ids_key(ids))
        return Wiring(now.n, now.trained, served, now.source if served else "", now.trained_by, now.engine)


def _silent(name: str, detail: str) -> None:
    """Steps that nobody asked to hear of."""


def _remote_error() -> type[Exception]:
    from remote.errors import RemoteError

    return RemoteError
