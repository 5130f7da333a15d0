"""Reading a config.json: untrusted bytes in, a JSON object or a sentence about why not out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from checks.errors import BadConfig, NotRunnable
from checks.regular import open_regular

# A config of a model is some kilobytes; what is larger than this is not one.
MAX_BYTES = 16_000_000
# Deeper than any config is, and shallow enough for whatever walks it. No number of one is past 64 bits.
MAX_DEPTH = 64
MAX_DIGITS = 20


def read_config(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a JSON object and the object.

    Raises BadConfig when it is none, NotRunnable when reading is not permitted.
    """
    raw = read_bytes(path)
    return raw, parse_config(raw, path)


def read_bytes(path: Path) -> bytes:
    """The bytes of a config. Raises NotRunnable when reading is not permitted, BadConfig when it cannot be one."""
    try:
        with open_regular(path) as file:
            raw = file.read(MAX_BYTES + 1)
    except PermissionError:
        raise NotRunnable(f"{path}: not permitted to read it; run as its owner or open its mode") from None
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise BadConfig(f"{path}: larger than {MAX_BYTES // 1_000_000} MB: not a model's config.json")
    return raw


def parse_config(raw: bytes, path: Path) -> dict[str, Any]:
    """The JSON object in `raw`. Raises BadConfig naming the line and column of what is wrong."""
    try:
        config = json.loads(raw.decode("utf-8"), parse_int=_integer)
        _prove_depth(config)
    except UnicodeDecodeError as error:
        raise BadConfig(f"{path}: not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        empty = "it is empty" if not raw.strip() else f"{error.msg} at {where}"
        raise BadConfig(f"{path}: not JSON: {empty}") from None
    except (ValueError, RecursionError) as error:
        raise BadConfig(f"{path}: not usable JSON: {str(error)[:120] or 'nested too deeply'}") from None
    if not isinstance(config, dict):
        raise BadConfig(f"{path}: holds a JSON {type(config).__name__}, not an object")
    return config


def doubled_keys(raw: bytes) -> tuple[str, ...]:
    """The keys that stand twice in one object of a JSON text, sorted; JSON lets them, and every reader takes the last.

    `raw` is what `parse_config` has taken.
    """
    found: set[str] = set()

    def take(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            found.update(name for name, times in Counter(names).items() if times > 1)
        return dict(pairs)

    json.loads(raw.decode("utf-8"), object_pairs_hook=take)
    return tuple(sorted(found))


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"it holds a whole number of {len(text)} digits")
    return int(text)


def _prove_depth(value: object) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {MAX_DEPTH} deep")


def whole(value: object) -> int | None:
    """The value as a positive whole number, or None: JSON's true is none, nor is a float or a text."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
