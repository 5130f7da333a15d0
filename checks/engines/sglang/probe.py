"""Reads SGLang's layer rule out of its own source, as installed: the setter of the target's model class.

The setter is evaluated over its syntax tree for the ids at hand, never imported and never executed, so a patched build
is read as patched. A shape the interpreter does not know is UNKNOWN, with the line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checks.engines.interpret import CAPTURE_FLAG, CAPTURE_LIST, Captured, Interpreter, RuleRaises
from checks.engines.interpret import Path as Root
from checks.engines.reach import Reach, RuleUnknown, collect
from checks.engines.sglang.layers import UNMARKED
from checks.engines.tree import ClassSource, Method, ModelTree, SourceUnknown, unguarded_sum
from checks.layers import Served

SETTER = "set_eagle3_layers_to_capture"
"""The method of a target model that takes the draft's ids, or None when the config has none."""

# Where the model files lie below a source root: the package itself, an unpacked wheel, a checkout, the embedded engine.
MODEL_FOLDERS = ("srt/models", "sglang/srt/models", "python/sglang/srt/models", "models")

# Ids a rule is tried on before it is believed: the branches seen in the field turn on the first and the largest id.
TRIALS: tuple[tuple[int, tuple[int, ...]], ...] = (
    (61, (1, 29, 57)),
    (61, (2, 30, 58)),
    (12, (2, 6, 11)),
    (12, (2, 6, 12)),
)


@dataclass(frozen=True)
class ProbedRule:
    """The rule as the source states it; `served` evaluates the setter anew for the ids it is given."""

    tree: ModelTree = field(repr=False)
    model: ClassSource
    setter: Method
    reach: Reach

    @property
    def source(self) -> str:
        """`file:line` of the setter."""
        return self.setter.where

    def served(self, ids: Sequence[object] | None, n: int) -> Served:
        """The states fed for these ids on a target of n layers.

        Raises SourceUnknown where the source cannot be evaluated, RuleUnknown where its capture loop cannot.
        """
        value = list(ids) if isinstance(ids, (list, tuple)) else ids
        try:
            captured = self._evaluate(value, n)
        except RuleRaises as error:
            return Served((), f"the server stops at start: {error}")
        if captured.flags is not None:
            return self._flagged(captured, n)
        if self.reach.flagged:
            return Served((), UNMARKED)
        if captured.indices is None:
            raise RuleUnknown(f"{self.source}: sets no list of layers")
        return collect(captured.indices, n, self.reach)

    def _evaluate(self, ids: object, n: int) -> Captured:
        machine = Interpreter(self.tree, n)
        machine.call(self.setter, self.model, Root(), [ids])
        return machine.captured

    def _flagged(self, captured: Captured, n: int) -> Served:
        """Where the loop tests a flag of each layer, the flags are what is captured; the list may add the end."""
        flags = sorted(captured.flags or ())
        asked = [index for index in captured.indices or () if isinstance(index, int)]
        ends = [n] if n in asked and self.reach.end else []
        served = collect([*flags, *ends], n, Reach(self.reach.start, bool(ends)))
        if served.problem is None and len(served.states) < len(asked):
            lost = f"{len(served.states)} of {len(asked)} slots are fed, too few for fc"
            return Served(served.states, lost)
        return served


@dataclass(frozen=True)
class Probe:
    """The outcome of reading a source: a rule, or why there is none.

    `found`: whether model files were there. `refuses`: whether the source shows that its states cannot be taken.
    """

    rule: ProbedRule | None
    why: str = ""
    found: bool = True
    refuses: bool = False


def models_folder(root: Path) -> Path | None:
    """The folder of model files below a source root, None when there is none."""
    return next((folder for name in MODEL_FOLDERS if (folder := root / name).is_dir()), None)


def looks_like(root: Path) -> bool:
    """Whether a source folder is this engine's: its model files lie where SGLang keeps them."""
    return models_folder(root) is not None


