"""Themes as data: reads themes/NAME.toml, those shipped and then the user's own."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

DEFAULT = "night"


def read_themes(own: Path | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and values of every theme shipped, then of every readable one in the user's folder."""
    for item in sorted(files("themes").iterdir(), key=lambda item: item.name):
        if item.name.endswith(".toml"):
            yield item.name.removesuffix(".toml"), tomllib.loads(item.read_text())
    for path in sorted(own.glob("*.toml")) if own and own.is_dir() else ():
        try:
            yield path.stem, tomllib.loads(path.read_text())
        except (OSError, ValueError):
            continue  # a broken theme of the user's must not keep the app from opening
