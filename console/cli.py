"""The command line: arguments in, exit code out. What a command does stands in `commands`, loaded when it runs."""

from __future__ import annotations

import argparse
import os
import sys

from console import __version__
from console.exits import Exit

# `typing` and `shutil` are a third of what --help takes; this is how both are done without.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    Add = Callable[..., argparse.ArgumentParser]

COMMANDS = {
    "check": "run the checks, on a deployment's host or on the paths given",
    "tail": "follow the server's log: its lines, or with --json what they say as events",
    "draft": "look at the draft's config.json, stage a change, write it",
    "status": "say whether the server is up, and how its command differs from the file",
    "start": "start the server and wait until it is ready",
    "stop": "stop the server, when it is proven to be it",
    "restart": "stop the server and start it again",
    "capture": "take the states that the server feeds its draft, or those of the target itself, for cached texts",
    "bench": "measure accept length and speed of the running server, prompt by prompt",
    "sweep": "measure over numbers of draft steps, one restart each, and put the server back as it was",
    "flags": "list the launch flags of the engine that is there: default, choices, help, what is set and what runs",
    "runs": "list the runs of the server, show one, or compare two",
    "init": "look at a host for a running server, and write its deployment file",
    "demo": "the whole story on an embedded host, with a tiny real pair and no GPU",
    "open": "open the app on a deployment",
}
WIRINGS = ("right", "late", "embedding")
"""The keys of `console.demo.setup.WIRINGS`, repeated so that --help loads nothing of the demo."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Data goes to stdout, notes to stderr; returns the exit code."""
    try:
        args = parse(list(sys.argv[1:] if argv is None else argv))
        from console.commands import run

        return int(run(args))
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)  # while modules are loaded: nothing was begun, so nothing is said


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments, checked; `run` names the function of `commands`. Exits with 2 on wrong ones, as argparse does."""
    words = [word for word in argv if not word.startswith("-")]
    # `console NAME` opens the app: a first word that is no command is a deployment.
    if argv not in (["-h"], ["--help"], ["--version"]) and (not words or words[0] not in COMMANDS):
        argv = ["open", *argv]
    return _parser(argv[0] if argv else "").parse_args(argv)


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_width())


def _width() -> int:
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size().columns) - 2
    except (ValueError, OSError):
        return 78


class _Parser(argparse.ArgumentParser):
    """One line on stderr for a wrong argument, with what may be meant and where to read more."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Help, allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does; a command with no commands of its own takes its options anywhere, and refuses the rest."""
        if self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        found, unknown = super().parse_known_args(self._options_first(list(args)), namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown)}")
        return found, unknown

    def _options_first(self, words: list[str]) -> list[str]:
        """The options before all other words: argparse gives up on optional words that options stand between."""
        options: list[str] = []
        others: list[str] = []
        while words:
            word = words.pop(0)
            if word == "--":
                return [*options, word, *others, *words]
            if not word.startswith("-") or word == "-" or " " in word.partition("=")[0]:
                others.append(word)
                continue
            options.append(word)
            known = self._option_string_actions.get(word)
            if known is not None and known.nargs is None and words:
                options.append(words.pop(0))
        return [*options, *others]

    def _meant(self, unknown: list[str]) -> str:
        from console.hints import meant

        option = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
        near = meant(option, (item for item in self._option_string_actions if item.startswith("--"))) if option else ""
        if near:
            return f"; did you mean {near}?"
        words = [word for word in unknown if word in COMMANDS]
        return f"; did you mean console {words[0]} NAME?" if words else ""

    def error(self, message: str) -> NoReturn:
        from console.plain import one_line

        self.exit(int(Exit.USAGE), f"{self.prog}: {one_line(message)}; see {self.prog} --help\n")


def _parser(command: str) -> argparse.ArgumentParser:
    """The parser, with the arguments of `command` only: the others are listed, and cost nothing."""
    parser = _Parser(
        prog="console",
        description="Prove that an EAGLE-3 drafter is served the states it was trained on, fix it, watch it accept.",
        epilog="console NAME opens the app on a deployment: a name under the config folder, or a path.\n"
        "Exit codes: 0 well, 1 findings, 2 usage, 3 could not be run, 4 not proven (--strict), 130 interrupted.\n\n"
        "example:\n  console demo",
    )
    parser.add_argument("--version", action="version", version=f"console {__version__}")
    add = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser).add_parser
    for name, words in COMMANDS.items():
        if name == command:
            _BUILDERS[name](add, name)
        else:
            add(name, help=words)
    return parser


