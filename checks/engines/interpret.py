"""Evaluates the small part of Python that engines write their layer rules in, over the syntax tree.

No code of the engine runs: every node is looked up in a whitelist here, works on plain integers, lists and strings,
and is counted against a budget. Whatever is not on the list raises SourceUnknown with its file and line; what Python
itself would raise on these values (a string plus one, an index out of range) is the engine's own failure, and is
reported as RuleRaises.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checks.engines.tree import ClassSource, Method, ModelTree, SourceUnknown

MAX_STEPS = 20_000
MAX_ITEMS = 4096
MAX_CALLS = 8
MAX_INNER = 16  # items of a list within a list; what is no deeper takes no time to compare or print

CAPTURE_LIST = "layers_to_capture"
CAPTURE_FLAG = "_is_layer_to_capture"

# Attributes that mean the number of decoder layers, whatever object of the target they are read from.
DEPTH_NAMES = frozenset({"num_hidden_layers", "num_layers", "n_layers", "n_layer"})
# What a rule may ask about the process: a pipeline's last rank is the one that captures; one stage is assumed.
KNOWN_ATTRIBUTES: Mapping[str, object] = {"is_last_rank": True, "world_size": 1}


class RuleRaises(Exception):
    """The engine's own code raises for these ids; the text is what it would say."""


@dataclass(frozen=True)
class Path:
    """An attribute path of the model that has no value here: `self.model` is ("model",)."""

    names: tuple[str, ...] = ()


class Layers(int):
    """The target's decoder layers: as long as n, and equal to n where the source keeps the count under this name."""

    def __len__(self) -> int:
        return int(self)


@dataclass(frozen=True)
class LayerRef:
    """One decoder layer, by index."""

    index: int


@dataclass
class Captured:
    """What a rule leaves behind: the list of loop indices, and the layers it flagged (None = no flag set at all)."""

    indices: list[object] | None = None
    flags: set[int] | None = None


