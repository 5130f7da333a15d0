"""What each command does: opens what it needs, calls the session, prints, and says how it ended."""

from __future__ import annotations

import argparse
import io
import json
import os
import stat
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from console.deployment import Deployment, deployment_names, load_deployment
from console.errors import ConsoleError, DeploymentError, DraftError, NotRun, Refused, UsageError
from console.exits import Exit
from console.hints import NO_DEPLOYMENT, command, meant
from console.masking import mask_text
from console.paths import config_dir, ssh_config_file
from console.plain import one_line, plain

if TYPE_CHECKING:
    from console.checking import CheckStep
    from console.session import Session
    from remote.errors import HostKeyUnknown

T = TypeVar("T")


def run(args: argparse.Namespace) -> Exit:
    """Run the command that `args.run` names; every error becomes one message on stderr and an exit code."""
    _ready_streams()
    try:
        return HANDLERS[args.run](args)
    except KeyboardInterrupt:
        note("interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not complain about it while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except UsageError as error:
        return _failed(error, Exit.USAGE)
    except (Refused, DraftError) as error:
        return _failed(error, Exit.FINDINGS)
    except (ConsoleError, OSError) as error:
        return _failed(error, Exit.NOT_RUN)
    except Exception as error:  # noqa: BLE001  (the edge: a host's error has its message, all else is a bug)
        from remote.errors import HostKeyUnknown, RemoteError

        if isinstance(error, HostKeyUnknown):
            return _failed(NotRun(_untrusted(error)), Exit.NOT_RUN)
        if not isinstance(error, RemoteError):
            note(traceback.format_exc())
            note("this is a bug of the console; please report the lines above")
        return _failed(error, Exit.NOT_RUN)


def _awaited(work: Coroutine[Any, Any, T]) -> T:
    """What it comes to. Checks of paths wait for nothing, and asyncio takes longer to import than all of `cli`."""
    import asyncio

    return asyncio.run(work)


def _ready_streams() -> None:
    """Standard streams that can be used: one that was closed leads nowhere, and no encoding stops a message."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (for the process's whole life)
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _failed(error: BaseException, code: Exit) -> Exit:
    note(f"error: {error}")
    return code


def note(text: str) -> None:
    """Say something on stderr that is no data."""
    print(plain(mask_text(text)), file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print data."""
    print(plain(text), flush=True)


def colour(stream: Any = None) -> bool:
    """Whether to colour what goes to `stream` (stdout): a terminal, and NO_COLOR not set."""
    return (stream or sys.stdout).isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


# -- what commands share ---------------------------------------------------------------------------------------------


def chosen(name: str | None, ssh_config: str | None = None) -> Deployment:
    """The deployment by name; without one, the only one there is. Raises DeploymentError, UsageError."""
    if name is None:
        names = deployment_names()
        if len(names) != 1:
            raise UsageError(
                f"which deployment? known: {', '.join(names)}"
                if names
                else f"there is no deployment yet: {NO_DEPLOYMENT}; or write {config_dir()}/NAME.toml with [host], "
                "[model] and [server]"
            )
        name = names[0]
    deployment = load_deployment(name)
    return replace(deployment, ssh_config=ssh_config_file(ssh_config)) if ssh_config else deployment


@asynccontextmanager
async def opened(args: argparse.Namespace, name: str | None = None) -> AsyncIterator[Session]:
    """The session of the deployment a command was given; changes are refused where it said so."""
    from console.session import Session

    deployment = replace(
        chosen(name if name is not None else args.name, args.ssh_config),
        captures=tuple(getattr(args, "capture", ())),
    )
    session = await Session.open(
        deployment, trust=ask_about_key, read_only=args.read_only or getattr(args, "dry_run", False)
    )
    try:
        yield session
    finally:
        await session.close()


async def ask_about_key(unknown: Any) -> bool:
    """Whether a person trusts a host key that is not known yet. Without a terminal nobody is asked, and nobody told."""
    import asyncio

    if not sys.stdin.isatty():
        return False
    note(str(unknown))
    return await asyncio.to_thread(confirmed, f"trust {unknown.fingerprint} and add it to {unknown.known_hosts}?")


def _untrusted(unknown: HostKeyUnknown) -> str:
    """What to say of a key that nobody trusted: at a terminal the rest was said when it was asked."""
    import shlex

    if sys.stdin.isatty():
        return f"the key of {unknown.host} port {unknown.port} was not trusted, so nothing was done"
    shown = f"ssh-keyscan -p {unknown.port} {shlex.quote(unknown.host)} | ssh-keygen -lf -"
    return f"{unknown}: `{shown}` shows it. To trust it, run this command in a terminal, which asks (--yes does not)"


def confirmed(question: str) -> bool:
    """The answer of a person at the terminal; no where there is none."""
    if not sys.stdin.isatty():
        return False
    print(plain(f"{question} [y/N] "), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


async def agreed(args: argparse.Namespace, question: str) -> None:
    """Raise Refused unless --yes was given or a person says yes."""
    import asyncio

    if args.yes or await asyncio.to_thread(confirmed, question):
        return
    raise Refused("nothing was changed: it was not agreed to" + ("" if sys.stdin.isatty() else "; give --yes"))


def tell_step(name: str, detail: str) -> None:
    note(f"{name:<10} {one_line(detail)[:160]}")


# -- open, demo --------------------------------------------------------------------------------------------------------


def open_app(args: argparse.Namespace) -> Exit:
    """`console [NAME]`."""
    try:
        deployment = chosen(args.name, args.ssh_config)
    except DeploymentError as error:
        from console.cli import COMMANDS

        near = meant(args.name or "", COMMANDS)
        raise UsageError(f"{error}; did you mean the command {near}?") if near else error from None
    _prove_terminal(f"{command(args, 'check')}")
    from console.app import run as run_app

    return Exit(run_app(deployment, read_only=args.read_only))


def _prove_terminal(instead: str) -> None:
    """Raise UsageError where the app has no terminal of its own to draw on; a driver that is named needs none."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if not os.environ.get("TEXTUAL_DRIVER") and not all(stream.isatty() for stream in streams):
        raise UsageError(f"the app needs a terminal for its input and output; without one, try {instead}")


def demo(args: argparse.Namespace) -> Exit:
    """`console demo`."""
    if not args.story:
        if args.prompts or args.json:
            raise UsageError("--prompts and --json go with --story; see console demo --help")
        _prove_terminal("console demo --story")
    from console import story

    if args.story:
        return _awaited(story.play(args.wiring, args.prompts, args.json))
    return story.open_demo(args.wiring or "embedding", args.read_only)


# -- check -------------------------------------------------------------------------------------------------------------

_PATHS = ("draft", "target", "cache", "capture", "parent", "log")


def check(args: argparse.Namespace) -> Exit:
    """`console check`."""
    if args.explain is not None:
        return _explain(args.explain.casefold())
    from console import report as reports

    paths = [name for name in _PATHS if getattr(args, name)]
    on_paths = bool(paths) and (paths != ["capture"] or not args.name)
    if on_paths and args.name:
        raise UsageError(f"give a deployment ({args.name}) or paths, not both; only --capture goes with either")
    if args.junit and args.junit != "-":
        _prove_writable("--junit", args.junit)
    found = _check_paths(args) if on_paths else _awaited(_check_deployment(args))
    if args.json:
        print(reports.to_json(found))
    elif args.markdown:
        print(reports.to_markdown(found))
    elif args.junit == "-":
        print(reports.to_junit(found, args.fail_on))
    else:
        print(reports.to_text(found, colour()))
    if args.junit and args.junit != "-":
        try:
            Path(args.junit).write_text(reports.to_junit(found, args.fail_on) + "\n", "utf-8")
        except OSError as error:
            raise NotRun(f"--junit {args.junit}: {error.strerror}; the report above is whole") from None
    return reports.exit_code(found, args.fail_on, args.strict)


def _prove_writable(flag: str, path: str) -> None:
    """Raise UsageError, before any work, for a file that cannot be written in the end."""
    file = Path(path)
    if file.is_dir():
        raise UsageError(f"{flag} {path}: a folder; name a file in it")
    if not file.parent.is_dir():
        raise UsageError(f"{flag} {path}: there is no folder {file.parent}; make it first, or name another file")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"{flag} {path}: not ours to write; name a file elsewhere, or - for stdout")


def _explain(name: str) -> Exit:
    from checks.catalog import all_checks, find
    from checks.errors import CheckError

    families = list(dict.fromkeys(item.id.partition(".")[0] for item in all_checks()))
    if not name.strip():
        raise UsageError(f"--explain: name a check, or a family of them: {', '.join(families)}")
    family = [item for item in all_checks() if item.id.startswith(f"{name}.")]
    if family:
        for item in family:
            say(f"{item.id:<22} {item.page.partition(chr(10))[0]}")
        note(f"{name} is a family of checks; console check --explain {family[0].id} explains one")
        return Exit.OK
    try:
        page = find(name).page
    except CheckError:
        ids = [item.id for item in all_checks()]
        near = next((id for id in ids if id.endswith(f".{name.rpartition('.')[2]}")), "") or meant(name, ids + families)
        hint = f"did you mean {near}?" if near else f"--explain FAMILY lists some; families: {', '.join(families)}"
        raise UsageError(f"no check {name!r}; {hint}") from None
    say(f"{name}\n\n{page}")
    return Exit.OK


def _split(values: list[str]) -> tuple[str, ...]:
    return tuple(item.strip() for value in values for item in value.split(",") if item.strip())


def _check_paths(args: argparse.Namespace) -> dict[str, Any]:
    import shlex

    from checks.__main__ import answer
    from checks.errors import CheckError, NoSuchCheck
    from console import __version__

    try:
        flags = shlex.split(args.args)
    except ValueError as error:
        raise UsageError(f"--args: {error}") from None
    engines = [dict(zip(("name", "version"), value.partition("==")[::2])) for value in args.engine]
    request = {
        "schema": 1,
        **{name: getattr(args, name) for name in ("draft", "target", "parent", "log", "engine_source")},
        "caches": [{"path": path} for path in args.cache],
        "captures": args.capture,
        "engines": engines,
        "args": flags,
        "only": _split(args.only),
        "skip": _split(args.skip),
        "samples": args.samples,
        "host": "local",
        "console": __version__,
    }
    show = Ticker()
    try:
        return answer(request, show.event)
    except NoSuchCheck as error:
        raise UsageError(str(error)) from None
    except CheckError as error:
        raise NotRun(str(error)) from None
    finally:
        show.done()


async def _check_deployment(args: argparse.Namespace) -> dict[str, Any]:
    if args.engine or args.args:
        raise UsageError("--engine and --args go with paths; a deployment names its own")
    show = Ticker()
    async with opened(args) as session:
        steps = session.check(_split(args.only), _split(args.skip), args.samples, args.engine_source)
        try:
            async with aclosing(steps):
                async for step in steps:
                    show.step(step)
        finally:
            show.done()
        if session.report is None:
            raise NotRun("the checks ended without a report; run them again, and report this if it stays")
        return session.report.raw


class Ticker:
    """The running check on one line of stderr, where that is a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def event(self, event: Mapping[str, Any]) -> None:
        """A step as the checks tell it."""
        from console.checking import read_step

        self.step(read_step(event))

    def step(self, step: CheckStep | None) -> None:
        """A step of a run."""
        from console.checking import Progress

        if self._shown and isinstance(step, Progress):
            part = f" {step.done}/{step.total}" if step.total else ""
            print(f"\r\x1b[K{one_line(f'{step.check}{part} {step.note}')[:100]}", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# -- tail --------------------------------------------------------------------------------------------------------------


def tail(args: argparse.Namespace) -> Exit:
    """`console tail`."""
    if args.file:
        return _tail_file(args)
    _awaited(_tail_host(args))
    return Exit.OK


def _print_events(events: list[Any], as_json: bool) -> None:
    shown = (0, "")
    for event in events:
        if as_json:
            print(json.dumps(event.as_json(), ensure_ascii=True))
        elif (event.line, event.text) != shown:
            # What the parser infers from a line comes with that line's text again.
            print(one_line(event.text))
        shown = (event.line, event.text)
    sys.stdout.flush()


def _tail_file(args: argparse.Namespace) -> Exit:
    from console.following import LineParser

    engine = args.engine or (chosen(args.name).server.engine_name if args.name else "sglang")
    parser = LineParser(engine, physical=True)
    try:
        if args.file in ("-", "/dev/stdin"):
            source = sys.stdin.buffer
        else:
            file = Path(args.file).expanduser()
            mode = file.stat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
                raise NotRun(f"--file {args.file}: neither a file nor a pipe, so it is no finished log; - is stdin")
            source = file.open("rb")
    except OSError as error:
        raise NotRun(f"--file {args.file}: {error.strerror}") from None
    except RuntimeError as error:
        raise NotRun(f"--file {args.file}: no usable path: {error}") from None
    with source:
        while data := source.read(1 << 18):
            _print_events(parser.feed(data), args.json)
    _print_events(parser.flush(), args.json)
    return Exit.OK


async def _tail_host(args: argparse.Namespace) -> None:
    async with opened(args) as session:
        await session.status()
        async with aclosing(session.follow_log(args.lines, note)) as batches:
            async for batch in batches:
                _print_events(batch, args.json)


# -- the rest ----------------------------------------------------------------------------------------------------------


def moment(seconds: float) -> str:
    """A time as people here read it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _in(module: str, name: str) -> Callable[[argparse.Namespace], Exit]:
    """A command of another module, which is loaded when it runs."""

    def call(args: argparse.Namespace) -> Exit:
        from importlib import import_module

        return Exit(import_module(f"console.{module}").run(name, args))

    return call


HANDLERS: dict[str, Callable[[argparse.Namespace], Exit]] = {
    "open": open_app,
    "demo": demo,
    "check": check,
    "tail": tail,
    **{name: _in("server_commands", name) for name in ("status", "start", "stop", "restart")},
    "runs_list": _in("server_commands", "runs_list"),
    **{f"runs_{name}": _in("runs_commands", name) for name in ("show", "compare")},
    "flags": _in("flags_commands", "flags"),
    "bench": _in("bench_commands", "bench"),
    "sweep": _in("bench_commands", "sweep"),
    "capture": _in("capture_commands", "capture"),
    "init": _in("init_commands", "init"),
    **{f"draft_{name}": _in("draft_commands", name) for name in ("show", "diff", "set", "write", "history", "restore")},
}
