"""The parts of Python that vLLM writes its reading of layer ids in, beyond what every engine does.

A draft's config is a record of values; modules are asked by name for members, and for the language model inside.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any

from checks.engines.interpret import Interpreter, Path, RuleRaises, Scope
from checks.engines.tree import ClassSource, Method, ModelTree

MARKS = "_mark_language_model"
LANGUAGE_MODEL = "get_language_model"
INTERFACES = "interfaces.py"
REGISTRY = "registry.py"

_MISSING = object()
_TYPES: Mapping[str, tuple[type, ...]] = {"list": (list,), "tuple": (tuple,), "dict": (), "str": (str,), "int": (int,)}
_TABLE = re.compile(r"_[A-Z_]+_MODELS$")


@dataclass(frozen=True)
class Record:
    """An object of which only these attributes, or a dict of which only these keys, are known to be there."""

    values: Mapping[str, object]


@dataclass
class VllmTree(ModelTree):
    """The folder of vLLM's model files; an architecture is looked up in vLLM's own registry."""

    _registry: dict[str, tuple[str, str]] = field(default_factory=dict)
    _meanings: dict[tuple[File, str, str], ClassSource | None] = field(default_factory=dict)

    def find(self, name: str) -> ClassSource | None:
        """The class that serves an architecture, None when it lies outside this folder or is not registered."""
        if not self.registry():
            return super().find(name)
        module, called = self.registry().get(name, ("", ""))
        path = self.folder / f"{module}.py"
        return self._class(path, called) if module.isidentifier() and path.is_file() else None

    def registry(self) -> Mapping[str, tuple[str, str]]:
        """Architecture -> module and class, as vLLM's own registry has them; empty where it was not found."""
        if not self._registry:
            self._registry.update(self._registered())
        return self._registry

    def has(self, owner: ClassSource, name: str) -> bool:
        """Whether objects of a class have an attribute: a method, a class attribute, or one set in a method."""
        if self.method(owner, name) is not None:
            return True
        return any(
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and node.attr == name
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
            for candidate in self.lineage(owner)
            for node in ast.walk(candidate.node)
        )

    def marked(self, owner: ClassSource) -> str:
        """The one attribute that a multimodal model builds as its language model; "" where it is not one."""
        found = {
            target.attr
            for candidate in self.lineage(owner)
            for block in ast.walk(candidate.node)
            if isinstance(block, ast.With) and any(_calls(item.context_expr, MARKS) for item in block.items)
            for node in ast.walk(block)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Attribute)
        }
        return found.pop() if len(found) == 1 else ""

    def _registered(self) -> dict[str, tuple[str, str]]:
        path = self.folder / REGISTRY
        if not path.is_file():
            return {}
        tables = [
            node.value
            for node in self.parse(path).body
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Dict)
            and any(isinstance(target, ast.Name) and _TABLE.match(target.id) for target in node.targets)
        ]
        found: dict[str, tuple[str, str]] = {}
        for table in tables:
            for key, value in zip(table.keys, table.values):
                names = [item.value for item in (key, *getattr(value, "elts", ())) if isinstance(item, ast.Constant)]
                if len(names) == 3 and all(isinstance(item, str) for item in names):
                    found.setdefault(str(names[0]), (str(names[1]), str(names[2])))
        return found

    def _named(self, owner: ClassSource, name: str) -> ClassSource | None:
        """Looked up once: a model of vLLM has a dozen bases, and each look walks a whole file."""
        key = (owner.path, owner.node.name, name)
        if key not in self._meanings:
            self._meanings[key] = super()._named(owner, name)
        return self._meanings[key]

    def _class(self, path: File, name: str) -> ClassSource | None:
        found = [node for node in self.parse(path).body if isinstance(node, ast.ClassDef) and node.name == name]
        return ClassSource(path, found[-1]) if found else None

    def _constructed(self, value: ast.AST, place: Method, owner: ClassSource) -> ClassSource | None:
        """Also what vLLM builds by the name of an architecture."""
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            given = {item.arg: item.value for item in value.keywords}
            if value.func.id == "init_vllm_registered_model":
                names = given.get("architectures")
                only = names.elts[0] if isinstance(names, ast.List) and len(names.elts) == 1 else None
                return self.find(str(only.value)) if isinstance(only, ast.Constant) else None
            if value.func.id == "initialize_model":
                return self._meant(place.owner, given["model_class"]) if "model_class" in given else None
        return super()._constructed(value, place, owner)


@dataclass
class VllmInterpreter(Interpreter):
    """One evaluation; `config` is what the draft's config.json holds, as far as it matters."""

    config: Record = field(default_factory=lambda: Record({}))

    def scope(self, owner: ClassSource, receiver: ClassSource, path: Path) -> Scope:
        """The scope of one call."""
        return VllmScope(self, owner, receiver, path)

    @property
    def speculation(self) -> Record:
        """vLLM's own record of the launch, down to the draft's config."""
        return Record({"draft_model_config": Record({"hf_config": self.config})})


