"""The deployment: one TOML file that says which host, target, draft and cache, and how the server is launched."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from console.errors import DeploymentError
from console.hints import NO_DEPLOYMENT
from console.paths import config_dir

LAUNCHERS = ("setsid", "tmux", "systemd", "docker", "slurm")
Scalar = str | int | float | bool
ArgValue = Scalar | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class HostSpec:
    """Where commands run. An empty `ssh` is this machine; an empty `python` the one found there."""

    ssh: str = ""
    python: str = ""
    container: str = ""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The target's and the draft's folders on the host."""

    target: str = ""
    draft: str = ""


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Hidden states of training time; `states` is what the user believes it holds, checked and never trusted."""

    path: str = ""
    layout: str = ""
    states: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """How the server is launched and reached. `entrypoint` is a python module run in place of the engine's own."""

    engine: str = "sglang"
    entrypoint: str = ""
    launcher: str = "setsid"
    log: str = ""
    url: str = "http://127.0.0.1:30000"
    env: Mapping[str, str] = field(default_factory=dict)
    args: Mapping[str, ArgValue] = field(default_factory=dict)

    @property
    def log_is_output(self) -> bool:
        """Whether `log` names no file, but what a container or a unit prints: docker:NAME, journal:UNIT."""
        return self.log.startswith(("docker:", "journal:"))

    @property
    def port(self) -> int:
        """The port of `url`; 80 when it names none."""
        return urlsplit(self.url).port or 80

    @property
    def address(self) -> str:
        """The host part of `url`, as seen on the host."""
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def engine_name(self) -> str:
        """`sglang` of `sglang==0.5.12`."""
        return self.engine.partition("==")[0].strip()


@dataclass(frozen=True, slots=True)
class Deployment:
    """One deployment. `name` is the file's stem; `path` is None for one that was never a file.

    `ssh_config` replaces ~/.ssh/config, `history` the user's database of runs, and `captures` (folders on the host)
    what the checks would ask of the running server; none of them is in the file.
    """

    name: str
    host: HostSpec = HostSpec()
    nodes: tuple[HostSpec, ...] = ()
    model: ModelSpec = ModelSpec()
    caches: tuple[CacheSpec, ...] = ()
    server: ServerSpec = ServerSpec()
    path: Path | None = None
    ssh_config: Path | None = None
    history: Path | None = None
    captures: tuple[str, ...] = ()


# The name of each section in the file, its type, and whether it is an array of tables.
_SECTIONS: dict[str, tuple[str, type, bool]] = {
    "host": ("host", HostSpec, False),
    "node": ("nodes", HostSpec, True),
    "model": ("model", ModelSpec, False),
    "cache": ("caches", CacheSpec, True),
    "server": ("server", ServerSpec, False),
}


def find_deployment(name: str) -> Path:
    """The file of a deployment given by name or path. Raises DeploymentError naming those that exist."""
    as_path = Path(name).expanduser()
    if as_path.suffix == ".toml" or "/" in name:
        if as_path.is_file():
            return as_path
        raise DeploymentError(f"{name}: no such deployment file")
    path = config_dir() / f"{name}.toml"
    if path.is_file():
        return path
    known = deployment_names()
    near = get_close_matches(name, known, 1)
    listed = f"known: {', '.join(known)}" if known else "there are none yet"
    hint = f"did you mean {near[0]!r}?" if near else f"{listed}; {NO_DEPLOYMENT}"
    raise DeploymentError(f"no deployment {name!r} in {config_dir()}; {hint}")


def deployment_names() -> list[str]:
    """The names under the config folder, sorted."""
    return sorted(path.stem for path in config_dir().glob("*.toml"))


def load_deployment(name: str) -> Deployment:
    """Read a deployment by name or path. Raises DeploymentError that says which key is wrong and why."""
    path = find_deployment(name)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeploymentError(f"{path}: cannot be read: {error}") from None
    return parse_deployment(text, path.stem, path)


def parse_deployment(text: str, name: str, path: Path | None = None) -> Deployment:
    """Parse a deployment file's text. Raises DeploymentError."""
    where = str(path or name)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeploymentError(f"{where}: not valid TOML: {error}") from None
    _no_unknown(raw, list(_SECTIONS), where, "section")
    values: dict[str, Any] = {}
    for section, (attribute, kind, many) in _SECTIONS.items():
        if section not in raw:
            continue
        value = raw[section]
        if many:
            if not isinstance(value, list):
                raise DeploymentError(f"{where}: [{section}] must be written [[{section}]]: there may be several")
            values[attribute] = tuple(_table(kind, item, where, f"[[{section}]] {i}") for i, item in enumerate(value))
        else:
            values[attribute] = _table(kind, value, where, f"[{section}]")
    deployment = Deployment(name=name, path=path, **values)
    _consistent(deployment, where)
    return deployment


