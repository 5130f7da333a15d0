"""The modules of an engine's folder, each imported when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType


def parts(package: str, *names: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of an engine's package, by which its modules of these names are reached.

    A run that is given a version reads no source, and one without a log no lines: importing what does would be a third
    of its time.
    """

    def part(name: str) -> ModuleType:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    return part