@dataclass
class VllmScope(Scope):
    """The names of one call in vLLM's source."""

    def _run_import_from(self, node: ast.ImportFrom) -> None:
        """Names that an import gives mean something only where they are on a list here."""

    def _name(self, node: ast.Name) -> object:
        if node.id in ("spec_config", "speculative_config") and isinstance(self.machine, VllmInterpreter):
            return self.machine.speculation
        return super()._name(node)

    def _attribute(self, node: ast.Attribute) -> object:
        base = self.value(node.value)
        if isinstance(base, Record):
            return self._of(node, base, node.attr, _MISSING)
        if node.attr == "speculative_config" and isinstance(self.machine, VllmInterpreter):
            return self.machine.speculation
        return super()._attribute(node)

    def _call(self, node: ast.Call) -> object:
        if isinstance(node.func, ast.Name) and not node.keywords and node.func.id not in self.names:
            if node.func.id == "getattr" and len(node.args) in (2, 3):
                return self._getattr(node)
            if node.func.id == "isinstance" and len(node.args) == 2:
                return self._isinstance(node)
            if node.func.id == "model_parallel_is_initialized" and not node.args:
                return True
        return super()._call(node)

    def _call_method(self, node: ast.Call, func: ast.Attribute) -> object:
        if func.attr == "get" and not node.keywords and len(node.args) in (1, 2):
            base = self.value(func.value)
            name = self.value(node.args[0])
            if isinstance(base, Record) and isinstance(name, str):
                return base.values.get(name, self.value(node.args[1]) if len(node.args) == 2 else None)
        if func.attr == LANGUAGE_MODEL:
            base = self.value(func.value)
            method, receiver = self._resolve(base, func.attr)
            inherited = method is not None and method.owner.path.name == INTERFACES
            if inherited and receiver is not None and isinstance(base, Path):
                return self._language_model(node, base, receiver)
        return super()._call_method(node, func)

    def _language_model(self, node: ast.AST, base: Path, receiver: ClassSource) -> Path:
        tree = self.machine.tree
        marked = tree.marked(receiver) if isinstance(tree, VllmTree) else ""
        if not marked:
            raise self.unknown(node)
        return Path((*base.names, marked))

    def _getattr(self, node: ast.Call) -> object:
        base, name = self.value(node.args[0]), self.value(node.args[1])
        if not isinstance(name, str):
            raise self.unknown(node)
        default = self.value(node.args[2]) if len(node.args) == 3 else _MISSING
        if isinstance(base, Record):
            return self._of(node, base, name, default)
        there = self._has(node, base, name)
        if there and isinstance(base, Path):
            return Path((*base.names, name))
        if default is _MISSING:
            raise RuleRaises(f"AttributeError: no attribute {name!r} ({self.owner.where(node)})")
        return default

    def _has_attribute(self, node: ast.Call, arguments: Any) -> object:
        if len(arguments) == 2 and isinstance(arguments[1], str):
            if isinstance(arguments[0], Record):
                return arguments[1] in arguments[0].values
            return self._has(node, arguments[0], arguments[1])
        raise self.unknown(node)

    def _has(self, node: ast.AST, base: object, name: str) -> bool:
        receiver, tree = self._class_of(base), self.machine.tree
        if receiver is None or not isinstance(tree, VllmTree):
            raise self.unknown(node)
        return tree.has(receiver, name)

    def _isinstance(self, node: ast.Call) -> object:
        base, kinds = self.value(node.args[0]), node.args[1]
        named = [item.id for item in getattr(kinds, "elts", [kinds]) if isinstance(item, ast.Name)]
        if len(named) != len(getattr(kinds, "elts", [kinds])):
            raise self.unknown(node)
        if isinstance(base, Path):
            receiver = self._class_of(base)
            if receiver is None:
                raise self.unknown(node)
            return any(item.node.name in named for item in self.machine.tree.lineage(receiver))
        if not all(name in _TYPES for name in named):
            raise self.unknown(node)
        if isinstance(base, Record):
            return "dict" in named
        return isinstance(base, tuple(kind for name in named for kind in _TYPES[name]))

    def _class_of(self, base: object) -> ClassSource | None:
        """The class of an object of the model, None where it is not built in plain sight."""
        if not isinstance(base, Path):
            return None
        receiver: ClassSource | None = self.receiver
        for part in base.names[len(self.path.names) :]:
            receiver = self.machine.tree.member_class(receiver, part) if receiver is not None else None
        return receiver

    def _of(self, node: ast.AST, record: Record, name: str, default: object) -> object:
        value = record.values.get(name, default)
        if value is _MISSING:
            raise RuleRaises(f"AttributeError: no attribute {name!r} ({self.owner.where(node)})")
        return value

    def _true(self, node: ast.AST, value: object) -> bool:
        return bool(value.values) if isinstance(value, Record) else super()._true(node, value)


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
