"""The rules of the tree that no linter knows: file lengths, names, words, and who may import what beyond import-linter.

`python -m tests.repo.rules` prints one offence a line and exits 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("console", "remote", "checks")

LONGEST = 500
LONGEST_OF = {"console/app.py": 250}
DRAWERS = {"utils", "util", "helpers", "helper", "manager", "managers", "misc", "common"}

# Words that belong to one machine or one working day, and mean nothing to a reader elsewhere.
FOREIGN = {
    "a path of one machine": r"(?<![\w.$~}/-])/(?:work|root|tmp/v)/|/\.pyenv/versions/",
    "an index other than pip's own": r"extra-index-url\s*=\s*\S*//|file:///opt/|\bpypi-more\b",
    "talk about how the code came to be": (
        r"\bsession stop\b|\bissue [2-4]\b|\bthe brief\b|\b(?:house|contract|screens)\.md\b"
    ),
    "a leftover of an edit": r"\b(?:FIXME|XXX|HACK)\b|^(?:<<<<<<<|>>>>>>>) ",
}
TEXT = {".py", ".md", ".toml", ".tcss", ".json", ".txt", ".sh", ""}

# What each package may import beyond the standard library and itself. A second entry narrows it to single modules.
THIRD_PARTY: dict[str, dict[str, tuple[str, ...]]] = {
    "checks": {
        "numpy": ("checks",),
        "torch": ("checks.caches.torchfile", "checks.reference", "checks.hooks"),
        "safetensors": (),
        "pyarrow": ("checks.caches.arrowfile",),
        "transformers": ("checks.reference",),
    },
    "remote": {"asyncssh": ("remote",)},
}


def python_files(root: Path, *folders: str) -> Iterator[Path]:
    """Every module under the given folders, in a stable order."""
    for folder in folders:
        yield from sorted(path for path in (root / folder).rglob("*.py") if "__pycache__" not in path.parts)


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(module, line) of every absolute import, those by a literal name through importlib included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module, node.lineno
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value
            if called in ("import_module", "__import__") and isinstance(name, str) and not name.startswith("."):
                yield name, node.lineno


def within(module: str, place: str) -> bool:
    """Whether the module is the package named, or inside it."""
    return module == place or module.startswith(place + ".")


def in_standard_library(module: str) -> bool:
    """By its top-level name, as this Python knows it."""
    return module.partition(".")[0] in sys.stdlib_module_names


def standard_library_only(root: Path) -> Iterator[str]:
    """checks and remote stand on the standard library and the few names of THIRD_PARTY."""
    for package, allowed in THIRD_PARTY.items():
        for path in python_files(root, package):
            module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            for name, line in imported(ast.parse(path.read_text("utf-8"))):
                if within(name, package) or in_standard_library(name):
                    continue
                places = allowed.get(name.partition(".")[0], ())
                if not any(within(module, place) for place in places):
                    where = f"only {', '.join(places)} may" if places else f"nothing in {package} may"
                    yield f"{path.relative_to(root)}:{line}: imports {name}; {where}"


def carried_files_stand_alone(root: Path) -> Iterator[str]:
    """What remote sends to a host as text runs there without the rest: the standard library and its own folder."""
    for path in python_files(root, "remote/on_host"):
        for name, line in imported(ast.parse(path.read_text("utf-8"))):
            if not (in_standard_library(name) or within(name, "remote.on_host")):
                yield f"{path.relative_to(root)}:{line}: imports {name}, which the host does not have"


def themes_hold_data(root: Path) -> Iterator[str]:
    """themes holds data files only; the marker that makes it a package may hold its docstring."""
    for path in python_files(root, "themes"):
        body = ast.parse(path.read_text("utf-8")).body
        marker = path.name == "__init__.py" and all(
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body
        )
        if not marker:
            yield f"{path.relative_to(root)}: themes holds data files only"


def packages_are_whole(root: Path) -> Iterator[str]:
    """No import contract sees into a folder without its marker, no type checker into a package without py.typed."""
    for folder in sorted({path.parent for path in python_files(root, *PACKAGES)}):
        if not (folder / "__init__.py").exists():
            yield f"{folder.relative_to(root)}: no __init__.py, so no import contract sees into it"
    for package in PACKAGES:
        if not (root / package / "py.typed").exists():
            yield f"{package}: no py.typed"


def short_files(root: Path) -> Iterator[str]:
    """A file that does not fit in a head is two files."""
    for path in python_files(root, *PACKAGES, "tests"):
        name = path.relative_to(root).as_posix()
        lines = path.read_text("utf-8").count("\n")
        if lines > LONGEST_OF.get(name, LONGEST):
            yield f"{name}: {lines} lines; at most {LONGEST_OF.get(name, LONGEST)}"


def no_drawers(root: Path) -> Iterator[str]:
    """A name that says nothing collects what has no place."""
    for path in python_files(root, *PACKAGES, "tests"):
        for part in path.relative_to(root).with_suffix("").parts:
            if DRAWERS & set(part.lower().split("_")):
                yield f"{path.relative_to(root)}: '{part}' does not say what is in it"


def first_line_says_what(root: Path) -> Iterator[str]:
    """The first line of each module says what it owns, in one sentence that fits the line."""
    for path in python_files(root, *PACKAGES):
        first = path.read_text("utf-8").partition("\n")[0]
        if not re.match(r'r?"""[A-Z`a-z].{8,}', first):
            yield f"{path.relative_to(root)}:1: no docstring on the first line that says what the module owns"


def own_words(root: Path) -> Iterator[str]:
    """The project speaks of itself alone."""
    for path in text_files(root):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            for what, pattern in FOREIGN.items():
                if found := re.search(pattern, line):
                    yield f"{path.relative_to(root)}:{number}: {what}: {found[0]!r}"


def text_files(root: Path) -> Iterator[Path]:
    """What a reader opens. This file is left out: it has to spell the words."""
    here = Path(__file__).resolve().relative_to(ROOT)
    for top in sorted(root.iterdir()):
        if top.name in ("dist", "build") or (top.name.startswith(".") and top.name != ".ci"):
            continue
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            relative = path.relative_to(root)
            generated = "__pycache__" in relative.parts or path.name.endswith(".egg-info")
            if path.is_file() and path.suffix in TEXT and relative != here and not generated:
                yield path


RULES: tuple[Callable[[Path], Iterator[str]], ...] = (
    standard_library_only,
    carried_files_stand_alone,
    themes_hold_data,
    packages_are_whole,
    short_files,
    no_drawers,
    first_line_says_what,
    own_words,
)


def main() -> int:
    """Print every offence of the tree this file stands in."""
    offences = [offence for rule in RULES for offence in rule(ROOT)]
    print("\n".join(offences) or f"{len(RULES)} rules of the tree hold")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
