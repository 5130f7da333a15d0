"""The tree of errors: one root, and a drawing that shows every class where it hangs."""

from __future__ import annotations

import importlib
import pkgutil
import re

import checks
from checks import errors
from checks.errors import CheckError

_ROW = re.compile(r"^((?:[│ ]   )*)[├└]── (\w+)")


def drawn() -> dict[str, str]:
    """Each class of the drawing, and the one it hangs on."""
    path, found = ["CheckError"], {}
    for line in (errors.__doc__ or "").splitlines():
        row = _ROW.match(line)
        if row is not None:
            depth = len(row.group(1)) // 4
            path[depth + 1 :] = [row.group(2)]
            found[row.group(2)] = path[depth]
    return found


def defined(root: type[CheckError]) -> dict[str, str]:
    """Each class below a root, and the one it derives from."""
    found = {}
    for item in root.__subclasses__():
        if item.__module__.startswith("checks."):
            found |= {item.__name__: root.__name__} | defined(item)
    return found


def test_the_drawing_of_the_errors_is_the_tree_that_is_defined() -> None:
    for module in pkgutil.walk_packages(checks.__path__, "checks."):
        if not module.name.endswith("__main__") and ".hooks" not in module.name:
            importlib.import_module(module.name)
    assert drawn() == defined(CheckError)
