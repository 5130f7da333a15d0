"""Which states a target's loop over its layers keeps for a draft, read from where it asks for them.

A state is asked for either by a test, `index in self.aux_hidden_state_layers`, or by the call
`self._maybe_add_hidden_state(list, index, hidden, residual)`. What counts is whether layer `i` has run by then.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checks.engines.reach import Reach
from checks.engines.tree import ClassSource, SourceUnknown, unguarded_sum
from checks.engines.vllm.scope import VllmTree

LIST = "aux_hidden_state_layers"
ADDER = "_maybe_add_hidden_state"
MEMBERS = ("model", "language_model", "layers")
DEPTH = 4

_STARTS = ("start_layer",)
_ENDS = ("end_layer",)


@dataclass(frozen=True)
class _Asked:
    """A place that asks for a state: the index it asks with, and whether a missing residual is seen to."""

    node: ast.AST
    index: ast.expr
    guarded: bool


def reach_of(tree: VllmTree, model: ClassSource) -> Reach:
    """Whether R_0 and R_n are kept. Raises SourceUnknown where index i is not the state after i layers."""
    walker = _walker(tree, model)
    if walker is None:
        raise SourceUnknown(f"{model.where()}: the loop over the layers that keeps states was not found")
    start: bool | None = False
    end: bool | None = False
    for asked in _asked(walker.node):
        loop = _loop_around(walker.node, asked.node)
        shift = _shift(asked.index, loop)
        if shift is None:
            raise SourceUnknown(f"{walker.where(asked.node)}: the index of a state is not read by the probe")
        if isinstance(shift, str):
            start, end = (start or asked.guarded or None, end) if shift == "start" else (start, True)
            continue
        if shift != _layers_run(walker, loop, asked.node):
            raise SourceUnknown(f"{walker.where(asked.node)}: index i is not the state after i layers")
        if shift == 0:
            start = start or asked.guarded
        else:
            end = True
    return Reach(start, end)


def _walker(tree: VllmTree, model: ClassSource, depth: int = 0) -> ClassSource | None:
    """The class whose loop asks for states: the model's, or a member's that it passes the work to."""
    for candidate in tree.lineage(model):
        if any(True for _ in _asked(candidate.node)):
            return candidate
    if depth == DEPTH:
        return None
    for name in (*MEMBERS, tree.marked(model)):
        member = tree.member_class(model, name) if name else None
        found = _walker(tree, member, depth + 1) if member is not None else None
        if found is not None:
            return found
    return None


def _asked(walker: ast.ClassDef) -> Iterator[_Asked]:
    """The places that ask; the helper that does the asking for others, and setters, are passed over."""
    bodies = [
        item for item in walker.body if getattr(item, "name", "") != ADDER and "set_" not in getattr(item, "name", "")
    ]
    for body in bodies:
        for node in ast.walk(body):
            if isinstance(node, ast.If):
                tested = [item for item in ast.walk(node.test) if _tests(item)]
                for item in tested:
                    assert isinstance(item, ast.Compare)
                    yield _Asked(node, item.left, not any(unguarded_sum(statement) for statement in node.body))
            elif isinstance(node, ast.Call) and _is_self(node.func, ADDER) and len(node.args) == 4:
                yield _Asked(node, node.args[1], True)


def _tests(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Compare)
        and len(node.ops) == 1
        and isinstance(node.ops[0], ast.In)
        and _is_self(node.comparators[0], LIST)
    )


def _loop_around(walker: ast.ClassDef, node: ast.AST) -> ast.For | None:
    """The loop over the layers that a node stands in."""
    return next(
        (
            loop
            for loop in ast.walk(walker)
            if isinstance(loop, ast.For) and any(item is node for item in ast.walk(loop))
        ),
        None,
    )


def _shift(index: ast.expr, loop: ast.For | None) -> int | str | None:
    """What is added to the loop's counter; outside a loop, `start` or `end`; None when it is neither."""
    if loop is None:
        if _is_self(index, *_STARTS) or (isinstance(index, ast.Constant) and index.value == 0):
            return "start"
        return "end" if _is_self(index, *_ENDS) else None
    counter = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
    if not isinstance(counter, ast.Name):
        return None
    if isinstance(index, ast.Name) and index.id == counter.id:
        return 0
    plus_one = isinstance(index, ast.BinOp) and isinstance(index.op, ast.Add)
    if plus_one and isinstance(index, ast.BinOp) and isinstance(index.right, ast.Constant) and index.right.value == 1:
        return 1 if isinstance(index.left, ast.Name) and index.left.id == counter.id else None
    return None


def _layers_run(walker: ClassSource, loop: ast.For | None, node: ast.AST) -> int:
    """How many layers more than the loop's counter have run when a node is reached: 0 or 1."""
    assert loop is not None
    running = [at for at, statement in enumerate(loop.body) if _runs_layer(statement, loop)]
    asking = next(at for at, statement in enumerate(loop.body) if any(item is node for item in ast.walk(statement)))
    if len(running) != 1 or asking == running[0]:
        raise SourceUnknown(f"{walker.where(loop)}: where the loop runs its layer is not read by the probe")
    return int(asking > running[0])


def _runs_layer(statement: ast.stmt, loop: ast.For) -> bool:
    """Whether a statement calls the layer: the loop's variable, or one called so."""
    names: Sequence[ast.expr] = loop.target.elts if isinstance(loop.target, ast.Tuple) else ()
    layers = {name.id for name in names[1:] if isinstance(name, ast.Name)} | {"layer"}
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in layers
        for node in ast.walk(statement)
    )


def _is_self(node: ast.AST, *names: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
