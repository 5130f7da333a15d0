"""A deployment from what runs on a host: the server found among its listening processes, its flags, log and paths."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.engines.locate import Entry, entry_of
from console.deployment import CacheSpec, Deployment, HostSpec, ModelSpec, ServerSpec, save_deployment
from console.errors import NotRun, UsageError
from console.launch import STEERS, engine_part
from console.masking import is_secret, mask_text

if TYPE_CHECKING:
    from remote.host import Host
    from remote.listening import Listening

_MODULES = {"sglang": "sglang.launch_server", "vllm": "vllm.entrypoints.openai.api_server"}
"""The engines by the top-level package of what was started, and the module that needs no entrypoint in a deployment."""
_OWNED = ("model-path", "model", "speculative-draft-model-path", "port", "host", "speculative-config")
_LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class Found:
    """A server found, as a deployment, and what should be said of it: what is left out or to be filled in."""

    deployment: Deployment
    notes: tuple[str, ...]


async def look(host: Host, spec: HostSpec, name: str, port: int = 0) -> Found:
    """The deployment of the server that runs on `host`; `port` picks one of several.

    Raises NotRun when none is found, UsageError when there are several and none was picked; remote's errors.
    """
    from remote.listening import listening

    _prove_name(name)
    everything, closed = await listening(host)
    servers = [(item, entry) for item in everything if (entry := _server(item)) is not None]
    picked = [pair for pair in servers if not port or pair[0].port == port]
    if not picked:
        at = f" on port {port}" if port else ""
        seen = ", ".join(f"{item.port} ({_short(item.process.argv)})" for item in everything[:8]) or "nothing"
        hidden = f"; ports {', '.join(map(str, closed[:8]))} belong to another user" if closed else ""
        raise NotRun(f"no SGLang or vLLM server of this account listens on {host.name}{at}; what does: {seen}{hidden}")
    if len(picked) > 1:
        choices = ", ".join(f"{item.port} ({_short(item.process.argv)})" for item, _ in picked)
        raise UsageError(f"several servers run on {host.name}: {choices}; pick one with --port")
    return _deployment(*picked[0], spec, name)


def _prove_name(name: str) -> None:
    """Raise UsageError for a name whose file would not lie in the folder of deployments, or be hidden there."""
    if not name or name.startswith((".", "-")) or not name.isprintable() or "/" in name or "\\" in name:
        raise UsageError(
            f"{name!r} is no name for a deployment: its file is NAME.toml in the folder of deployments, so it has "
            "no / or \\ in it and does not begin with . or -; give another --name"
        )


def _server(item: Listening) -> Entry | None:
    """How a process was started, when that is an engine: by its package, or by SGLang's flag of a model."""
    entry = entry_of(item.process.argv, item.process.cwd)
    if entry is None:
        return None
    flagged = any(word.partition("=")[0] == "--model-path" for word in item.process.argv)
    return entry if entry.package in _MODULES or flagged else None


def _deployment(item: Listening, entry: Entry, spec: HostSpec, name: str) -> Found:
    engine = entry.package if entry.package in _MODULES else "sglang"
    process, notes = item.process, []
    facts = engine_part(engine, "launch").parse_argv(list(process.argv), process.cwd)
    args, secret = {}, []
    for key, value in facts.flags.items():
        if is_secret(key):
            secret.append(f"--{key}")
        elif key not in _OWNED or (key == "host" and value not in _LOOPBACK):
            args[key] = tuple(map(_typed, value)) if isinstance(value, list) else _typed(value)
    env = {}
    for key, value in process.env.items():
        if is_secret(key) or mask_text(value) != value:
            secret += [key] if STEERS.fullmatch(key) else []
        elif STEERS.fullmatch(key):
            env[key] = value
    if secret:
        notes.append(f"left out, as secrets: {', '.join(secret)}; a restart from this file needs them set again")
    if not item.log:
        notes.append(
            "its output goes to no file: set [server] log, such as docker:NAME or journal:UNIT, "
            "or start it with its output in one"
        )
    target, draft = (_path(path, process.cwd) for path in (facts.model, facts.draft))
    for path, what in ((target, "target"), (draft, "draft")):
        if path and not path.startswith("/"):
            notes.append(f"the {what} is {path}, a name in a model store: set [model] {what} to its folder on the host")
    if not draft:
        notes.append("it serves without a draft: set [model] draft")
    standard = entry.script or entry.module == _MODULES.get(engine)
    server = ServerSpec(
        engine=engine,
        entrypoint="" if standard else entry.module,
        log=item.log,
        url=f"http://127.0.0.1:{item.port}",
        env=dict(sorted(env.items())),
        args=args,
    )
    python = _path(entry.python, process.cwd) if "/" in entry.python else entry.python
    return Found(
        Deployment(name, replace(spec, python=spec.python or python), (), ModelSpec(target, draft), (), server),
        tuple(notes),
    )


def completed(found: Found, caches: Sequence[str], draft: str, log: str) -> Found:
    """The deployment with what the user knows and the process does not say."""
    deployment = found.deployment
    model = replace(deployment.model, draft=draft or deployment.model.draft)
    server = replace(deployment.server, log=log or deployment.server.log)
    notes = [item for item in found.notes if not (log and "[server] log" in item) and not (draft and "draft" in item)]
    if not caches:
        notes.append("no cache is named: --cache DIR, or [[cache]] in the file, is what the draft was trained on")
    specs = tuple(CacheSpec(path) for path in caches)
    return Found(replace(deployment, model=model, server=server, caches=specs), tuple(notes))


def as_toml(deployment: Deployment) -> str:
    """The text of its file, read back once to be sure that it says the same. Raises DeploymentError."""
    import tempfile

    from console.deployment import parse_deployment

    with tempfile.TemporaryDirectory(prefix="eagle-console-init-") as folder:
        file = Path(folder) / "deployment.toml"
        save_deployment(deployment, file)
        text = file.read_text("utf-8")
    parse_deployment(text, deployment.name)
    return text


def file_name(host: str) -> str:
    """The name of a deployment after a host: `gpu-box` for `me@gpu-box.example.org:22`."""
    bare = host.rpartition("@")[2].partition(":")[0].partition(".")[0] if not _numeric(host) else host
    return re.sub(r"[^A-Za-z0-9_-]+", "-", bare).strip("-") or "local"


def _numeric(host: str) -> bool:
    return bool(re.match(r"(?:.*@)?[\d.:\[\]]+$", host))


def _typed(value: Any) -> Any:
    """Numbers as numbers; what would read back differently stays text."""
    if isinstance(value, str) and re.fullmatch(r"0|[1-9]\d{0,15}", value):
        return int(value)
    return value


def _path(path: str, cwd: str) -> str:
    """A path of the process as it stands from anywhere; a model's name in a store (`org/name`) stays as it is."""
    if path.startswith("/") or not path or not cwd or (path.count("/") == 1 and not path.startswith(".")):
        return path
    return posixpath.normpath(posixpath.join(cwd, path))


def _short(argv: Sequence[str]) -> str:
    return mask_text(" ".join(argv))[:60]
