"""`console flags`: every launch flag of the engine that is there, what the deployment sets, and what runs otherwise."""

from __future__ import annotations

import argparse
import asyncio
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from console import __version__
from console.commands import note, opened, say
from console.errors import NotRun
from console.exits import Exit
from console.flags import ENV, SWITCH, FlagRow, FlagSchema, read_flags, rows_of, schema_of, shown_value
from console.launch import engine_part, flags_of
from console.masking import MASK, is_secret, mask_json
from console.plain import one_line

_WIDTH, _INDENT, _NAMES = 110, "    ", 9


@dataclass(frozen=True, slots=True)
class Listing:
    """The flags of one engine, and what a deployment makes of them; "" for a tree that is only looked at.

    `running` are those of the process `pid`, by their first names; none where none runs.
    """

    host: str
    schema: FlagSchema
    rows: Sequence[FlagRow]
    engine: str
    deployment: str = ""
    pid: int | None = None
    running: Mapping[str, Any] = field(default_factory=dict)

    def running_of(self, row: FlagRow) -> Any:
        """The value with which it runs; None where it is not on the command line of a running server."""
        return self.running.get(engine_part(self.engine, "options").canonical(row.key.replace("_", "-")))


def run(_: str, args: argparse.Namespace) -> Exit:
    """Run the command."""
    words = list(args.words)
    if args.engine_source:
        words = [args.name, *words] if args.name else words
        listing = _here(args.engine, args.engine_source)
    else:
        listing = asyncio.run(_on_host(args))
    if not listing.schema.flags:
        where = f"on {listing.host}" if listing.host != "local" else "here"
        raise NotRun(f"the flags of {listing.engine} cannot be read {where}: {listing.schema.why}")
    found = [row for row in listing.rows if row.found_by(words) and (row.given or not args.set)]
    if args.json:
        print(json.dumps(_as_json(listing, found), indent=1))
    else:
        for line in _lines(listing, found):
            say(line)
    if not found:
        what = " ".join(words)
        note("no flag is set" if not what else f"no flag has {one_line(what)} in its name or its help")
        return Exit.FINDINGS
    return Exit.OK


def _here(engine: str, source: str) -> Listing:
    """The flags of an engine's unpacked tree on this machine."""
    from checks.errors import CheckError
    from checks.flag_list import answer

    engine_part(engine, "options")  # says which engines are known
    try:
        raw = answer({"task": "flags", "engines": [{"name": engine}], "engine_source": source})
    except CheckError as error:
        raise NotRun(str(error)) from None
    schema = schema_of(json.loads(json.dumps(raw)))  # as it would come from a host
    return Listing("local", schema, [FlagRow(flag.name, known=flag) for flag in schema.flags], engine)


async def _on_host(args: argparse.Namespace) -> Listing:
    async with opened(args) as session:
        seen = await session.status()
        schema, plan = await read_flags(session), session.plan()
        argv = session.server.argv
        return Listing(
            session.host.name,
            schema,
            rows_of(session.deployment, plan, {}, schema),
            session.deployment.server.engine_name,
            session.deployment.name,
            seen.pid if argv else None,
            flags_of(session.deployment, argv) if argv else {},
        )


# -- as text -----------------------------------------------------------------------------------------------------------


def _lines(listing: Listing, rows: Sequence[FlagRow]) -> Iterator[str]:
    schema = listing.schema
    counts = [f"{len(schema.flags)} flags"]
    if listing.deployment:
        given = sum(row.planned is not None and not row.key.startswith(ENV) for row in listing.rows)
        counts.append(f"{given} set by {listing.deployment}")
    if listing.pid is not None:
        differ = sum(row.difference is not None for row in listing.rows)
        counts.append(f"{differ} other than process {listing.pid} runs with")
    yield one_line(f"{schema.label}, {schema.where}: {', '.join(counts)}")
    for row in rows:
        yield ""
        yield from _about(listing, row)


def _about(listing: Listing, row: FlagRow) -> Iterator[str]:
    known = row.known
    takes = "" if known is None or known.type == SWITCH else f" {known.type.upper() or 'VALUE'}"
    more = " ..." if known is not None and known.many else ""
    yield one_line(f"{'' if row.key.startswith(ENV) else '--'}{row.key}{takes}{more}")
    facts = []
    if row.planned is not None:
        facts.append(("set", f"{shown_value(row.key, row.planned)}  ({row.source})"))
    if row.difference is not None:
        facts.append(("runs with", row.difference.running or "nothing: not on its command line"))
    if row.problem:
        facts.append(("refused", row.problem))
    if known is not None:
        default = known.default_words or "none"
        facts.append(("default", default if known.default else "not known"))
        facts.append(("one of", ", ".join(known.choices)))
        facts.append(("also", ", ".join(f"--{name}" for name in known.aliases)))
        facts.append(("", known.help))
    for name, value in facts:
        if value:
            begin = f"{_INDENT}{name:<{_NAMES}} " if name else _INDENT
            rest = " " * len(begin)
            yield from textwrap.wrap(one_line(value), _WIDTH, initial_indent=begin, subsequent_indent=rest)


# -- as JSON -----------------------------------------------------------------------------------------------------------


def _as_json(listing: Listing, rows: Sequence[FlagRow]) -> dict[str, Any]:
    """One object. Of each flag `set` is what the deployment gives, `running` what the server runs with: both null
    where it is absent, true for a bare flag. `default` is as Python writes it, null where the source does not say."""
    schema = listing.schema
    return {
        "schema": 1,
        "console": __version__,
        "host": listing.host,
        "engine": {"name": schema.engine or listing.engine, "version": schema.version, "source": schema.where},
        "pid": listing.pid,
        "flags": [_flag(listing, row) for row in rows if not row.key.startswith(ENV)],
        "env": {row.key.removeprefix(ENV): _value(row.key, row.planned) for row in rows if row.key.startswith(ENV)},
    }


def _flag(listing: Listing, row: FlagRow) -> dict[str, Any]:
    known = row.known
    return {
        "name": known.name if known is not None else row.key.replace("_", "-"),
        "type": known.type or None if known is not None else None,
        "many": known is not None and known.many,
        "default": known.default or None if known is not None else None,
        "choices": list(known.choices) if known is not None else [],
        "aliases": list(known.aliases) if known is not None else [],
        "help": known.help if known is not None else "",
        "set": _value(row.key, row.planned),
        "set_by": row.source or None,
        "running": _value(row.key, listing.running_of(row)),
        "differs": row.difference is not None,
        "refused": row.problem or None,
    }


def _value(key: str, value: Any) -> Any:
    """A value with its own type; secrets masked."""
    if value is None:
        return None
    return MASK if is_secret(key.removeprefix(ENV)) else mask_json(value)
