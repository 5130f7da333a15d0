"""The request a run of the checks answers: plain JSON in, one frozen value out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Union

from checks.errors import NotRunnable

SCHEMA = 1
DEFAULT_SAMPLES = 16


@dataclass(frozen=True)
class CacheRequest:
    """A folder (or one file) of cached hidden states, and what the user believes of it."""

    path: str
    layout: str = ""
    states: tuple[int, ...] = ()


@dataclass(frozen=True)
class EngineRequest:
    """An engine named by the user or the deployment; an empty version means the installed one."""

    name: str
    version: str = ""


@dataclass(frozen=True)
class ServerRequest:
    """The running server as seen on the host: how to reach it and the process that owns its port.

    `url` is on the host's loopback. `argv`, `cwd` and `pythonpath` are of the process itself, and are what its source
    is looked for with; empty when no process was found.
    """

    url: str = ""
    argv: tuple[str, ...] = ()
    cwd: str = ""
    pythonpath: str = ""
    api_key: str = ""
    pid: int = 0


@dataclass(frozen=True)
class Request:
    """Everything a run may look at. Empty means not given: its checks are UNKNOWN, never failed."""

    draft: str = ""
    target: str = ""
    parent: str = ""
    caches: tuple[CacheRequest, ...] = ()
    captures: tuple[str, ...] = ()
    engines: tuple[EngineRequest, ...] = ()
    engine_source: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    server: ServerRequest = ServerRequest()
    log: str = ""
    ended: bool = False
    """Whether the log is that of a server that runs no more."""
    log_of: str = ""
    """What the log is a copy of, made for this run, such as `docker:NAME`; "" where it is the log itself."""
    log_failed: str = ""
    """Why there is no such copy, and what to do; `log` is then empty."""
    python: str = ""
    snapshot: Any = None
    """What was seen of the host, untrusted JSON that `checks.ops.snapshot` reads; None = nobody looked."""
    capture_dir: str = ""
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    samples: int = DEFAULT_SAMPLES
    """Cache samples to look at, spread over the cache; 0 means all of them."""
    seed: int = 0
    host: str = "local"
    console: str = "0.1.0"

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Request:
        """Read a request object. Raises NotRunnable naming the key that is wrong."""
        values = _known(cls, raw, "request")
        if raw.get("schema", SCHEMA) != SCHEMA:
            raise NotRunnable(
                f"request schema {raw.get('schema')!r} is not {SCHEMA}: console and checks differ in version"
            )
        values.pop("schema", None)
        if "caches" in values:
            values["caches"] = tuple(_record(CacheRequest, item, "caches") for item in values["caches"])
        if "engines" in values:
            values["engines"] = tuple(_record(EngineRequest, item, "engines") for item in values["engines"])
        if "server" in values:
            values["server"] = _record(ServerRequest, values["server"] or {}, "server")
        return cls(**_tuples(values))

    def as_json(self) -> dict[str, Any]:
        """The request as JSON, the inverse of `from_json`."""
        from dataclasses import asdict

        return {"schema": SCHEMA, **asdict(self)}


Record = Union[CacheRequest, EngineRequest, ServerRequest]


def _record(kind: Any, raw: Mapping[str, Any], where: str) -> Any:
    return kind(**_tuples(_known(kind, raw, where)))


def _known(kind: Any, raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise NotRunnable(f"{where}: expected an object, got {type(raw).__name__}")
    names = {item.name for item in fields(kind)} | {"schema"}
    unknown = sorted(set(raw) - names)
    if unknown:
        raise NotRunnable(f"{where}: unknown key {unknown[0]!r}")
    return dict(raw)


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def given_path(text: str, what: str) -> Path | None:
    """The path as given, or None when not given. Raises NotRunnable when it is given and not there or not readable."""
    if not text:
        return None
    try:
        path = Path(text).expanduser()
        path.stat()
    except FileNotFoundError:
        raise NotRunnable(f"{what} {text}: no such file or folder; correct the path") from None
    except PermissionError:
        raise NotRunnable(f"{what} {text}: not permitted to look at it; run as its owner or open its folder") from None
    except OSError as error:
        raise NotRunnable(f"{what} {text}: {error.strerror or error}") from None
    except (RuntimeError, ValueError) as error:
        # A home folder of nobody, a NUL byte.
        raise NotRunnable(f"{what} {text}: no usable path: {error}") from None
    return path