def probe(root: Path, architecture: str) -> Probe:
    """Read the rule for a target's architecture below a source root: a package, an unpacked wheel, a checkout."""
    folder = models_folder(root)
    if folder is None:
        return Probe(None, f"{root}: no folder of model files ({', '.join(MODEL_FOLDERS)})", found=False)
    if not architecture.isidentifier():
        return Probe(None, "the target's architecture is not known: give its folder with config.json (--target DIR)")
    tree = ModelTree(folder)
    try:
        return _probe_class(tree, architecture)
    except SourceUnknown as error:
        return Probe(None, str(error))


def _probe_class(tree: ModelTree, architecture: str) -> Probe:
    model = tree.find(architecture)
    if model is None:
        return Probe(
            None, f"{tree.folder}: no class {architecture}; this engine does not know the target's architecture"
        )
    setter = tree.method(model, SETTER)
    if setter is None:
        return Probe(
            None,
            f"{model.where()}: {architecture} has no {SETTER}; this engine cannot feed an EAGLE-3 draft from it",
            refuses=True,
        )
    rule = ProbedRule(tree, model, setter, _reach(tree, model, setter))
    for n, ids in TRIALS:
        try:
            rule.served(list(ids), n)
        except RuleUnknown:
            continue
    return Probe(rule)


# -- what the capture loop reaches -----------------------------------------------------------------------------


def _reach(tree: ModelTree, model: ClassSource, setter: Method) -> Reach:
    """Read from the class that walks the layers whether its loop takes index 0 and index n; None where it cannot be."""
    inner = _walker(tree, model)
    if inner is None:
        return Reach()
    flagged = all(isinstance(test, ast.Call) for test in _tests(inner.node))
    return Reach(_takes_start(inner), _takes_end(inner), flagged)


def _walker(tree: ModelTree, model: ClassSource, depth: int = 0) -> ClassSource | None:
    """The class whose loop tests the capture list or flag: the model class, or a member it passes the work to."""
    for candidate in tree.lineage(model):
        if any(True for _ in _tests(candidate.node)):
            return candidate
    if depth == 4:
        return None
    for name in ("model", "language_model"):
        member = tree.member_class(model, name)
        found = _walker(tree, member, depth + 1) if member is not None else None
        if found is not None:
            return found
    return None


def _tests(walker: ast.ClassDef) -> Iterator[ast.AST]:
    """The tests that decide about capturing: `i in self.layers_to_capture`, or a look at the layer's flag.

    Setters ask such questions too, of the ids rather than of the loop, and are passed over.
    """
    bodies = [item for item in walker.body if not getattr(item, "name", "").startswith("set_")]
    for node in (node for body in bodies for node in ast.walk(body)):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            right = node.comparators[0]
            if isinstance(right, ast.Attribute) and right.attr == CAPTURE_LIST:
                yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            flags = [item for item in node.args if isinstance(item, ast.Constant) and item.value == CAPTURE_FLAG]
            if flags:
                yield node


def _takes_end(walker: ClassSource) -> bool:
    """Whether a test asks for an index that no loop of the class runs over: that is the state after the last layer."""
    looped = {
        name.id
        for node in ast.walk(walker.node)
        if isinstance(node, (ast.For, ast.comprehension))
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }
    return any(
        isinstance(test, ast.Compare) and not (isinstance(test.left, ast.Name) and test.left.id in looped)
        for test in _tests(walker.node)
    )


def _takes_start(walker: ClassSource) -> bool | None:
    """False where the captured value is an unguarded sum with a residual that starts as None; None where unclear."""
    starts_none = any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and node.value.value is None
        and any(isinstance(target, ast.Name) and target.id == "residual" for target in node.targets)
        for node in ast.walk(walker.node)
    )
    bodies = [
        node
        for node in ast.walk(walker.node)
        if isinstance(node, ast.If) and any(test is node.test for test in _tests(walker.node))
    ]
    if not bodies:
        return None
    for body in bodies:
        for statement in body.body:
            if starts_none and unguarded_sum(statement):
                return False
    return True