class _Return(Exception):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_CALLS: dict[str, Callable[..., Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "sorted": sorted,
    "reversed": lambda values: list(reversed(values)),
    "max": max,
    "min": min,
    "sum": sum,
    "abs": abs,
    "int": int,
    "len": len,
    "any": any,
    "all": all,
    "range": lambda *ends: list(range(*ends)),
    "enumerate": lambda values: [(index, value) for index, value in enumerate(values)],
}
# Calls without arguments that give an object of the process, which KNOWN_ATTRIBUTES then answers for.
_PROCESS_CALLS = frozenset({"get_pp_group", "get_parallel"})
# What Python raises for wrong ids, and so would the engine.
_RAISED = (TypeError, ValueError, IndexError, ZeroDivisionError)


@dataclass
class Interpreter:
    """One evaluation of a rule for given ids on a target of n layers."""

    tree: ModelTree
    n: int
    captured: Captured = field(default_factory=Captured)
    capture_list: str = CAPTURE_LIST
    _steps: int = 0
    _calls: int = 0

    def call(self, method: Method, receiver: ClassSource, path: Path, arguments: Sequence[object]) -> object:
        """Evaluate a method on an object of class `receiver` found at `path`. Raises SourceUnknown or RuleRaises."""
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise SourceUnknown(f"{method.where}: calls nest deeper than {MAX_CALLS}")
        spec = method.node.args
        names = [argument.arg for argument in spec.posonlyargs + spec.args][1:]
        if isinstance(method.node, ast.AsyncFunctionDef) or spec.vararg or spec.kwarg or len(arguments) > len(names):
            raise SourceUnknown(f"{method.where}: a signature that is not plain")
        scope = self.scope(method.owner, receiver, path)
        defaults = dict(zip(names[::-1], spec.defaults[::-1]))
        for index, name in enumerate(names):
            if index < len(arguments):
                scope.names[name] = arguments[index]
            elif name in defaults:
                scope.names[name] = scope.value(defaults[name])
            else:
                raise RuleRaises(f"TypeError: {method.node.name}() lacks its argument {name!r}")
        try:
            scope.run(method.node.body)
        except _Return as returned:
            return returned.value
        except RecursionError:
            raise SourceUnknown(f"{method.where}: expressions nest too deeply") from None
        return None

    def scope(self, owner: ClassSource, receiver: ClassSource, path: Path) -> Scope:
        """The names of one call; an engine that uses more of Python than others gives a scope of its own."""
        return Scope(self, owner, receiver, path)

    def step(self, place: str) -> None:
        """Count one node against the budget."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise SourceUnknown(f"{place}: more than {MAX_STEPS} steps")


@dataclass
class Scope:
    """The names of one method call."""

    machine: Interpreter
    owner: ClassSource
    receiver: ClassSource
    path: Path
    names: dict[str, object] = field(default_factory=dict)

    # -- statements --------------------------------------------------------------------------------------------

    def run(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.machine.step(self.owner.where(statement))
            handler = getattr(self, _STATEMENTS.get(type(statement), ""), None)
            if handler is None:
                raise self.unknown(statement)
            handler(statement)

    def _run_assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self._store(target, value)

    def _run_ann_assign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._store(node.target, self.value(node.value))

    def _run_aug_assign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            raise self.unknown(node)
        self.names[node.target.id] = self._binary(node, node.op, self._name(node.target), self.value(node.value))

    def _run_if(self, node: ast.If) -> None:
        self.run(node.body if self._truth(node.test) else node.orelse)

    def _run_for(self, node: ast.For) -> None:
        if node.orelse:
            raise self.unknown(node)
        for item in self._items(node.iter):
            self._store(node.target, item)
            self.run(node.body)

    def _run_return(self, node: ast.Return) -> None:
        raise _Return(self.value(node.value) if node.value is not None else None)

    def _run_raise(self, node: ast.Raise) -> None:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        name = raised.id if isinstance(raised, ast.Name) else "an exception"
        raise RuleRaises(f"{name} raised at {self.owner.where(node)}")

    def _run_assert(self, node: ast.Assert) -> None:
        if not self._truth(node.test):
            raise RuleRaises(f"AssertionError at {self.owner.where(node)}")

    def _run_expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.value(node.value)

    def _run_pass(self, node: ast.Pass) -> None:
        return

    def _store(self, target: ast.expr, value: object) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Attribute):
            if target.attr == self.machine.capture_list:
                self.machine.captured.indices = self._list(target, value)
            elif not isinstance(self.value(target.value), Path):
                raise self.unknown(target)
        elif isinstance(target, ast.Tuple) and isinstance(value, (list, tuple)) and len(value) == len(target.elts):
            for element, item in zip(target.elts, value):
                self._store(element, item)
        else:
            raise self.unknown(target)

    # -- expressions -------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> object:
        self.machine.step(self.owner.where(node))
        handler: Callable[[Any], object] | None = getattr(self, _EXPRESSIONS.get(type(node), ""), None)
        if handler is None:
            raise self.unknown(node)
        return handler(node)

    def _constant(self, node: ast.Constant) -> object:
        if node.value is None or isinstance(node.value, (bool, int, str)):
            return node.value
        raise self.unknown(node)

    def _name(self, node: ast.Name) -> object:
        if node.id == "self":
            return self.path
        if node.id in self.names:
            return self.names[node.id]
        raise self.unknown(node)

    def _attribute(self, node: ast.Attribute) -> object:
        base = self.value(node.value)
        if not isinstance(base, Path):
            raise self.unknown(node)
        if node.attr in DEPTH_NAMES:
            return self.machine.n
        if node.attr == "layers":
            return Layers(self.machine.n)
        if node.attr in KNOWN_ATTRIBUTES:
            return KNOWN_ATTRIBUTES[node.attr]
        if node.attr == self.machine.capture_list:
            return list(self.machine.captured.indices or [])
        return Path((*base.names, node.attr))

    def _sequence(self, node: ast.expr) -> object:
        assert isinstance(node, (ast.List, ast.Tuple, ast.Set))
        values = [self.value(element) for element in node.elts]
        return self._bounded(node, tuple(values) if isinstance(node, ast.Tuple) else values)

    def _comprehension(self, node: ast.expr) -> object:
        assert isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp))
        if len(node.generators) != 1 or node.generators[0].is_async:
            raise self.unknown(node)
        generator, kept = node.generators[0], dict(self.names)
        values = []
        for item in self._items(generator.iter):
            self._store(generator.target, item)
            if all(self._truth(test) for test in generator.ifs):
                values.append(self.value(node.elt))
        self.names = kept
        return self._bounded(node, values)

    def _bin_op(self, node: ast.BinOp) -> object:
        return self._binary(node, node.op, self.value(node.left), self.value(node.right))

    def _binary(self, node: ast.AST, kind: ast.operator, left: object, right: object) -> object:
        action = _BINARY.get(type(kind))
        lists = isinstance(left, list) and isinstance(right, list)
        plain = all(isinstance(item, (int, str, list)) or item is None for item in (left, right))
        # Repetition (list * int) could grow without bound; no rule needs it.
        unbounded = isinstance(kind, (ast.Mult, ast.Mod)) and not (isinstance(left, int) and isinstance(right, int))
        if action is None or not plain or unbounded or (lists and not isinstance(kind, ast.Add)):
            raise self.unknown(node)
        return self._bounded(node, self._raised(node, action, left, right))

    def _unary_op(self, node: ast.UnaryOp) -> object:
        if isinstance(node.op, ast.Not):
            return not self._truth(node.operand)
        operand = self.value(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(operand, int):
            return -operand
        raise self.unknown(node)

    def _compare(self, node: ast.Compare) -> object:
        left = self.value(node.left)
        for kind, right_node in zip(node.ops, node.comparators):
            right = self.value(right_node)
            identity = isinstance(kind, (ast.Is, ast.IsNot))
            # An object of the model that has no value here: only "is it None" has an answer, and it is no.
            valueless = isinstance(left, Path) or isinstance(right, Path)
            if valueless and (not identity or (left is not None and right is not None)):
                raise self.unknown(node)
            if not self._raised(node, _COMPARE[type(kind)], left, right):
                return False
            left = right
        return True

    def _bool_op(self, node: ast.BoolOp) -> object:
        value: object = None
        for operand in node.values:
            value = self.value(operand)
            if self._true(operand, value) != isinstance(node.op, ast.And):
                return value
        return value

    def _if_exp(self, node: ast.IfExp) -> object:
        return self.value(node.body if self._truth(node.test) else node.orelse)

    def _subscript(self, node: ast.Subscript) -> object:
        base = self.value(node.value)
        if isinstance(node.slice, ast.Slice):
            ends = [self.value(end) if end is not None else None for end in (node.slice.lower, node.slice.upper)]
            if node.slice.step is not None or not isinstance(base, (list, tuple)):
                raise self.unknown(node)
            return self._raised(node, operator.getitem, base, slice(*ends))
        index = self.value(node.slice)
        if isinstance(base, Layers):
            if not isinstance(index, int) or not -len(base) <= index < len(base):
                raise RuleRaises(f"IndexError: there is no layer {index!r} ({self.owner.where(node)})")
            return LayerRef(index % len(base))
        if isinstance(base, (list, tuple, int)) or base is None:
            return self._raised(node, operator.getitem, base, index)
        raise self.unknown(node)

    def _call(self, node: ast.Call) -> object:
        if isinstance(node.func, ast.Attribute):
            return self._call_method(node, node.func)
        if not isinstance(node.func, ast.Name) or node.keywords or node.func.id in self.names:
            raise self.unknown(node)
        arguments = [self.value(argument) for argument in node.args]
        if node.func.id in _PROCESS_CALLS and not arguments:
            return Path((f"{node.func.id}()",))
        if node.func.id == "setattr":
            return self._set_attribute(node, arguments)
        if node.func.id == "hasattr":
            return self._has_attribute(node, arguments)
        action = _CALLS.get(node.func.id)
        if action is None or any(isinstance(item, Path) for item in arguments):
            raise self.unknown(node)
        if node.func.id == "range" and any(not isinstance(item, int) or abs(item) > MAX_ITEMS for item in arguments):
            raise self.unknown(node)
        return self._bounded(node, self._raised(node, action, *arguments))

    def _call_method(self, node: ast.Call, func: ast.Attribute) -> object:
        if isinstance(func.value, ast.Name) and func.value.id == "logger":
            return None
        base = self.value(func.value)
        if isinstance(base, list) and func.attr in ("append", "copy", "index") and not node.keywords:
            arguments = [self.value(argument) for argument in node.args]
            if func.attr == "append" and any(isinstance(item, list) or _nests(item, 1) for item in arguments):
                raise self.unknown(node)  # a list put into another can still grow, and hold itself
            return self._raised(node, getattr(base, func.attr), *arguments)
        method, receiver = self._resolve(base, func.attr)
        if method is None or receiver is None or not isinstance(base, Path):
            raise self.unknown(node)
        values = [self.value(argument) for argument in node.args]
        values += [self.value(keyword.value) for keyword in node.keywords]
        if len(node.keywords) > 1:
            raise self.unknown(node)
        return self.machine.call(method, receiver, base, values)

    def _resolve(self, base: object, name: str) -> tuple[Method | None, ClassSource | None]:
        """The method of an object of the model: on itself, or on a member built in plain sight (`self.model`)."""
        if not isinstance(base, Path):
            return None, None
        receiver: ClassSource | None = self.receiver
        for part in base.names[len(self.path.names) :]:
            receiver = self.machine.tree.member_class(receiver, part) if receiver is not None else None
        return (self.machine.tree.method(receiver, name), receiver) if receiver is not None else (None, None)

    def _has_attribute(self, node: ast.Call, arguments: Sequence[object]) -> object:
        if len(arguments) != 2 or not isinstance(arguments[0], Path) or not isinstance(arguments[1], str):
            raise self.unknown(node)
        method, receiver = self._resolve(arguments[0], arguments[1])
        if receiver is None:
            raise self.unknown(node)
        return method is not None

    def _set_attribute(self, node: ast.Call, arguments: Sequence[object]) -> object:
        captured = self.machine.captured
        if len(arguments) != 3:
            raise self.unknown(node)
        target, name, value = arguments
        if isinstance(target, LayerRef) and name == CAPTURE_FLAG and isinstance(value, bool):
            captured.flags = captured.flags if captured.flags is not None else set()
            (captured.flags.add if value else captured.flags.discard)(target.index)
        elif isinstance(target, Path) and name == self.machine.capture_list:
            captured.indices = self._list(node, value)
        else:
            raise self.unknown(node)
        return None

    # -- values ------------------------------------------------------------------------------------------------

    def _truth(self, node: ast.expr) -> bool:
        return self._true(node, self.value(node))

    def _true(self, node: ast.AST, value: object) -> bool:
        if isinstance(value, (Path, LayerRef)):
            raise self.unknown(node)
        return bool(value)

    def _items(self, node: ast.expr) -> Sequence[object]:
        value = self.value(node)
        if value is None or (isinstance(value, int) and not isinstance(value, Layers)):
            raise RuleRaises(f"TypeError: {type(value).__name__} is not iterable ({self.owner.where(node)})")
        if isinstance(value, (list, tuple, str)):
            return list(value)
        raise self.unknown(node)

    def _list(self, node: ast.AST, value: object) -> list[object]:
        if not isinstance(value, (list, tuple)):
            raise self.unknown(node)
        return list(value)

    def _bounded(self, node: ast.AST, value: object) -> object:
        value = self._raised(node, sorted, value) if isinstance(value, (set, frozenset)) else value
        large_list = isinstance(value, (list, tuple, str)) and len(value) > MAX_ITEMS
        if large_list or _nests(value, 2) or (isinstance(value, int) and abs(value) > 2**62):
            raise self.unknown(node)
        return value

    def _raised(self, node: ast.AST, action: Callable[..., Any], *values: object) -> Any:
        try:
            return action(*values)
        except _RAISED as error:
            raise RuleRaises(f"{type(error).__name__}: {error} ({self.owner.where(node)})") from None

    def unknown(self, node: ast.AST) -> SourceUnknown:
        return SourceUnknown(f"{self.owner.where(node)}: {type(node).__name__} is not read by the probe")


def _nests(value: object, levels: int) -> bool:
    """Whether sequences stand in it deeper than `levels`, counting itself, or an inner one is long."""
    if not isinstance(value, (list, tuple)):
        return False
    inner = [item for item in value if isinstance(item, (list, tuple))]
    return bool(inner) and (levels < 2 or any(len(item) > MAX_INNER or _nests(item, levels - 1) for item in inner))


_STATEMENTS: dict[type, str] = {
    ast.Assign: "_run_assign",
    ast.AnnAssign: "_run_ann_assign",
    ast.AugAssign: "_run_aug_assign",
    ast.If: "_run_if",
    ast.For: "_run_for",
    ast.Return: "_run_return",
    ast.Raise: "_run_raise",
    ast.Assert: "_run_assert",
    ast.Expr: "_run_expr",
    ast.Pass: "_run_pass",
    ast.ImportFrom: "_run_import_from",
}
_EXPRESSIONS: dict[type, str] = {
    ast.Constant: "_constant",
    ast.Name: "_name",
    ast.Attribute: "_attribute",
    ast.List: "_sequence",
    ast.Tuple: "_sequence",
    ast.Set: "_sequence",
    ast.ListComp: "_comprehension",
    ast.GeneratorExp: "_comprehension",
    ast.SetComp: "_comprehension",
    ast.BinOp: "_bin_op",
    ast.UnaryOp: "_unary_op",
    ast.Compare: "_compare",
    ast.BoolOp: "_bool_op",
    ast.IfExp: "_if_exp",
    ast.Subscript: "_subscript",
    ast.Call: "_call",
}
