"""The deployment's server on its host: found, looked at, started and stopped, each life a run in the history."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from console.apikey import api_key, config_text
from console.errors import ConsoleError, DeploymentError, NotRun, Refused, StartFailed
from console.launch import (
    LaunchPlan,
    ServerStatus,
    argv_differences,
    ceiling_of,
    env_differences,
    flags_of,
    plan_launch,
)
from console.masking import MASK, mask_text
from console.measure import run_values
from console.runs import FAILED, READY, STOPPED, Run, RunHistory
from console.startup import NO_KEY, OnStep, Stopwatch, await_ready
from remote import http, process, server
from remote.errors import BadResponse, NotListening, RemoteError, TimedOut

if TYPE_CHECKING:
    from console.deployment import Deployment
    from console.serving import Serving
    from remote.host import Host
    from remote.process import ProcessInfo
    from remote.server import ServerRecord

Launch = Callable[[server.ServerSpec], "Awaitable[ServerRecord]"]
"""Starts what a spec says, and gives its record."""

# Answered without a generation, in the order to try: SGLang 0.5.20 and newer, then all of SGLang, then vLLM.
_LIGHT_HEALTH = ("/ready", "/get_model_info", "/v1/models")
_OPEN_HEALTH = ("/health",)
"""Answered without the API key that a server wants; it may cost a generation."""
_INFO = ("/server_info", "/get_server_info")
_LIGHT_TIMEOUT = 5.0
_RESCAN_S = 60.0
"""How often the records on the host are read again while nothing listens: a start by another console shows late."""


class Server:
    """The server of one deployment. `last` is what `look` saw last; `record` proves whose process it is."""

    def __init__(self, deployment: Deployment, host: Host, runs: RunHistory, serving: Serving, home: str) -> None:
        self.deployment, self.host, self._runs, self._serving, self._home = deployment, host, runs, serving, home
        self.last = ServerStatus(phase="", url=deployment.server.url)
        self.record: ServerRecord | None = None
        self.process: ProcessInfo | None = None
        self.log_moved = asyncio.Event()
        """Set when the log to follow is another file than `followed`."""
        self.followed = ""
        self._scanned = float("-inf")
        self._engine: tuple[int, str] = (0, "")
        self._light_health = ""
        self.key = ""
        """The API key of the server that runs, or is being started; "" where none is known."""
        self._account: Mapping[str, str] | None = None
        """The environment that the host gives to what is started there; None until a difference made us ask."""
        self._config: tuple[int, str] = (0, "")
        """The process and the text of its file of flags, which is read once in its life."""
        self._locked = 0
        """The process that refused us for want of a key: it is asked no more, each refusal is a line in its log."""

    # -- looking -----------------------------------------------------------------------------------------------

    async def look(self) -> ServerStatus:
        """See the record, process, port and health. The running command line wins over the file."""
        record = await self._find()
        if record is None:
            # A crash stays on show until something else is seen.
            if self.last.phase != "crashed":
                self.last = ServerStatus(url=self.deployment.server.url)
            return self.last
        seen = await server.status(self.host, record)
        if not seen.alive:
            self._forget()
            ended = await self._ended(record, seen.exit_code)
            # Another console may have started it again meanwhile.
            successor = await self._find()
            seen = await server.status(self.host, successor) if successor is not None else seen
            if not seen.alive:
                self._forget()
                self.last = ended
                return self.last
        self.process, self.record = seen.process, seen.record
        record = seen.record
        argv = record.cmdline or record.argv
        ours = record.file != "" or self._belongs(argv)
        environment = seen.process.env if seen.process is not None else {}
        await self._learn_key(record.pid, argv, record.cwd, environment)
        if ours and environment and self._account is None:
            await self._learn_account(environment)
        up = ours and await self._answers(record.pid)
        self._serving.ceiling = ceiling_of(flags_of(self.deployment, argv)) or self._serving.ceiling
        self.last = ServerStatus(
            phase=self._phase(up) if ours else "foreign",
            record=record,
            pid=record.pid,
            argv=argv,
            url=self.deployment.server.url,
            healthy=up,
            engine=await self._engine_label(record.pid) if up else "",
            since=record.started_at or None,
            differences=self._differences(argv) if ours else (),
            note=self._note(record, ours),
        )
        return self.last

    def plan(self, overrides: Mapping[str, Any] | None = None) -> LaunchPlan:
        """The exact command that would run, and its difference from the process seen last. Raises DeploymentError."""
        plan = plan_launch(self.deployment, overrides, self.argv, self.at_host, self.default_python)
        if not self.argv or self.process is None or not self.process.env:
            return plan
        return replace(plan, env_changes=env_differences(self.process.env, self._account or {}, plan.env))

    async def _learn_account(self, running: Mapping[str, str]) -> None:
        """Ask what the account brings along, where the deployment alone does not explain the server's environment."""
        if env_differences(running, {}, self.deployment.server.env):
            told = await self.host.run(["env", "-0"], check=False)
            lines = told.stdout.decode("utf-8", "replace").split("\0")
            # Where it is not told, nothing is claimed to differ.
            own = dict(line.split("=", 1) for line in lines if "=" in line) if not told.returncode else dict(running)
            self._account = own

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line of the running server; empty when none of this deployment runs."""
        return self.last.argv if self.last.up and self.last.phase != "foreign" else ()

    @property
    def headers(self) -> dict[str, str]:
        """What every request to the server is sent with; it holds the key: never to be shown."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    @property
    def refusal(self) -> str:
        """What is wrong with the key, said of a server that refused us."""
        why = "refuses the API key known here" if self.key else "wants an API key"
        return f"{why}; set api-key in [server.args]"

    def masked(self, text: str) -> str:
        """What the server said, without its key and other secrets."""
        return mask_text(text.replace(self.key, MASK) if len(self.key) > 3 else text)

    @property
    def log_path(self) -> str:
        """The log of the running server, else the one the deployment names: a file, docker:NAME or journal:UNIT."""
        spec = self.deployment.server
        named = spec.log if spec.log_is_output else ""
        return (self.record.log if self.record is not None else "") or named or self.plan().log

    @property
    def default_python(self) -> str:
        """The python used where the deployment names none: on this machine the one that runs the console."""
        return "python3" if self.deployment.host.ssh or self.deployment.host.container else sys.executable

    def at_host(self, path: str) -> str:
        """A path of the deployment with `~` resolved as the host does."""
        return self._home.rstrip("/") + path[1:] if path == "~" or path.startswith("~/") else path

    async def _find(self) -> ServerRecord | None:
        """The record of the server: the one known, else of what listens, else the newest made for this port."""
        if self.record is not None:
            return self.record
        port = self.deployment.server.port
        listening = await process.listener(self.host, port)
        if listening is None and time.monotonic() - self._scanned < _RESCAN_S:
            return None
        self._scanned = time.monotonic()
        mine = [item for item in await server.recorded(self.host) if item.port == port]
        if listening is not None:
            known = next((item for item in mine if listening.pid == item.pid or listening.pgid == item.pgid), None)
            self._take(known or await server.adopt(self.host, port))
        elif mine:
            self._take(mine[0])
        return self.record

    def _take(self, record: ServerRecord | None) -> None:
        self.record = record
        if record is not None and record.log and record.log != self.followed:
            self.log_moved.set()

    def _forget(self) -> None:
        self.record = self.process = None
        self._engine, self._light_health = (0, ""), ""

    async def _ended(self, record: ServerRecord, exit_code: int | None) -> ServerStatus:
        """The status of a server that runs no more: stopped when somebody stopped it, else crashed."""
        url = self.deployment.server.url
        run = await self._runs.current(self.deployment.name, record.pid)
        if run is not None:
            note = "" if exit_code == 0 else f"ended by itself with code {exit_code}"
            await self._runs.update(run.id, state=FAILED if note else STOPPED, ended=time.time(), note=note)
        newest = await self._runs.list(self.deployment.name, 1)
        if exit_code == 0 or (newest and newest[0].pid == record.pid and newest[0].state == STOPPED):
            return ServerStatus(url=url)
        code = "" if exit_code is None else f" with code {exit_code}"
        why = self._serving.last_error or f"its log is {record.log}"
        return ServerStatus("crashed", url=url, argv=record.argv, note=f"process {record.pid} ended{code}; {why}")

    def _belongs(self, argv: Sequence[str]) -> bool:
        """Whether a server that nobody recorded is this deployment's: it runs this target or draft."""
        model = self.deployment.model
        mine = {self.at_host(path).rstrip("/") for path in (model.target, model.draft) if path}
        return any(part.rstrip("/") in mine for word in argv for part in (word, word.partition("=")[2]))

    def _differences(self, argv: Sequence[str]) -> tuple[Any, ...]:
        try:
            return argv_differences(self.deployment, argv, plan_launch(self.deployment, at_host=self.at_host).argv)
        except DeploymentError:
            return ()

    def _note(self, record: ServerRecord, ours: bool) -> str:
        if not ours:
            return f"process {record.pid} owns port {record.port} and is not this deployment's server"
        if self._locked != record.pid:
            return ""
        return f"it is not asked for its version, because it {self.refusal}"

    async def _learn_key(self, pid: int, argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> None:
        """Learn the key of the process, or with 0 of one that is about to start."""
        if not pid or self._config[0] != pid:
            self._config = (pid, await config_text(self.host, self.deployment, argv, cwd))
        self.key = api_key(self.deployment, argv, env, self._config[1])

    async def _answers(self, pid: int) -> bool:
        """Whether it is healthy, asked without costing it a generation; the path that it knows is remembered."""
        known = (self._light_health,) if self._light_health else _LIGHT_HEALTH
        for path in _OPEN_HEALTH if self._locked == pid else known:
            answer = await self._get(path, pid)
            if answer is not None and answer.ok:
                self._light_health = path
                return True
            if self._locked == pid and path not in _OPEN_HEALTH:
                return await self._answers(pid)
        return False

    async def _get(self, path: str, pid: int) -> http.Response | None:
        """The answer to a light question; None where none came. Who has no right to ask is remembered."""
        url = self.deployment.server.url.rstrip("/") + path
        try:
            answer = await http.get(self.host, url, headers=self.headers, timeout=_LIGHT_TIMEOUT)
        except (NotListening, TimedOut, BadResponse):
            return None
        if answer.status in NO_KEY:
            self._locked = pid
        return answer

    def _phase(self, up: bool) -> str:
        said = self._serving.phase
        if up:
            return said if said in ("ready", "serving", "draining") else "ready"
        return said if said not in (None, "ready", "serving", "stopped", "crashed") else "starting"

    async def _engine_label(self, pid: int) -> str:
        if self._engine[0] == pid:
            return self._engine[1]
        name = self.deployment.server.engine_name
        for path in _INFO:
            if self._locked == pid:
                break
            answer = await self._get(path, pid)
            try:
                info = answer.json() if answer is not None and answer.ok else None
            except BadResponse:
                continue
            if isinstance(info, dict):
                self._engine = (pid, f"{info.get('engine') or name} {info.get('version') or ''}".strip())
                return self._engine[1]
        return name

    # -- changing ----------------------------------------------------------------------------------------------

    async def start(
        self,
        reason: str,
        step: OnStep,
        plan: LaunchPlan,
        config_sha: str | None,
        finding: Mapping[str, Any] | None,
        launch: Launch | None = None,
    ) -> Run:
        """Start it as planned and wait until it is ready; a run is recorded from its first second.

        `launch` starts it in place of remote's own way. Raises StartFailed, remote's errors.
        """
        name, watch = self.deployment.name, Stopwatch()
        run = await self._runs.begin(name, self.host.name, reason, plan.argv, plan.env, plan.log, config_sha, finding)
        step("start", plan.shown)
        self._serving.restarted()
        self._serving.ceiling = ceiling_of(flags_of(self.deployment, plan.argv))
        await self._learn_key(0, plan.argv, self._home, plan.env)
        own = self.deployment.server
        try:
            spec = server.ServerSpec(plan.argv, plan.env, log=plan.log, port=plan.port, launcher=own.launcher)
            record = await (launch(spec) if launch is not None else server.start(self.host, spec))
            await self._runs.update(run.id, pid=record.pid)
            self._take(record)
            await await_ready(self.host, record, own.url, own.engine_name, step, self.headers)
        except (ConsoleError, RemoteError) as error:
            await self._runs.update(run.id, state=FAILED, ended=time.time(), note=self.masked(str(error)))
            if isinstance(error, StartFailed):
                self._forget()
            raise
        run = await self._runs.update(run.id, state=READY, ready=time.time())
        await self.look()
        step("ready", watch.words)
        return run

    async def stop(self, reason: str, step: OnStep) -> None:
        """Stop what `look` saw, with proof that it is this server. Raises Refused, NotRun, remote's errors."""
        record = self.record
        if record is None:
            return
        if self.last.phase == "foreign":
            raise Refused(f"{self.last.note}; it is left alone: stop it by hand, or choose another port")
        run = await self._before_end()
        step("stop", f"process {record.pid}")
        report = await server.stop(self.host, record)
        if report.survivors:
            left = ", ".join(map(str, report.survivors))
            raise NotRun(f"processes {left} of the server survived SIGKILL; look at them on {self.host.name}")
        await self._closed(run, reason)
        step("stopped", f"{report.took:.1f} s" + (", SIGKILL was needed" if report.forced else ""))

    async def replaced(self, reason: str) -> None:
        """Close the run of a server that other hands are about to stop."""
        await self._closed(await self._before_end(), reason)

    async def _before_end(self) -> Run | None:
        self._serving.baseline = self._serving.usual_tokens_per_s
        return await self.note_run()

    async def _closed(self, run: Run | None, reason: str) -> None:
        self._forget()
        self.last = ServerStatus(url=self.deployment.server.url)
        if run is not None:
            await self._runs.update(run.id, state=STOPPED, ended=time.time(), note=f"stopped: {reason}")

    async def note_run(self) -> Run | None:
        """Write what the log says of the running server into its run; the run, or None when it has none."""
        record = self.record
        run = await self._runs.current(self.deployment.name, record.pid) if record is not None else None
        if record is None or run is None:
            return None
        values = await run_values(self.host, record, self.deployment.server.engine_name)
        return await self._runs.update(run.id, **values) if values else run
