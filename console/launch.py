"""What would run and what runs: the launch plan of a deployment, and the status of its server."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from console.errors import DeploymentError
from console.masking import MASK, is_secret, mask_argv, mask_env

if TYPE_CHECKING:
    from console.deployment import Deployment
    from remote.server import ServerRecord

DEFAULT_LOG = "~/.local/state/eagle-console/logs/{name}.log"
"""Where the server's output goes when the deployment does not say."""

STEERS = re.compile(
    r"(?:CUDA|NCCL|NVIDIA|SGLANG|SGL|VLLM|HF|TRANSFORMERS|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|FLASHINFER|DG|"
    r"OMP|OPENBLAS|MKL|GLOO|UCX)_\w+|PYTHON\w+|LD_LIBRARY_PATH|LD_PRELOAD"
)
"""Variables that change how a server runs: devices, threads, kernels, where it finds code and weights."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One flag, variable or path on which the file and the running process disagree; None = absent there."""

    key: str
    planned: str | None
    running: str | None


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The exact command that would run. `changes` is its difference from the process that runs now."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: str
    port: int
    changes: tuple[Difference, ...] = ()
    env_changes: tuple[Difference, ...] = ()
    """The same of the variables that change how a server runs, and of those that the deployment sets."""

    @property
    def shown(self) -> str:
        """The command as one would type it, secrets masked."""
        env = [f"{key}={value}" for key, value in mask_env(self.env).items()]
        return shlex.join([*env, *mask_argv(self.argv)])


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The server as seen on the host now.

    `phase` is "" before the first look, then one of stopped, starting, loading, capturing, warming, ready, serving,
    draining, crashed, foreign (a process that is not ours owns the port). `argv` is the running process's own; it
    always wins over the file, and `differences` says where they disagree. `since` is when it started, in epoch seconds.
    """

    phase: str = "stopped"
    record: ServerRecord | None = None
    pid: int | None = None
    argv: tuple[str, ...] = ()
    url: str = ""
    healthy: bool = False
    engine: str = ""
    since: float | None = None
    differences: tuple[Difference, ...] = field(default_factory=tuple)
    note: str = ""

    @property
    def up(self) -> bool:
        """Whether a process of this deployment runs at all."""
        return self.phase not in ("", "stopped", "crashed")

    @property
    def known(self) -> bool:
        """Whether the host was looked at yet: before that nothing may be said of the server."""
        return self.phase != ""


def engine_part(name: str, part: str) -> Any:
    """One part (`launch`, `log`, `flags`) of an engine's folder in `checks.engines`.

    Raises DeploymentError for an engine that is not known, or that has no such part yet.
    """
    from checks.engines import REGISTRY

    if name not in REGISTRY:
        raise DeploymentError(f"[server] engine {name!r} is not known; known are {', '.join(sorted(REGISTRY))}")
    try:
        return import_module(f"{REGISTRY[name].__name__}.{part}")
    except ModuleNotFoundError:
        raise DeploymentError(f"the console cannot do this for {name} yet: it does not know its {part}") from None


def plan_launch(
    deployment: Deployment,
    overrides: Mapping[str, Any] | None = None,
    running: Sequence[str] = (),
    at_host: Callable[[str], str] = str,
    default_python: str = "python3",
) -> LaunchPlan:
    """The command a deployment launches: its model, draft and port, `[server.args]`, and `overrides` on top of those.

    An override of None unsets a flag. `at_host` resolves `~` as the host does. Raises DeploymentError when flags
    contradict the deployment.
    """
    from checks.errors import CheckError

    server, launch = deployment.server, engine_part(deployment.server.engine_name, "launch")
    if not deployment.model.target:
        raise DeploymentError(f"{deployment.name}: [model] target is not set, so nothing can be launched")
    args: dict[str, Any] = {**server.args, **{_bare(key): value for key, value in (overrides or {}).items()}}
    try:
        argv = launch.argv(
            at_host(deployment.host.python or default_python),
            server.entrypoint,
            at_host(deployment.model.target),
            at_host(deployment.model.draft),
            server.port,
            args,
        )
    except CheckError as error:
        raise DeploymentError(f"{deployment.name}: {error}") from None
    # What the console starts writes to a file, also where another launcher's server writes to Docker or the journal.
    file = "" if server.log_is_output else server.log
    log = at_host(file or DEFAULT_LOG.format(name=deployment.name))
    changes = argv_differences(deployment, running, argv) if running else ()
    return LaunchPlan(tuple(argv), dict(server.env), log, server.port, changes)


def argv_differences(deployment: Deployment, running: Sequence[str], planned: Sequence[str]) -> tuple[Difference, ...]:
    """The flags on which the running command and the planned one disagree; secret values are masked."""
    launch = engine_part(deployment.server.engine_name, "launch")
    found = launch.differences(launch.parse_argv(list(running)), launch.parse_argv(list(planned)))
    return tuple(
        Difference(item.flag, _shown(item.flag, item.planned), _shown(item.flag, item.running)) for item in found
    )


def env_differences(
    running: Mapping[str, str], account: Mapping[str, str], planned: Mapping[str, str]
) -> tuple[Difference, ...]:
    """The variables on which the running process and one started now disagree; secret values are masked.

    `running` is the process's environment, `account` what the host gives to what is started there, `planned` what the
    deployment adds. Only variables that change how a server runs, and those of the deployment, are looked at.
    """
    after = {**account, **planned}
    names = sorted(name for name in {*running, *after} if name in planned or STEERS.fullmatch(name))
    shown_now, shown_then = mask_env(running), mask_env(after)
    return tuple(
        Difference(name, shown_then.get(name), shown_now.get(name))
        for name in names
        if running.get(name) != after.get(name)
    )


def flags_of(deployment: Deployment, argv: Sequence[str]) -> Mapping[str, Any]:
    """The flags of a command line of this deployment's engine, by their first name without dashes."""
    flags: Mapping[str, Any] = engine_part(deployment.server.engine_name, "launch").parse_argv(list(argv)).flags
    return flags


def with_secrets(stored: Sequence[str], planned: Sequence[str]) -> tuple[str, ...]:
    """A command out of the history, its masked values taken from a plan that has the same flags.

    Raises DeploymentError when the plan lacks one.
    """
    secrets: dict[str, str] = {}
    for word, value in zip(planned, [*planned[1:], ""]):
        key, equals, inline = word.partition("=")
        if word.startswith("-") and is_secret(key):
            secrets[key] = inline if equals else value
    out: list[str] = []
    for word in stored:
        key, equals, inline = word.partition("=")
        before = out[-1] if out else ""
        if word == MASK or (equals and inline == MASK):
            name = key if equals else before
            if name not in secrets:
                raise DeploymentError(f"{name} of that run was a secret and is not kept; set it in [server.args]")
            out.append(f"{key}={secrets[name]}" if equals else secrets[name])
        else:
            out.append(word)
    return tuple(out)


def ceiling_of(flags: Mapping[str, Any]) -> int | None:
    """The most tokens one verify step can emit by these flags: min(steps + 1, draft tokens); None when not given."""
    steps, tokens = (_number(flags.get(f"speculative-num-{name}")) for name in ("steps", "draft-tokens"))
    limits = [limit for limit in (steps + 1 if steps is not None else None, tokens) if limit is not None]
    return min(limits) if limits else None


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, str) and value.isdecimal() else None


def _bare(key: str) -> str:
    return key.lstrip("-").replace("_", "-")


def _shown(flag: str, value: Any) -> str | None:
    if value is None:
        return None
    if is_secret(flag):
        return MASK
    return "set" if value is True else " ".join(value) if isinstance(value, list) else str(value)
