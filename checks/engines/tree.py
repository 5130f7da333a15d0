"""An engine's source as a syntax tree: finding a class, its inherited methods and the classes it is built from.

Nothing here imports or executes what it reads.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

from checks.errors import CheckError

MAX_BYTES = 4 << 20
"""A model file of an engine is far smaller; more is not worth the memory of its tree."""
MAX_FILES = 2000
MAX_BASES = 32

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


class SourceUnknown(CheckError):
    """The source is there and what was looked for could not be read in it; the message names file and line."""


@dataclass(frozen=True)
class ClassSource:
    """A class where it is defined."""

    path: Path
    node: ast.ClassDef

    def where(self, node: ast.AST | None = None) -> str:
        """`file:line` of a node of this class, of the class itself without one."""
        return f"{self.path}:{getattr(node or self.node, 'lineno', 0)}"


@dataclass(frozen=True)
class Method:
    """A method and the class that defines it."""

    owner: ClassSource
    node: Function

    @property
    def where(self) -> str:
        """`file:line` of its `def`."""
        return self.owner.where(self.node)


@dataclass
class ModelTree:
    """The folder of an engine's model files; every file is parsed at most once."""

    folder: Path
    _trees: dict[Path, ast.Module] = field(default_factory=dict)

    def find(self, name: str) -> ClassSource | None:
        """The class `name`, from the file that offers it as its entry class where several define it, else None."""
        defines = re.compile(rb"^class\s+" + re.escape(name.encode()) + rb"\b", re.MULTILINE)
        found: list[ClassSource] = []
        for path in sorted(self.folder.glob("*.py"))[:MAX_FILES]:
            if not _small(path) or not defines.search(path.read_bytes()):
                continue
            tree = self.parse(path)
            node = _class_in(tree, name)
            if node is not None:
                found.append(ClassSource(path, node))
        offered = [item for item in found if name in _entry_classes(self.parse(item.path))]
        return next(iter(offered or found), None)

    def method(self, owner: ClassSource, name: str) -> Method | None:
        """The method as Python would resolve it: the class, then its bases left to right, depth first."""
        for candidate in self.lineage(owner):
            for node in candidate.node.body:
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
                    return Method(candidate, node)
        return None

    def lineage(self, owner: ClassSource) -> list[ClassSource]:
        """The class and its bases that can be found, each once, left to right and depth first, as methods are found."""
        found: list[ClassSource] = []
        pending = [owner]
        while pending and len(found) < MAX_BASES:
            current = pending.pop(0)
            if any(current.node is known.node for known in found):
                continue
            found.append(current)
            named = [self._named(current, base.id) for base in current.node.bases if isinstance(base, ast.Name)]
            pending[:0] = [parent for parent in named if parent is not None]
        return found

    def member_class(self, owner: ClassSource, attribute: str) -> ClassSource | None:
        """The class of `self.attribute`, from its assignment in a method of the class; None when it is not plain.

        Follows `self.x = Name(…)` and `self.x = self._make(…)` with one `return Name(…)`; an assignment of None beside
        it is passed over; two different classes are not decided between.
        """
        for candidate in self.lineage(owner):
            made = self._assigned(candidate, owner, attribute)
            if made:
                place, name = made.popitem()
                return None if made or not name else self._named(place, name)
        return None

    def parse(self, path: Path) -> ast.Module:
        """The tree of a file. Raises SourceUnknown when this python cannot parse it."""
        if path not in self._trees:
            try:
                if not _small(path):
                    raise SourceUnknown(f"{path}: larger than {MAX_BYTES >> 20} MiB, not read")
                self._trees[path] = ast.parse(path.read_bytes(), filename=str(path))
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise SourceUnknown(f"{path}: this python cannot parse it ({error})") from None
            except OSError as error:
                raise SourceUnknown(f"{path}: {error.strerror or error}") from None
        return self._trees[path]

    # -- resolution --------------------------------------------------------------------------------------------

    def _named(self, owner: ClassSource, name: str) -> ClassSource | None:
        """The class a name means in the owner's file: defined there, or imported from a sibling file."""
        tree = self.parse(owner.path)
        node = _class_in(tree, name)
        if node is not None and node is not owner.node:
            return ClassSource(owner.path, node)
        for statement in ast.walk(tree):
            if not isinstance(statement, ast.ImportFrom) or not statement.module:
                continue
            for alias in statement.names:
                if (alias.asname or alias.name) != name:
                    continue
                path = self.folder / (statement.module.rsplit(".", 1)[-1] + ".py")
                if path.is_file():
                    node = _class_in(self.parse(path), alias.name)
                    return ClassSource(path, node) if node is not None else None
        return None

    def _assigned(self, holder: ClassSource, owner: ClassSource, attribute: str) -> dict[ClassSource, str]:
        """The classes assigned to `self.attribute` in `holder`, each with the class whose file gives the name meaning.

        An entry with an empty name stands for anything that is not a plain construction.
        """
        made: dict[ClassSource, str] = {}
        for node in ast.walk(holder.node):
            if isinstance(node, ast.Assign) and any(_is_self(target, attribute) for target in node.targets):
                if isinstance(node.value, ast.Constant) and node.value.value is None:
                    continue
                place, name = self._constructed(node.value, holder, owner)
                made[place] = name if made.get(place, name) == name else ""
        return made

    def _constructed(self, value: ast.AST, holder: ClassSource, owner: ClassSource) -> tuple[ClassSource, str]:
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            return holder, value.func.id
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and _is_name(value.func.value, "self"):
            maker = self.method(owner, value.func.attr)
            returned = [node.value for node in ast.walk(maker.node) if isinstance(node, ast.Return)] if maker else []
            made = returned[0] if len(returned) == 1 else None
            if maker and isinstance(made, ast.Call) and isinstance(made.func, ast.Name):
                return maker.owner, made.func.id
        return holder, ""


def _small(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= MAX_BYTES
    except OSError:
        return False


def _class_in(tree: ast.Module, name: str) -> ast.ClassDef | None:
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return found[-1] if found else None


def _entry_classes(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(_is_name(target, "EntryClass") for target in node.targets):
            names.update(item.id for item in ast.walk(node.value) if isinstance(item, ast.Name))
    return names


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_self(node: ast.AST, attribute: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == attribute and _is_name(node.value, "self")
