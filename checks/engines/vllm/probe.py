"""Reads vLLM's layer rule out of its own source, as installed: where the model runner looks for ids in the draft's
config, what the target's class does with them, and which states its loop over the layers keeps.

All three are evaluated over the syntax tree, never imported and never executed. What is not understood is UNKNOWN, with
its file and line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checks.engines.interpret import Path as Root
from checks.engines.interpret import RuleRaises
from checks.engines.reach import Reach, RuleUnknown, collect, wrong_ids
from checks.engines.tree import ClassSource, Method, SourceUnknown
from checks.engines.vllm.kept import reach_of
from checks.engines.vllm.runner import Runner, runner_of
from checks.engines.vllm.scope import VllmInterpreter, VllmTree
from checks.layers import Served

MODELS = "model_executor/models"
PACKAGE_FOLDERS = ("", "vllm")

SETTER = "set_aux_hidden_state_layers"
CAPTURE_LIST = "aux_hidden_state_layers"

TRIALS: tuple[tuple[int, tuple[int, ...]], ...] = ((61, (2, 30, 58)), (12, (1, 6, 11)), (12, (2, 6, 12)))
"""Ids a rule is tried on before it is believed."""


@dataclass(frozen=True)
class ProbedRule:
    """The rule as the source states it; `served` evaluates it anew for the ids it is given."""

    tree: VllmTree = field(repr=False)
    model: ClassSource
    setter: Method
    default: Method
    reach: Reach
    runner: Runner

    @property
    def source(self) -> str:
        """`file:line` of the setter, and of what reads the config."""
        return f"{self.setter.where}, ids from {self.runner.where}"

    @property
    def reads(self) -> tuple[str, ...]:
        """Where ids are looked for in the draft's config, in order of precedence."""
        return self.runner.reads

    @property
    def note(self) -> str:
        """What else decides about the places that are read."""
        return self.runner.note

    def served(self, ids: Sequence[object] | None, n: int) -> Served:
        """The states fed for these ids, standing where the runner looks first, on a target of n layers.

        Raises SourceUnknown where the source cannot be evaluated, RuleUnknown where its loop cannot.
        """
        wrong = wrong_ids(ids) if ids is not None and not isinstance(ids, (list, tuple)) else None
        if wrong is not None:
            return wrong
        try:
            chosen = self.runner.chosen(list(ids) if ids is not None else None)
            indices = self._kept(chosen, n)
        except RuleRaises as error:
            return Served((), f"the server stops at start: {error}")
        served = collect(indices, n, self.reach)
        if chosen and served.problem is None and len(served.states) < len(chosen):
            # The class may have dropped repetitions before the loop could.
            few = f"duplicates collapse: {len(served.states)} of {len(chosen)} slots are fed, too few for fc"
            return Served(served.states, few)
        return served

    def _kept(self, chosen: Sequence[object] | None, n: int) -> list[object]:
        """What the target's class keeps of the ids chosen, or of its own default where there are none."""
        machine = VllmInterpreter(self.tree, n, capture_list=CAPTURE_LIST)
        if not chosen:
            given = machine.call(self.default, self.model, Root(), [])
            if not isinstance(given, (list, tuple)):
                raise SourceUnknown(f"{self.default.where}: gives no list of layers")
            chosen = given
        machine.call(self.setter, self.model, Root(), [tuple(chosen)])
        if machine.captured.indices is None:
            raise RuleUnknown(f"{self.setter.where}: sets no list of layers")
        return machine.captured.indices


@dataclass(frozen=True)
class Probe:
    """The outcome of reading a source: a rule, or why there is none.

    `found`: whether model files were there. `refuses`: whether the source shows that its states cannot be taken.
    """

    rule: ProbedRule | None
    why: str = ""
    found: bool = True
    refuses: bool = False


def package_folder(root: Path) -> Path | None:
    """The folder of the package below a source root: itself, an unpacked wheel, a checkout; None when it is not."""
    return next((folder for name in PACKAGE_FOLDERS if ((folder := root / name) / MODELS).is_dir()), None)


def looks_like(root: Path) -> bool:
    """Whether a source folder is this engine's."""
    return package_folder(root) is not None


def probe(root: Path, architecture: str) -> Probe:
    """Read the rule for a target's architecture below a source root."""
    package = package_folder(root)
    if package is None:
        return Probe(None, f"{root}: no folder {MODELS}", found=False)
    if not architecture.isidentifier():
        return Probe(None, "the target's architecture is not known: give its folder with config.json (--target DIR)")
    return Prober(package).probe(architecture)


class Prober:
    """One package, whose files are parsed once however many targets are asked for."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.tree = VllmTree(package / MODELS)

    def architectures(self) -> list[str]:
        """Every architecture of the registry."""
        return sorted(self.tree.registry())

    def probe(self, architecture: str) -> Probe:
        """The rule for one target's architecture."""
        try:
            return self._probe(architecture)
        except SourceUnknown as error:
            return Probe(None, str(error))

    def serves(self, architecture: str) -> bool:
        """Whether the target's class takes ids at all."""
        model = self.tree.find(architecture)
        return model is not None and self.tree.method(model, SETTER) is not None

    def _probe(self, architecture: str) -> Probe:
        tree = self.tree
        model = tree.find(architecture)
        if model is None:
            module = tree.registry().get(architecture, ("", ""))[0]
            why = f"the class of {architecture} is in {module}" if module else f"no class {architecture}"
            return Probe(None, f"{tree.folder}: {why}; a capture from the engine decides")
        setter = tree.method(model, SETTER)
        if setter is None:
            why = f"{architecture} has no {SETTER}; this engine cannot feed an EAGLE-3 draft from it"
            return Probe(None, f"{model.where()}: {why}", refuses=True)
        runner = runner_of(self.package, tree, architecture)
        default = tree.method(model, runner.default)
        if default is None:
            return Probe(None, f"{model.where()}: {architecture} has no {runner.default}, which the runner asks")
        rule = ProbedRule(tree, model, setter, default, reach_of(tree, model), runner)
        for n, ids in TRIALS:
            try:
                rule.served(list(ids), n)
                rule.served(None, n)
            except RuleUnknown:
                continue
        return Probe(rule)
