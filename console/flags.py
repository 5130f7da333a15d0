"""The flags of the engine that is there, as its own source declares them, and what a deployment makes of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from console.checking import Report, run_on_host
from console.launch import engine_part, flags_of
from console.masking import MASK, is_secret, mask_json

if TYPE_CHECKING:
    from console.deployment import Deployment
    from console.launch import Difference, LaunchPlan
    from console.session import Session

SWITCH = "switch"
_NUMBERS = {"int": int, "float": float}
_TYPES = (*_NUMBERS, "str", SWITCH)
_NAMED_CHOICES = 4


@dataclass(frozen=True, slots=True)
class KnownFlag:
    """A flag as the engine's source declares it. `default` as Python writes it, "" when it is not known."""

    name: str
    default: str = ""
    help: str = ""
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    type: str = ""
    """int, float, str, switch (it takes no value), or "" where the source does not say."""
    many: bool = False

    @property
    def default_words(self) -> str:
        """The default for a reader; "" where there is none."""
        words = {"None": "", "True": "on", "False": "off"}.get(self.default, self.default)
        return "computed" if "(" in words else words.strip("'\"")

    def problem(self, value: Any) -> str:
        """Why the engine would refuse this value, as far as its source says how it is read; "" where it would not."""
        if value is None or value is False:
            return ""
        if self.type == SWITCH:
            return "" if value is True else f"--{self.name} takes no value: type true, or nothing to leave it out"
        if value is True:
            return f"--{self.name} takes a value" if self.type and not self.many else ""
        values = [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)]
        if len(values) > 1 and self.type and not self.many:
            return f"--{self.name} takes one value, not {len(values)}"
        wrong = [item for item in values if self.choices and item not in self.choices]
        if wrong:
            few = len(self.choices) <= _NAMED_CHOICES
            return (
                f"{wrong[0]!r} is not one of {', '.join(self.choices) if few else f'its {len(self.choices)} choices'}"
            )
        read = _NUMBERS.get(self.type)
        wrong = [item for item in values if read is not None and not _reads(read, item)]
        return f"{wrong[0]!r} is not {'a whole number' if self.type == 'int' else 'a number'}" if wrong else ""


@dataclass(frozen=True, slots=True)
class FlagSchema:
    """Every flag of one engine. `why` says why there are none, where its source could not be read."""

    engine: str = ""
    version: str = ""
    where: str = ""
    why: str = ""
    flags: tuple[KnownFlag, ...] = ()

    @property
    def label(self) -> str:
        """`sglang 0.5.12`."""
        return f"{self.engine} {self.version}".strip()

    def find(self, name: str) -> KnownFlag | None:
        """The flag of a name as it is typed: an alias, an unambiguous beginning, and for vLLM `no-…` and `….key`."""
        bare = name.lstrip("-").replace("_", "-")
        named = {key: flag for flag in self.flags for key in (flag.name, *flag.aliases)}
        for key in (bare, bare.removeprefix("no-").partition(".")[0]) if self.engine == "vllm" else (bare,):
            if key in named:
                return named[key]
        begun = {flag.name: flag for key, flag in named.items() if bare and key.startswith(bare)}
        return next(iter(begun.values())) if len(begun) == 1 else None

    def problem(self, name: str, value: Any) -> str:
        """Why the engine would refuse this flag or its value; "" where it would not, or its flags are not known."""
        if not self.flags or value is None or value is False:
            return ""
        flag = self.find(name)
        if flag is not None:
            return flag.problem(value)
        near = get_close_matches(name.replace("_", "-"), [item.name for item in self.flags], 1)
        return f"{self.label} has no such flag" + (f"; the nearest is --{near[0]}" if near else "")


@dataclass(frozen=True, slots=True)
class FlagRow:
    """One line of the launch table: a flag or variable, what is planned, what runs where that differs.

    `source` says what sets it, "" when nothing does. `key` is its name as it is staged.
    """

    key: str
    planned: Any = None
    difference: Difference | None = None
    known: KnownFlag | None = None
    source: str = ""
    problem: str = ""

    @property
    def given(self) -> bool:
        """Whether it is part of the command, planned or running."""
        return bool(self.source) or self.difference is not None

    @property
    def editable(self) -> bool:
        """Whether it can be staged here; the model, the draft, the port and the environment are the deployment's."""
        return self.source in ("", STAGED, IN_ARGS, RUNNING)

    def found_by(self, words: Sequence[str]) -> bool:
        """Whether all these words stand in its name or help; a name counts with dashes or without."""
        text = f"{self.key} {self.key.replace('-', '_')} {self.known.help if self.known else ''}".lower()
        return all(word.lower() in text for word in words)