def _command(add: Add, name: str, words: str, example: str, deployment: bool = True) -> argparse.ArgumentParser:
    command = add(
        name,
        help=words,
        description=f"{words[0].upper()}{words[1:]}.",
        epilog=f"example:\n  {example}",
    )
    command.set_defaults(run=name)
    if deployment:
        _deployment(command)
    return command


def _deployment(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "name", nargs="?", metavar="NAME", help="the deployment; may be left out where there is only one"
    )
    command.add_argument("-F", "--ssh-config", metavar="FILE", help="in place of ~/.ssh/config")
    command.add_argument("--read-only", action="store_true", help="refuse every change")


def _changing(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")
    command.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _open(add: Add, name: str) -> None:
    _command(add, name, COMMANDS[name], "console prod-box")


def _check(add: Add, name: str) -> None:
    command = _command(
        add,
        name,
        COMMANDS[name],
        "console check --draft DIR --target DIR --cache DIR",
    )
    given = command.add_argument_group("paths on this machine, in place of a deployment")
    given.add_argument("--draft", metavar="DIR", default="", help="the drafter's checkpoint, or its config.json")
    given.add_argument("--target", metavar="DIR", default="", help="the target; a folder with config.json is enough")
    given.add_argument(
        "--cache", metavar="DIR", action="append", default=[], help="hidden states of training; may be repeated"
    )
    given.add_argument(
        "--capture",
        metavar="DIR",
        action="append",
        default=[],
        help="states captured before; with a deployment a folder on its host, and its server is not asked",
    )
    given.add_argument("--parent", metavar="DIR", default="", help="the checkpoint this draft was fine-tuned from")
    given.add_argument(
        "--engine", metavar="NAME==VERSION", action="append", default=[], help="judge for this engine; may be repeated"
    )
    given.add_argument(
        "--engine-source", metavar="DIR", default="", help="an unpacked engine tree to read the rule from"
    )
    given.add_argument("--args", metavar="FLAGS", default="", help="the launch flags, as one word")
    given.add_argument("--log", metavar="FILE", default="", help="a log of the server")
    what = command.add_argument_group("what is checked")
    what.add_argument("--only", metavar="ID[,ID]", action="append", default=[], help="these checks or families")
    what.add_argument("--skip", metavar="ID[,ID]", action="append", default=[], help="all but these")
    what.add_argument("--samples", metavar="N|all", default="16", type=_samples, help="cached samples to look at (16)")
    what.add_argument("--explain", metavar="ID", help="print the documentation page of a check, and run nothing")
    how = command.add_argument_group("how it ends")
    how.add_argument("--fail-on", choices=("warn", "fail"), default="fail", help="what exits with 1 (fail)")
    how.add_argument("--strict", action="store_true", help="exit with 4 where something is not proven")
    form = how.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the report as one JSON object")
    form.add_argument("--junit", metavar="FILE", help="also write the report as JUnit XML; - is stdout")
    form.add_argument("--markdown", action="store_true", help="the report as Markdown")


def _samples(text: str) -> int:
    if text == "all":
        return 0
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of samples, nor `all`")


def _tail(add: Add, name: str) -> None:
    command = _command(
        add,
        name,
        COMMANDS[name],
        "console tail prod-box --json | jq 'select(.event == \"decode\").accept_len'",
    )
    command.add_argument("--file", metavar="LOG", help="read this finished log in place of following; - is stdin")
    command.add_argument("--engine", metavar="NAME", default="", help="whose log it is, with --file (sglang)")
    command.add_argument("--json", action="store_true", help="one JSON object a line")
    command.add_argument(
        "--lines", metavar="N", type=int, default=200, help="begin about so many lines before the end (200)"
    )


def _draft(add: Add, name: str) -> None:
    example = "console draft set prod-box --fix align.engine_pair && console draft write prod-box"
    command = _command(add, name, COMMANDS[name], example, deployment=False)
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser).add_parser

    def action(name: str, words: str, example: str, deployment: bool = True) -> argparse.ArgumentParser:
        made = _command(actions, name, words, example, deployment)
        made.set_defaults(run=f"draft_{name}")
        return made

    action("show", "print the config as it is staged, or as it is on the host", "console draft show prod-box")
    action("diff", "print what is staged as a diff", "console draft diff prod-box")
    command = action(
        "set", "stage a change", "console draft set prod-box /eagle_config/use_aux_hidden_state=true", deployment=False
    )
    command.add_argument(
        "words", nargs="*", metavar="[NAME] KEY=VALUE", help="a JSON pointer or top-level key, and a JSON value"
    )
    command.add_argument("--fix", metavar="CHECK", help="run this check and stage the fix of its finding")
    command.add_argument("--discard", action="store_true", help="drop what is staged first")
    command.add_argument("-F", "--ssh-config", metavar="FILE", help="in place of ~/.ssh/config")
    command.add_argument("--read-only", action="store_true", help="refuse every change")
    command = action("write", "write what is staged to the host", "console draft write prod-box --yes")
    command.add_argument("--why", default="", help="a note for the history")
    command.add_argument(
        "--merge", action="store_true", help="where the host's file changed: write theirs with our changes on top"
    )
    _changing(command)
    action("history", "list the versions that are kept", "console draft history prod-box")
    command = action("restore", "stage an earlier version", "console draft restore prod-box 3")
    command.add_argument(
        "version",
        nargs="?",
        metavar="VERSION",
        help="its number, or the begin of its sha256. Without it the versions are listed, and none is staged: the "
        "newest one kept is as a rule what the host has already",
    )


