"""Captures for a deployment: which way the running server allows, the restart it may take, and what came of it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from importlib.resources import files as resources
from typing import TYPE_CHECKING, Any

from checks.capture_ways import AUX, HOOK, STATES, Way, hook_flags, missing, way_for
from checks.errors import CaptureFailed
from console.checking import CheckStep, run_on_host
from console.errors import DraftError, NotRun, Refused
from console.interim import amended, spec_of, stand_in
from console.launch import flags_of
from console.masking import mask_argv
from console.wiring import ids_in
from remote import files
from remote.errors import FileMissing, PermissionDenied
from remote.host import resolve

if TYPE_CHECKING:
    from console.session import Session
    from console.startup import OnStep

HOOK_MODULE = "eagle_console_fc_input"
HOOK_FOLDER = "~/.cache/eagle-console/hooks"
STALE_MINUTES = 24 * 60
"""A hook's folder that nobody has written to for so long belongs to no capture that still runs."""
WHY = "a capture"


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """How states will be taken. `changes` are the flags the server must be restarted with; {}: it can stay as it is.

    `otherwise` is tried in the same life of the server where the way gives nothing.
    """

    way: Way
    changes: Mapping[str, Any]
    argv: tuple[str, ...] = ()
    hook_dir: str = ""
    otherwise: Way | None = None

    @property
    def restarts(self) -> bool:
        """Whether the server must be restarted for it, and put back afterwards."""
        return bool(self.changes)

    @property
    def shown(self) -> str:
        """The command it would be restarted with, secrets masked."""
        return " ".join(mask_argv(self.argv))


async def plan_capture(session: Session, how: str = "") -> CapturePlan:
    """The way to take what the running server feeds its draft; `how` is states, hook, aux, or "" for what suits it.

    Raises Refused when no server runs or no way is open, DeploymentError.
    """
    seen = await session.status()
    if not seen.up or not seen.healthy:
        raise Refused(f"the server is {seen.phase}, so there is nothing to capture from; start it, or use --reference")
    engine = session.deployment.server.engine_name
    if engine != "sglang":
        raise Refused(f"{engine} gives no hidden states; take the states of the target itself: --reference")
    flags = flags_of(session.deployment, seen.argv)
    version, otherwise = _version(seen.engine), None
    try:
        way = way_for(how, version, flags, {} if how else await _config_at_hand(session))
        if way.name == HOOK and not how:
            otherwise = way_for(STATES, version, flags)  # where passes are replayed from graphs, no hook is called
    except CaptureFailed as error:
        raise Refused(str(error)) from None
    changes: dict[str, Any] = dict(missing(way, flags))
    hook_dir = ""
    if way.name == HOOK:
        changes.update(missing(otherwise, flags) if otherwise is not None else {})
        hook_dir = await resolve(session.host, f"{HOOK_FOLDER}/{uuid.uuid4().hex[:12]}")
        changes["forward-hooks"] = hook_flags(hook_dir, HOOK_MODULE)
    if way.name == AUX and changes:
        changes["return-aux-hidden-state-layer-ids"] = await _ids(session)
    argv = amended(spec_of(session).argv, changes, engine) if changes else ()
    return CapturePlan(way, changes, argv, hook_dir, otherwise)


