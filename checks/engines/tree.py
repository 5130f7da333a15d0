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

        Follows `self.x = Name(…)`, also where the name is a class attribute (`self.body_cls(…)`) or a parameter of the
        constructor that a subclass fills in, and `self.x = self._make(…)` with one `return Name(…)`. An assignment of
        None beside it is passed over; two different classes are not decided between.
        """
        for candidate in self.lineage(owner):
            made = self._assigned(candidate, owner, attribute)
            if made:
                first = made[0]
                same = first is not None and all(item is not None and item.node is first.node for item in made)
                return first if same else None
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

    def _assigned(self, holder: ClassSource, owner: ClassSource, attribute: str) -> list[ClassSource | None]:
        """The classes assigned to `self.attribute` in `holder`, None for what is not a plain construction."""
        made: list[ClassSource | None] = []
        for method in holder.node.body:
            if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for node in ast.walk(method):
                if isinstance(node, ast.Assign) and any(_is_self(target, attribute) for target in node.targets):
                    if isinstance(node.value, ast.Constant) and node.value.value is None:
                        continue
                    made.append(self._constructed(node.value, Method(holder, method), owner))
        return made

    def _constructed(self, value: ast.AST, place: Method, owner: ClassSource) -> ClassSource | None:
        """The class an expression constructs, standing in a method of one of the owner's bases."""
        if not isinstance(value, ast.Call):
            return None
        if isinstance(value.func, ast.Attribute) and _is_name(value.func.value, "self"):
            named = self._class_attribute(owner, value.func.attr)
            if named is not None:
                return self._meant(*named)
            maker = self.method(owner, value.func.attr)
            returned = [node.value for node in ast.walk(maker.node) if isinstance(node, ast.Return)] if maker else []
            made = returned[0] if len(returned) == 1 else None
            return self._meant(maker.owner, made.func) if maker and isinstance(made, ast.Call) else None
        if isinstance(value.func, ast.Name) and value.func.id in _parameters(place.node):
            given = self._argument(owner, place, value.func.id) if place.node.name == "__init__" else None
            return self._meant(*given) if given is not None else None
        return self._meant(place.owner, value.func)

    def _meant(self, place: ClassSource, name: ast.expr) -> ClassSource | None:
        """The class a name or `module.Name` means in the file of `place`."""
        if isinstance(name, ast.Name):
            return self._named(place, name.id)
        if isinstance(name, ast.Attribute) and isinstance(name.value, ast.Name):
            return self._in_module(place, name.value.id, name.attr)
        return None

    def _in_module(self, place: ClassSource, module: str, name: str) -> ClassSource | None:
        for statement in ast.walk(self.parse(place.path)):
            if not isinstance(statement, (ast.Import, ast.ImportFrom)):
                continue
            for alias in statement.names:
                if (alias.asname or alias.name) != module:
                    continue
                path = self.folder / (alias.name.rsplit(".", 1)[-1] + ".py")
                node = _class_in(self.parse(path), name) if path.is_file() else None
                return ClassSource(path, node) if node is not None else None
        return None

    def _class_attribute(self, owner: ClassSource, name: str) -> tuple[ClassSource, ast.expr] | None:
        for candidate in self.lineage(owner):
            for node in candidate.node.body:
                if isinstance(node, ast.Assign) and any(_is_name(target, name) for target in node.targets):
                    return candidate, node.value
        return None

    def _argument(self, owner: ClassSource, place: Method, name: str) -> tuple[ClassSource, ast.expr] | None:
        """What a constructor's parameter is when an `owner` is built: the engine gives configs only, so a class comes
        from the default of the outermost constructor, or from what a subclass passes to `super().__init__`."""
        chain = [made for made in map(self._own_constructor, self.lineage(owner)) if made is not None]
        depth = next((index for index, made in enumerate(chain) if made.node is place.node), None)
        while depth is not None:
            default = _default(chain[depth].node, name)
            if depth == 0:
                return (chain[0].owner, default) if default is not None else None
            caller = chain[depth - 1]
            given = _passed(caller.node, chain[depth].node, name)
            if given is None:
                return (chain[depth].owner, default) if default is not None else None
            if not (isinstance(given, ast.Name) and given.id in _parameters(caller.node)):
                return caller.owner, given
            depth, name = depth - 1, given.id
        return None

    def _own_constructor(self, owner: ClassSource) -> Method | None:
        for node in owner.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return Method(owner, node)
        return None


def _parameters(function: Function) -> list[str]:
    """The names of a method's parameters, without self."""
    return [item.arg for item in (*function.args.posonlyargs, *function.args.args)][1:] + [
        item.arg for item in function.args.kwonlyargs
    ]


def _default(function: Function, name: str) -> ast.expr | None:
    spec = function.args
    names = [item.arg for item in (*spec.posonlyargs, *spec.args)]
    defaults: dict[str, ast.expr | None] = dict(zip(names[::-1], spec.defaults[::-1]))
    defaults.update(zip((item.arg for item in spec.kwonlyargs), spec.kw_defaults))
    return defaults.get(name)


def _passed(caller: Function, called: Function, name: str) -> ast.expr | None:
    """What `super().__init__(…)` in `caller` gives for a parameter of `called`; None when it leaves it out."""
    for node in ast.walk(caller):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__"):
            continue
        if not (isinstance(node.func.value, ast.Call) and _is_name(node.func.value.func, "super")):
            continue
        by_name = next((item.value for item in node.keywords if item.arg == name), None)
        positions = _parameters(called)
        index = positions.index(name) if name in positions else len(node.args)
        return by_name or (node.args[index] if index < len(node.args) else None)
    return None


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


def unguarded_sum(statement: ast.stmt) -> bool:
    """Whether a statement adds the residual without a look at whether there is one: at layer 0 there is none yet."""
    guarded = {id(item) for node in ast.walk(statement) if isinstance(node, ast.IfExp) for item in ast.walk(node)}
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add)
        and id(node) not in guarded
        and any(isinstance(item, ast.Name) and item.id == "residual" for item in (node.left, node.right))
        for node in ast.walk(statement)
    )