STAGED, IN_ARGS, IN_ENV = "staged here", "[server.args]", "[server.env]"
RUNNING = "only the process that runs has it"
_GIVEN = "given by [model] and [server]: change it in the deployment"


def rows_of(
    deployment: Deployment, plan: LaunchPlan, overrides: Mapping[str, Any], schema: FlagSchema
) -> list[FlagRow]:
    """The launch table: what is set first, in the deployment's order, then every other flag of the engine."""
    canonical = engine_part(deployment.server.engine_name, "options").canonical
    differs = {item.key.lstrip("-"): item for item in plan.changes}
    args = deployment.server.args
    rows, seen = [], set()
    for key, value in {**args, **overrides}.items():
        name = canonical(key.lstrip("-").replace("_", "-"))
        seen.add(name)
        source = STAGED if key in overrides else IN_ARGS
        rows.append(FlagRow(key, value, differs.pop(name, None), schema.find(key), source, schema.problem(key, value)))
    for name, value in flags_of(deployment, plan.argv).items():
        if name not in seen:
            seen.add(name)
            rows.append(FlagRow(name, value, differs.pop(name, None), schema.find(name), _GIVEN))
    for name, difference in differs.items():
        seen.add(name)
        rows.append(FlagRow(name, None, difference, schema.find(name), RUNNING))
    rows += [FlagRow(f"{ENV}{key}", value, source=IN_ENV) for key, value in deployment.server.env.items()]
    given = {row.known.name for row in rows if row.known is not None} | seen
    rows += [FlagRow(flag.name, known=flag) for flag in schema.flags if flag.name not in given]
    return rows


ENV = "env "
"""What stands before the name of a variable."""


def problems_of(rows: Sequence[FlagRow]) -> Iterator[str]:
    """What the engine would refuse, a line a flag."""
    return (f"--{row.key}: {row.problem}" for row in rows if row.problem)


async def read_flags(session: Session) -> FlagSchema:
    """The flags of the engine that runs, or else is installed, read on the host from its source.

    Raises NotRun, remote's errors.
    """
    request = session.request() | {"task": "flags"}
    async with aclosing(run_on_host(session.host, session.python, request)) as steps:
        async for step in steps:
            if isinstance(step, Report):
                return schema_of(step.raw)
    return FlagSchema(why="the host gave no answer")


def schema_of(raw: Mapping[str, Any]) -> FlagSchema:
    """What the host said, which may be anything: what is missing or of another kind is as if not known."""
    engine = raw.get("engine")
    name, version = (_text(engine, key) for key in ("name", "version"))
    flags = tuple(_flag(item) for item in _list(raw, "flags") if _text(item, "name"))
    why = _text(raw, "why") or ("" if flags else "the host named no flags")
    return FlagSchema(name, version, _text(raw, "where"), why, flags)


def _flag(raw: Mapping[str, Any]) -> KnownFlag:
    kind = _text(raw, "type")
    return KnownFlag(
        _text(raw, "name"),
        _text(raw, "default"),
        " ".join(_text(raw, "help").split()),
        tuple(map(str, _list(raw, "choices"))),
        tuple(map(str, _list(raw, "aliases"))),
        kind if kind in _TYPES else "",
        raw.get("many") is True,
    )


def _text(raw: Any, key: str) -> str:
    value = raw.get(key) if isinstance(raw, Mapping) else None
    return value if isinstance(value, str) else ""


def _list(raw: Mapping[str, Any], key: str) -> list[Any]:
    value = raw.get(key)
    return value if isinstance(value, list) else []


def read_value(text: str, many: bool = False) -> Any:
    """A flag's value as typed: `true` is a bare flag, empty drops it, numbers are numbers; `many` reads a list."""
    text = text.strip()
    if not text or text == "false":
        return None
    if text == "true":
        return True
    words = text.split() if many else [text]
    values = [_number(word) for word in words]
    return values[0] if len(values) == 1 else tuple(values)


def shown_value(key: str, value: Any) -> str:
    """A flag's value as it is shown and typed, secrets masked; "" for one that is not set."""
    if value is None:
        return ""
    if is_secret(key.removeprefix(ENV)):
        return MASK
    value = mask_json(value)
    if value is True:
        return "true"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _number(text: str) -> Any:
    """A number only where writing it gives the same text again: 0.90 and 1_000 stay as they were typed."""
    return next((kind(text) for kind in (int, float) if _reads(kind, text) and str(kind(text)) == text), text)


def _reads(kind: type[int] | type[float], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