async def take_capture(
    session: Session, plan: CapturePlan, samples: int, out: str, step: OnStep, tokens: int = 0
) -> AsyncGenerator[CheckStep, None]:
    """Take it, of each text at most `tokens` tokens (0: as many as are usual).

    It yields `Progress` on the way, and last a Report whose `captures` say where on the host they are.

    Where the plan restarts the server, it is put back afterwards, whatever happens; after a kill, by the host.
    Closing the iterator ends it. Raises NotRun, Refused, StartFailed, remote's errors.
    """
    asked = {"how": "hook" if plan.way.name == HOOK else "live", "hook_dir": plan.hook_dir, "tokens": tokens}
    if not plan.restarts:
        async with aclosing(_ask(session, asked, samples, out)) as steps:
            async for item in steps:
                yield item
        return
    try:
        env = await _hook_env(session, plan) if plan.hook_dir else {}
        async with stand_in(session, WHY, step) as stand:
            await stand.run(f"for {WHY}", plan.changes, env)
            step("capture", plan.way.what)
            try:
                async with aclosing(_ask(session, asked, samples, out)) as steps:
                    async for item in steps:
                        yield item
            except NotRun as error:
                if plan.otherwise is None:
                    raise
                step("capture", f"{error}; instead, {plan.otherwise.what}")
                async with aclosing(_ask(session, {"how": "live", "tokens": tokens}, samples, out)) as steps:
                    async for item in steps:
                        yield item
    finally:
        if plan.hook_dir:
            await session.host.run(["rm", "-rf", "--", plan.hook_dir], check=False)


async def take_reference(
    session: Session, layers: int, samples: int, out: str, tokens: int = 0
) -> AsyncGenerator[CheckStep, None]:
    """The states of the target itself, or of its first `layers` (0: all), run on the host through transformers."""
    await session.status()
    async with aclosing(_ask(session, {"how": "reference", "layers": layers, "tokens": tokens}, samples, out)) as steps:
        async for item in steps:
            yield item


async def _ask(session: Session, asked: Mapping[str, Any], samples: int, out: str) -> AsyncGenerator[CheckStep, None]:
    request = session.request(samples=max(samples, 16))
    request |= {"task": "capture", "most": samples, "capture_dir": session.server.at_host(out), **asked}
    async with aclosing(run_on_host(session.host, session.python, request)) as steps:
        async for item in steps:
            yield item


async def _draft_config(session: Session) -> dict[str, Any]:
    """The draft's config as it stands on the host; {} without a draft. Raises NotRun when it is no JSON object."""
    if not session.deployment.model.draft:
        return {}
    import json

    # Nothing that somebody has staged is lost by a look.
    await (session.draft.refresh() if session.draft.loaded else session.draft.load())
    try:
        config = json.loads(session.draft.base)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise NotRun(f"{session.draft.path} is not JSON; `console check` says where")
    return config


async def _config_at_hand(session: Session) -> dict[str, Any]:
    """The draft's config, {} where it cannot be read: that is told by the checks, and no obstacle to a capture."""
    try:
        return await _draft_config(session)
    except (NotRun, DraftError, FileMissing, PermissionDenied):
        return {}


async def _ids(session: Session) -> list[int] | None:
    """The draft's layer ids for a server that plays its capture without it; None leaves the engine's own."""
    ids = ids_in(await _draft_config(session))
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(item) is int and item >= 0 for item in ids) or _repeats(ids):
        raise Refused(f"a server without its draft does not take the ids {ids}; start it with the draft")
    return ids


def _repeats(ids: list[int]) -> bool:
    return len(set(ids)) != len(ids)


async def _hook_env(session: Session, plan: CapturePlan) -> dict[str, str]:
    """Put the hook on the host; the variable by which the engine finds it."""
    # What a console that was killed has left behind.
    folder, old = plan.hook_dir.rpartition("/")[0], ("-mindepth", "1", "-maxdepth", "1", "-mmin", f"+{STALE_MINUTES}")
    await session.host.run(["find", folder, *old, "-exec", "rm", "-rf", "--", "{}", "+"], check=False)
    source = (resources("checks") / "hooks" / "fc_input.py").read_bytes()
    path = f"{plan.hook_dir}/{HOOK_MODULE}.py"
    await files.write_atomic(session.host, path, source, backup=False, mode=0o600, make_folder=True)
    before = spec_of(session).env.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{plan.hook_dir}:{before}" if before else plan.hook_dir}


def _version(label: str) -> str:
    """The version in `sglang 0.5.12`; the embedded engine's own says nothing of SGLang's flags."""
    name, _, version = label.partition(" ")
    return version if name == "sglang" else ""
