"""Another command line for a while: the server is restarted with other flags, and put back as it was, come what may."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from console.errors import Refused
from console.launch import LaunchPlan, engine_part
from console.session import who
from remote.interim import Interim, interim
from remote.server import ServerRecord, ServerSpec

if TYPE_CHECKING:
    from console.runs import Run
    from console.session import Session
    from console.startup import OnStep

_OURS = "EAGLE_CONSOLE_SERVER"
_OF_A_SHELL = ("_", "OLDPWD", "SHLVL", "PWD", _OURS)
"""Variables of a server started by hand that say where it was started, and nothing of what it does."""


class StandIn:
    """The place of the running server. `first` is what it is started with again; `argv` its command line."""

    def __init__(self, session: Session, place: Interim, first: ServerSpec, step: OnStep) -> None:
        self._session, self._place, self._step = session, place, step
        self.first = first
        self.used = False

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line that is changed, and put back in the end."""
        return self.first.argv

    async def run(self, reason: str, changes: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Run:
        """Restart with flags changed (`amended`) and variables added, and wait until it is ready.

        Raises StartFailed, remote's errors.
        """
        self.used = True
        argv = amended(self.first.argv, changes, self._session.deployment.server.engine_name)
        return await self._start(reason, replace(self.first, argv=argv, env={**self.first.env, **(env or {})}))

    async def back(self, reason: str) -> Run:
        """Put it back as it was, and wait until it is ready."""
        return await self._start(reason, self.first)

    async def _start(self, reason: str, spec: ServerSpec) -> Run:
        server = self._session.server
        await server.replaced(reason)
        plan = LaunchPlan(spec.argv, spec.env, spec.log, spec.port)

        async def launch(_: ServerSpec) -> ServerRecord:
            return await (self._place.back() if spec is self.first else self._place.run(spec))

        return await server.start(reason, self._step, plan, await self._session.snapshot(), None, launch)


@asynccontextmanager
async def stand_in(session: Session, why: str, step: OnStep) -> AsyncIterator[StandIn]:
    """Let other command lines run in the running server's place; on leaving, its own runs again.

    The host puts it back by itself when this process or the link ends (`remote.interim`).
    Raises Refused when that cannot be promised, Busy, StartFailed, remote's errors.
    """
    async with session.server_lock(why, step):
        await session.status()
        first = spec_of(session)
        record = session.server.record
        assert record is not None
        async with interim(session.host, record, first, who(why)) as place:
            stand = StandIn(session, place, first, step)
            try:
                yield stand
            finally:
                if stand.used:
                    await stand.back(f"back as it was before {why}")


def spec_of(session: Session) -> ServerSpec:
    """What starts the running server again, exactly as it runs: `status` must have been asked just before.

    Raises Refused when it cannot be known.
    """
    seen, record, process = session.last_status, session.server.record, session.server.process
    if not seen.up or record is None or process is None:
        raise Refused("no server of this deployment runs; `console start` starts one")
    if seen.phase == "foreign":
        raise Refused(f"{seen.note}; it is left alone")
    launcher = session.deployment.server.launcher
    if launcher != "setsid":
        raise Refused(f"a server under {launcher} is not restarted in between: {launcher} would start it again itself")
    if record.env_names and not process.env:
        raise Refused(f"the environment of process {record.pid} cannot be read, so it could not be put back as it is")
    wanted = record.env_names if record.file else [name for name in process.env if name not in _OF_A_SHELL]
    return ServerSpec(
        record.cmdline or record.argv,
        {name: process.env[name] for name in wanted if name in process.env},
        process.cwd or record.cwd,
        record.log or session.server.plan().log,
        record.port,
        record.stop,
    )


def amended(argv: Sequence[str], changes: Mapping[str, Any], engine: str) -> tuple[str, ...]:
    """A command line with flags set (text, a number, True for a bare one, a list) or, with None, taken out.

    Every spelling of a flag counts. Raises DeploymentError for an engine whose spellings are not known.
    """
    canonical = engine_part(engine, "options").canonical
    out: list[str] = []
    dropping = False
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            dropping = canonical(word[2:].partition("=")[0].replace("_", "-")) in changes
        if not dropping:
            out.append(word)
    for name, value in changes.items():
        if value is None or value is False:
            continue
        out.append(f"--{name}")
        if value is not True:
            out += [str(item) for item in (value if isinstance(value, (list, tuple)) else [value])]
    return tuple(out)