def _server(add: Add, name: str) -> None:
    command = _command(add, name, COMMANDS[name], f"console {name} prod-box" + ("" if name == "status" else " --yes"))
    if name == "status":
        command.add_argument("--json", action="store_true", help="as one JSON object")
        return
    command.add_argument("--why", default="by hand", help="a note for the history")
    _changing(command)
    if name == "restart":
        command.add_argument("--last-good", action="store_true", help="with the configuration that last served well")


def _flags(add: Add, name: str) -> None:
    command = _command(add, name, COMMANDS[name], "console flags prod-box speculative")
    command.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="only flags with these words in their name or help; NAME stands before them",
    )
    command.add_argument("--set", action="store_true", help="only what the deployment sets or the server runs with")
    command.add_argument("--json", action="store_true", help="as one JSON object; secrets are masked")
    given = command.add_argument_group("in place of a deployment")
    given.add_argument("--engine-source", metavar="DIR", default="", help="an unpacked engine tree on this machine")
    given.add_argument("--engine", metavar="NAME", default="sglang", help="whose tree that is (sglang)")


def _runs(add: Add, name: str) -> None:
    command = _command(add, name, COMMANDS[name], "console runs list prod-box", deployment=False)
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser).add_parser
    listing = _command(actions, "list", "list the runs, newest first", "console runs list prod-box", deployment=False)
    listing.add_argument("name", nargs="?", metavar="NAME", help="of this deployment only")
    one = _command(actions, "show", "show one run", "console runs show 12", deployment=False)
    one.add_argument("number", metavar="RUN", help="its number in the list")
    for name, action in (("list", listing), ("show", one)):
        action.set_defaults(run=f"runs_{name}")
        action.add_argument("--json", action="store_true", help="as JSON")

    two = _command(actions, "compare", "set two runs side by side", "console runs compare 12 14", deployment=False)
    two.set_defaults(run="runs_compare")
    two.add_argument("before", metavar="A", help="the number of the one run")
    two.add_argument("after", metavar="B", help="the number of the other")
    two.add_argument("--json", action="store_true", help="as one JSON object")