def save_deployment(deployment: Deployment, path: Path) -> None:
    """Write the deployment as TOML. An existing file keeps its comments and order; only what differs is touched."""
    import tomlkit
    from tomlkit.items import Table

    document = tomlkit.parse(path.read_text("utf-8")) if path.exists() else tomlkit.document()
    for section, (attribute, _, many) in _SECTIONS.items():
        value = getattr(deployment, attribute)
        if many:
            plain = [_plain(item) for item in value]
            if plain and tomlkit.item(plain).unwrap() != document.get(section, []):
                tables = tomlkit.aot()
                for item in plain:
                    tables.append(tomlkit.item(item))
                document[section] = tables
            elif not plain:
                document.pop(section, None)
            continue
        table = document.setdefault(section, tomlkit.table())
        assert isinstance(table, (Table, dict))
        _merge(table, _plain(value))
        if not table:
            document.pop(section)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(tomlkit.dumps(document), "utf-8")
    fresh.replace(path)


def _merge(table: Any, wanted: Mapping[str, Any]) -> None:
    for key in [key for key in table if key not in wanted]:
        del table[key]
    for key, value in wanted.items():
        if isinstance(value, dict) and key in table:
            _merge(table[key], value)
        elif table.get(key) != value:
            table[key] = value


def _plain(value: Any) -> dict[str, Any]:
    """The fields that differ from their defaults, as TOML values."""
    out: dict[str, Any] = {}
    default = type(value)()
    for item in fields(value):
        current = getattr(value, item.name)
        if current != getattr(default, item.name):
            out[item.name] = _toml(current)
    return out


def _toml(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _toml(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _table(kind: type, raw: Any, where: str, section: str) -> Any:
    if not isinstance(raw, dict):
        raise DeploymentError(f"{where}: {section} must be a table, not {_kind(raw)}")
    _no_unknown(raw, [item.name for item in fields(kind)], where, f"key in {section}")
    return kind(**{key: _READERS.get(key, _text)(value, f"{where}: {section} {key}") for key, value in raw.items()})


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise DeploymentError(f"{what} must be a string, not {_kind(value)}")
    if "\0" in value:
        raise DeploymentError(f"{what} holds a NUL character, which no path or command can")
    return value


def _states(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(isinstance(item, bool) or not isinstance(item, int) for item in value):
        raise DeploymentError(f"{what} must be a list of whole numbers, such as [3, 31, 59]")
    return tuple(value)


def _launcher(value: Any, what: str) -> str:
    if value not in LAUNCHERS:
        near = get_close_matches(str(value), LAUNCHERS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; one of {', '.join(LAUNCHERS)}"
        raise DeploymentError(f"{what} {value!r} is not a launcher{hint}")
    return str(value)


def _log(value: Any, what: str) -> str:
    from remote.errors import RemoteError
    from remote.output import log_source

    text = _text(value, what)
    try:
        log_source(text)
    except RemoteError as error:
        raise DeploymentError(f"{what}: {error.why}; {error.next[0].lower()}{error.next[1:]}") from None
    return text


def _url(value: Any, what: str) -> str:
    text = _text(value, what)
    try:
        parts = urlsplit(text)
        bad = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        bad = True
    if bad:
        raise DeploymentError(f"{what} {text!r} is not a url such as http://127.0.0.1:30000")
    return text


def _env(value: Any, what: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise DeploymentError(f"{what} must be a table of variables")
    return {key: _text(item, f"{what}.{key}") for key, item in value.items()}


def _args(value: Any, what: str) -> dict[str, ArgValue]:
    if not isinstance(value, dict):
        raise DeploymentError(f"{what} must be a table of flags")
    out: dict[str, ArgValue] = {}
    for key, item in value.items():
        if key.startswith("-"):
            raise DeploymentError(f"{what}: write {key.lstrip('-')!r}, without the dashes")
        items = item if isinstance(item, list) else [item]
        if any(not isinstance(one, (str, int, float, bool)) for one in items):
            raise DeploymentError(f"{what} {key} must be text, a number, true or a list of them, not {_kind(item)}")
        out[key] = tuple(item) if isinstance(item, list) else item
    return out


_READERS: dict[str, Any] = {
    "states": _states,
    "launcher": _launcher,
    "log": _log,
    "url": _url,
    "env": _env,
    "args": _args,
}

# Flags whose value the file gives elsewhere, as every engine spells them; a second, different value is an error.
_GIVEN_ELSEWHERE: dict[str, tuple[str, ...]] = {
    "[model] target": ("model-path", "model"),
    "[model] draft": ("speculative-draft-model-path", "speculative-draft-model"),
    "[server] url": ("port",),
}


def _consistent(deployment: Deployment, where: str) -> None:
    given = {
        "[model] target": deployment.model.target,
        "[model] draft": deployment.model.draft,
        "[server] url": str(deployment.server.port),
    }
    for source, names in _GIVEN_ELSEWHERE.items():
        for key, value in deployment.server.args.items():
            if key.replace("_", "-") in names and given[source] and str(value) != given[source]:
                raise DeploymentError(
                    f"{where}: [server.args] {key} = {value!r} contradicts {source}, which says {given[source]!r}; "
                    f"remove it from [server.args]"
                )


def _no_unknown(raw: Mapping[str, Any], known: Sequence[str], where: str, what: str) -> None:
    for key in raw:
        if key not in known:
            near = get_close_matches(key, known, 1, cutoff=0.0)
            raise DeploymentError(f"{where}: unknown {what}: {key!r}; the nearest known one is {near[0]!r}")


def _kind(value: Any) -> str:
    names = {
        dict: "a table",
        list: "a list",
        bool: "true or false",
        str: "a string",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)
