"""Answering a request for the launch flags of the engine that runs or is installed, as its own source declares them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any

from checks.engines import engine_module, source_of
from checks.engines.schema import Flag
from checks.engines.tree import SourceUnknown
from checks.errors import NotRunnable
from checks.request import SCHEMA, Request

MOST_FLAGS = 5000
MOST_HELP = 2000
"""Characters of a flag's help: the longest of any release seen is half of that."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of the first engine the request names: of the source given, else of the running server, else of the
    one installed. The version in a request says nothing here: what is there is what will be started.

    `where` is the folder read, "" when none could be, and `why` then says why. Raises NotRunnable for a request
    without an engine, or with one that is not known.
    """
    started = time.monotonic()
    asked = Request.from_json({key: value for key, value in request.items() if key != "task"})
    if not asked.engines:
        raise NotRunnable("a list of flags needs an engine; name one: engine under [server] in the deployment")
    module = engine_module(asked.engines[0])
    found, why = source_of(asked, module)
    flags: list[Flag] = []
    where = ""
    for folder in found.folders if found is not None else ():
        try:
            flags = import_module(f"{module.__name__}.flags").schema(folder)
        except SourceUnknown as error:
            why = str(error)
            continue
        where, why = str(folder), ""
        break
    return {
        "schema": SCHEMA,
        "engine": {"name": module.NAME, "version": found.version if found is not None else ""},
        "where": where,
        "why": why,
        "flags": [{**asdict(flag), "help": flag.help[:MOST_HELP]} for flag in flags[:MOST_FLAGS]],
        "took_s": round(time.monotonic() - started, 4),
    }