def _capture(add: Add, name: str) -> None:
    command = _command(add, name, COMMANDS[name], "console capture prod-box")
    command.add_argument("--samples", metavar="N", type=_count, default=6, help="cached texts to ask for (6)")
    command.add_argument("--tokens", metavar="N", type=_count, default=0, help="at most so many tokens of each (384)")
    command.add_argument("--out", metavar="DIR", default="", help="where, on the host (its cache folder)")
    command.add_argument(
        "--how",
        choices=("states", "hook", "aux"),
        default="",
        help="by return_hidden_states; by a hook inside the engine, for wide targets and second opinions; or from a "
        "server without its draft (what suits the server)",
    )
    itself = command.add_argument_group("from the target itself, through transformers")
    itself.add_argument("--reference", action="store_true", help="run the target itself on the host, on its CPU")
    itself.add_argument("--layers", metavar="K", type=_count, default=0, help="only its first K layers (all)")
    itself.add_argument("--target", metavar="DIR", default="", help="without a deployment: the target, on this machine")
    itself.add_argument("--cache", metavar="DIR", action="append", default=[], help="without one: its texts are taken")
    command.add_argument("--json", action="store_true", help="as one JSON object")
    _changing(command)


def _count(text: str) -> int:
    if text.isascii() and text.isdecimal() and 0 < int(text) < 1_000_000:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")


def _bench(add: Add, name: str) -> None:
    example = f"console {name} prod-box --prompts my.txt" if name == "bench" else f"console {name} prod-box --steps 1,3"
    command = _command(add, name, COMMANDS[name], example)
    command.add_argument(
        "--prompts", metavar="FILE", default="", help="a JSON list of texts, JSON lines, or a prompt a line (built-in)"
    )
    command.add_argument("--max-new-tokens", metavar="N", type=_count, default=128, help="tokens a prompt (128)")
    command.add_argument("--limit", metavar="N", type=_count, default=0, help="only the first N prompts")
    command.add_argument("--json", action="store_true", help="as one JSON object")
    if name == "sweep":
        command.add_argument(
            "--steps", metavar="N[,N]", default="1,2,3,4,5", help="the values of --speculative-num-steps (1,2,3,4,5)"
        )
        _changing(command)


def _init(add: Add, name: str) -> None:
    command = _command(add, name, COMMANDS[name], "console init me@gpu-box --cache /data/hidden_states", False)
    command.add_argument("host", metavar="[USER@]HOST", help="as for ssh; `local` is this machine")
    command.add_argument("--name", metavar="NAME", default="", help="of the deployment (the host's)")
    command.add_argument(
        "--port", metavar="PORT", type=_count, default=0, help="of the server, where there are several"
    )
    command.add_argument("--cache", metavar="DIR", action="append", default=[], help="hidden states of training there")
    command.add_argument("--draft", metavar="DIR", default="", help="in place of what the server's command says")
    command.add_argument("--log", metavar="FILE", default="", help="in place of where its output goes")
    command.add_argument("--force", action="store_true", help="write over a deployment file that exists")
    command.add_argument("-F", "--ssh-config", metavar="FILE", help="in place of ~/.ssh/config")
    command.add_argument("--read-only", action="store_true", help="refuse every change")
    _changing(command)


def _demo(add: Add, name: str) -> None:
    command = _command(
        add,
        name,
        COMMANDS[name],
        "console demo --story",
        deployment=False,
    )
    command.add_argument(
        "--story", action="store_true", help="play wrong wiring, check, fix, restart without a screen; print a table"
    )
    command.add_argument(
        "--wiring", choices=WIRINGS, help="how the draft is wired at first (app: embedding; story: both wrong ones)"
    )
    command.add_argument(
        "--prompts", metavar="N", type=_count, default=0, help="with --story: held-out prompts to measure with (all)"
    )
    command.add_argument("--json", action="store_true", help="with --story: the table as JSON")
    command.add_argument("--read-only", action="store_true", help="refuse every change")


_BUILDERS = {
    "open": _open,
    "check": _check,
    "tail": _tail,
    "draft": _draft,
    **dict.fromkeys(("status", "start", "stop", "restart"), _server),
    "flags": _flags,
    "runs": _runs,
    "capture": _capture,
    "bench": _bench,
    "sweep": _bench,
    "init": _init,
    "demo": _demo,
}
