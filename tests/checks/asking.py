"""Asking the checks about a draft written for the purpose: one finding, or the findings of a family, by check."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.answer import answer
from tests.checks.files import CONFIG, Array, draft_tensors, write_draft

Found = dict[str, Any]


def config_of(change: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The standard config with some keys changed; "absent" takes one out."""
    return {key: value for key, value in {**CONFIG, **(change or {})}.items() if value != "absent"}


def draft_with(
    folder: Path, change: Mapping[str, Any] | None = None, tensors: Mapping[str, Array | None] | None = None
) -> Path:
    """The standard draft with some keys and tensors changed; None takes a tensor out."""
    held: dict[str, Array | None] = {**draft_tensors(), **(tensors or {})}
    return write_draft(folder, config_of(change), {name: value for name, value in held.items() if value is not None})


def draft_of(folder: Path, change: Mapping[str, Any] | None = None) -> Path:
    """The standard config, changed, without weights."""
    return write_draft(folder, config_of(change), {})


def ask(
    check: str,
    draft: Path | None = None,
    target: Path | None = None,
    engine: str | Sequence[str] = (),
    args: str = "",
    **more: Any,
) -> Found:
    """The one finding of a check."""
    (found,) = ask_all(check, draft, target, engine, args, **more)
    return found


def ask_all(
    only: str | Sequence[str],
    draft: Path | None = None,
    target: Path | None = None,
    engine: str | Sequence[str] = (),
    args: str = "",
    **more: Any,
) -> list[Found]:
    """Every finding of some checks or families."""
    named = [engine] if isinstance(engine, str) else list(engine)
    request = {
        "draft": str(draft or ""),
        "target": str(target or ""),
        "engines": [dict(zip(("name", "version"), item.partition("==")[::2])) for item in named],
        "args": shlex.split(args),
        "only": [only] if isinstance(only, str) else list(only),
        **more,
    }
    return [dict(item) for item in answer(request, lambda event: None)["findings"]]


def loud(found: Sequence[Found]) -> dict[str, str]:
    """The checks that WARN or FAIL, by id; `internal` too."""
    return {item["check"]: item["verdict"] for item in found if item["verdict"] in ("WARN", "FAIL") or _bug(item)}


def _bug(item: Found) -> bool:
    return bool(item["check"] == "internal")
