"""The probe reads a layer rule from an engine's source: shapes as engines write them, and what it will not read."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.engines.interpret import MAX_STEPS
from checks.engines.reach import RuleUnknown
from checks.engines.sglang.probe import ProbedRule, probe
from checks.engines.tree import SourceUnknown

SETTER = """
def set_eagle3_layers_to_capture(self, layer_ids=None):
    if not self.pp_group.is_last_rank:
        return
    self.capture_aux_hidden_states = True
    if layer_ids is None:
        count = self.config.num_hidden_layers
        self.model.layers_to_capture = [2, count // 2, count - 3]
    else:
        self.model.layers_to_capture = [val + 1 for val in layer_ids]
"""
LOOP = """
def forward(self, hidden_states):
    residual = None
    taken = []
    for i in range(self.start_layer, self.end_layer):
        if i in self.layers_to_capture:
            taken.append(hidden_states + residual)
        hidden_states, residual = self.layers[i](hidden_states, residual)
    return hidden_states, taken
"""


def source(setter: str = SETTER, loop: str = LOOP) -> str:
    return "\n".join(
        [
            "import torch",
            "class ToyModel(torch.nn.Module):",
            indent(dedent(loop), "    "),
            "class ToyForCausalLM(torch.nn.Module):",
            "    def __init__(self, config):",
            "        self.model = ToyModel(config)",
            indent(dedent(setter), "    "),
            "EntryClass = ToyForCausalLM",
        ]
    )


def tree(root: Path, **files: str) -> Path:
    folder = root / "srt" / "models"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return root


def rule_of(root: Path, name: str = "ToyForCausalLM") -> ProbedRule:
    found = probe(root, name)
    assert found.rule is not None, found.why
    return found.rule


def states(root: Path, ids: object, n: int = 61, name: str = "ToyForCausalLM") -> tuple[tuple[int, ...], str]:
    served = rule_of(root, name).served(ids, n)  # type: ignore[arg-type]
    return served.states, served.problem or ""


def test_id_plus_one_with_an_unshifted_default(tmp_path: Path) -> None:
    root = tree(tmp_path, toy=source())
    assert states(root, [2, 30, 58]) == ((3, 31, 59), "")
    assert states(root, [58, 2, 30]) == ((3, 31, 59), "")
    assert states(root, None) == ((2, 30, 58), "")


def test_the_source_is_named_by_file_and_line(tmp_path: Path) -> None:
    root = tree(tmp_path, toy=source())
    path, _, line = rule_of(root).source.rpartition(":")
    assert "def set_eagle3_layers_to_capture" in Path(path).read_text().splitlines()[int(line) - 1]


def test_a_patched_rule_is_read_as_patched(tmp_path: Path) -> None:
    root = tree(tmp_path, toy=source(SETTER.replace("[val + 1 for val in layer_ids]", "[val for val in layer_ids]")))
    assert states(root, [2, 30, 58]) == ((2, 30, 58), "")


def test_the_embedding_id_is_slot_0_and_breaks_where_there_is_no_residual_yet(tmp_path: Path) -> None:
    served, problem = states(tree(tmp_path, toy=source()), [-1, 2, 30])
    assert served == (0, 3, 31)
    assert "R_0" in problem


@pytest.mark.parametrize(
    "taken",
    [
        "hidden_states + residual if residual is not None else hidden_states",
        "hidden_states",
    ],
)
def test_the_embedding_id_works_where_the_sum_is_guarded(tmp_path: Path, taken: str) -> None:
    root = tree(tmp_path, toy=source(loop=LOOP.replace("hidden_states + residual", taken)))
    assert states(root, [-1, 2, 30]) == ((0, 3, 31), "")


def test_the_state_after_the_last_layer_is_lost_without_a_branch_for_it(tmp_path: Path) -> None:
    served, problem = states(tree(tmp_path, toy=source()), [2, 30, 60])
    assert served == (3, 31)
    assert "R_61" in problem


def test_the_state_after_the_last_layer_is_captured_with_a_branch_for_it(tmp_path: Path) -> None:
    branch = "    if self.end_layer in self.layers_to_capture:\n        taken.append(hidden_states)\n"
    ends = LOOP.replace("    return hidden_states, taken", f"{branch}    return hidden_states, taken")
    assert states(tree(tmp_path, toy=source(loop=ends)), [2, 30, 60]) == ((3, 31, 61), "")


def test_branches_on_the_first_and_the_largest_id(tmp_path: Path) -> None:
    first = SETTER.replace(
        "        self.model.layers_to_capture = [val + 1 for val in layer_ids]",
        "        if layer_ids and layer_ids[0] == 1:\n"
        "            self.model.layers_to_capture = [val + 1 for val in layer_ids]\n"
        "        else:\n"
        "            self.model.layers_to_capture = list(layer_ids)",
    )
    root = tree(tmp_path, toy=source(first))
    assert states(root, [1, 29, 57])[0] == (2, 30, 58)
    assert states(root, [2, 30, 58])[0] == (2, 30, 58)
    assert states(root, [-1, 2, 30]) == (
        (2, 30),
        "R_-1 is not within R_0 … R_60: 2 of 3 slots are fed, too few for fc",
    )
    largest = first.replace("layer_ids[0] == 1", "max(layer_ids) != self.config.num_hidden_layers")
    root = tree(tmp_path, toy=source(largest))
    assert states(root, [24, 30, 35], 36)[0] == (25, 31)
    assert states(root, [24, 30, 33], 36)[0] == (25, 31, 34)


def test_a_default_that_is_shifted_too(tmp_path: Path) -> None:
    setter = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if layer_ids is None:
            n = self.config.text_config.num_hidden_layers
            layer_ids = [2, n // 2, n - 3]
        self.model.layers_to_capture = [val + 1 for val in layer_ids]
    """
    assert states(tree(tmp_path, toy=source(setter)), None)[0] == (3, 31, 59)


def test_flags_on_layers_are_what_is_captured(tmp_path: Path) -> None:
    setter = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.model.set_eagle3_layers_to_capture([val + 1 for val in layer_ids])
    """
    loop = """
    def set_eagle3_layers_to_capture(self, layers_to_capture):
        self.layers_to_capture = layers_to_capture
        for layer_id in self.layers_to_capture:
            setattr(self.layers[layer_id], "_is_layer_to_capture", True)
    def forward(self, hidden_states):
        for layer in self.layers:
            wanted = getattr(layer, "_is_layer_to_capture", False)
    """
    root = tree(tmp_path, toy=source(setter, loop))
    assert states(root, [1, 5, 8], 12) == ((2, 6, 9), "")
    served, problem = states(root, [1, 5, 11], 12)
    assert served == ()
    assert "IndexError" in problem


def test_strings_are_the_engines_own_type_error(tmp_path: Path) -> None:
    served, problem = states(tree(tmp_path, toy=source()), ["1", "2", "4"])
    assert served == ()
    assert "TypeError" in problem


def test_a_setter_is_inherited_across_files(tmp_path: Path) -> None:
    child = "from engine.srt.models.toy import ToyForCausalLM as Base\nclass ChildForCausalLM(Base):\n    pass\n"
    root = tree(tmp_path, toy=source(), child=child)
    assert states(root, [2, 30, 58], name="ChildForCausalLM")[0] == (3, 31, 59)


def test_a_wrapper_passes_the_ids_to_its_language_model(tmp_path: Path) -> None:
    wrapper = """
from engine.srt.models.toy import ToyForCausalLM
class WrapperForConditionalGeneration:
    def __init__(self, config):
        self.language_model = None
        if config.text:
            self.language_model = ToyForCausalLM(config.text)
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if self.language_model is None or not hasattr(self.language_model, "set_eagle3_layers_to_capture"):
            raise AttributeError("no")
        self.language_model.set_eagle3_layers_to_capture(layer_ids)
"""
    root = tree(tmp_path, toy=source(), wrapper=wrapper)
    assert states(root, [2, 30, 60], name="WrapperForConditionalGeneration")[0] == (3, 31)


FLAGGED = """
def set_eagle3_layers_to_capture(self, layers_to_capture):
    self.layers_to_capture = layers_to_capture
    for layer_id in self.layers_to_capture:
        setattr(self.layers[layer_id], "_is_layer_to_capture", True)
def forward(self, hidden_states):
    for layer in self.layers:
        wanted = getattr(layer, "_is_layer_to_capture", False)
"""
PASSES_ON = """
def set_eagle3_layers_to_capture(self, layer_ids=None):
    taken = [val + 1 for val in layer_ids]
    if hasattr(self.model, "set_eagle3_layers_to_capture"):
        self.model.set_eagle3_layers_to_capture(taken)
    else:
        self.model.layers_to_capture = taken
"""


def multimodal(body: str = "body_cls", keyword: str = "body_cls") -> dict[str, str]:
    """A wrapper that gets the class of its language model as a parameter; a subclass in another file names another."""
    wrapper = f"""
import torch
class PlainModel(torch.nn.Module):
{indent(dedent(LOOP), "    ")}
class PlainForConditionalGeneration(torch.nn.Module):
    def __init__(self, config, quant=None, prefix="", body_cls=PlainModel):
        super().__init__()
        if not config.encoder_only:
            self.model = body_cls(config=config, prefix=prefix)
{indent(dedent(PASSES_ON), "    ")}
EntryClass = PlainForConditionalGeneration
"""
    other = f"""
from engine.srt.models.wrapper import PlainForConditionalGeneration
class OtherModel:
{indent(dedent(FLAGGED), "    ")}
class OtherForConditionalGeneration(PlainForConditionalGeneration):
    def __init__(self, config, quant=None, prefix="", {body}=OtherModel):
        super().__init__(config, quant, prefix, {keyword})
EntryClass = OtherForConditionalGeneration
"""
    return {"wrapper": wrapper, "other": other}


def test_the_language_models_class_may_come_in_as_a_parameter(tmp_path: Path) -> None:
    root = tree(tmp_path, **multimodal())
    assert states(root, [2, 30, 58], name="PlainForConditionalGeneration") == ((3, 31, 59), "")
    assert states(root, [2, 30, 60], name="PlainForConditionalGeneration")[0] == (3, 31)
    assert states(root, [2, 30, 58], name="OtherForConditionalGeneration") == ((3, 31, 59), "")
    served, problem = states(root, [2, 30, 60], name="OtherForConditionalGeneration")
    assert served == ()
    assert "IndexError" in problem


@pytest.mark.parametrize(("body", "keyword"), [("cls", "cls"), ("cls", "body_cls=cls")])
def test_the_parameter_is_followed_by_place_or_by_name(tmp_path: Path, body: str, keyword: str) -> None:
    root = tree(tmp_path, **multimodal(body, keyword))
    assert "IndexError" in states(root, [2, 30, 60], name="OtherForConditionalGeneration")[1]


def test_flags_that_the_setter_forgets_mean_that_nothing_is_captured(tmp_path: Path) -> None:
    files = multimodal()
    files["other"] = files["other"].replace("def set_eagle3_layers_to_capture", "def set_dflash_layers_to_capture")
    served, problem = states(tree(tmp_path, **files), [2, 30, 58], name="OtherForConditionalGeneration")
    assert served == ()
    assert "flags" in problem


def test_the_body_may_be_a_class_attribute_of_another_module(tmp_path: Path) -> None:
    text = f"""
from engine.srt.models import other
class TextForCausalLM:
    body_cls = other.OtherModel
    def __init__(self, config):
        self.model = self.body_cls(config=config)
{indent(dedent(PASSES_ON), "    ")}
"""
    root = tree(tmp_path, **multimodal(), text=text)
    assert states(root, [2, 30, 58], name="TextForCausalLM") == ((3, 31, 59), "")
    assert "IndexError" in states(root, [2, 30, 60], name="TextForCausalLM")[1]


def test_of_two_classes_of_one_name_the_offered_one_is_read(tmp_path: Path) -> None:
    other = source(SETTER.replace("val + 1", "val + 5")).replace("EntryClass = ToyForCausalLM", "EntryClass = None")
    assert states(tree(tmp_path, a_toy=other, toy=source()), [2, 30, 40])[0] == (3, 31, 41)


@pytest.mark.parametrize(
    "expression",
    [
        "[lookup(val) for val in layer_ids]",
        "__import__('os').getcwd()",
        "[val ** val for val in layer_ids]",
        "layer_ids * 10 ** 9",
        "[val.__class__ for val in layer_ids]",
        "(lambda ids: ids)(layer_ids)",
        "torch.tensor(layer_ids)",
        "[open('/etc/passwd')]",
        "layer_ids[::2]",
        "f'{layer_ids}'",
    ],
)
def test_any_other_shape_is_unknown_with_its_line(tmp_path: Path, expression: str) -> None:
    root = tree(tmp_path, toy=source(SETTER.replace("[val + 1 for val in layer_ids]", expression)))
    found = probe(root, "ToyForCausalLM")
    assert found.rule is None
    assert "toy.py:" in found.why


def test_no_source_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    trap = f"open({str(mark)!r}, 'w').close()\n"
    root = tree(tmp_path, toy=trap + source(), __init__=trap)
    assert states(root, [2, 30, 58])[0] == (3, 31, 59)
    assert not mark.exists()


def test_a_rule_that_never_ends_is_cut_off(tmp_path: Path) -> None:
    setter = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        for a in range(4000):
            for b in range(4000):
                layer_ids = [val + 1 for val in layer_ids]
        self.model.layers_to_capture = layer_ids
    """
    found = probe(tree(tmp_path, toy=source(setter)), "ToyForCausalLM")
    assert found.rule is None
    assert str(MAX_STEPS) in found.why


def test_a_rule_that_calls_itself_is_cut_off(tmp_path: Path) -> None:
    setter = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.set_eagle3_layers_to_capture(layer_ids)
    """
    assert probe(tree(tmp_path, toy=source(setter)), "ToyForCausalLM").rule is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class ToyForCausalLM:\n    pass\n", "has no set_eagle3_layers_to_capture"),
        ("class OtherForCausalLM:\n    pass\n", "no class ToyForCausalLM"),
        ("class ToyForCausalLM:\n    def broken(\n", "cannot parse"),
        ("class ToyForCausalLM(\x00):\n", "cannot parse"),
    ],
)
def test_sources_without_a_rule_say_why(tmp_path: Path, text: str, words: str) -> None:
    found = probe(tree(tmp_path, toy=text), "ToyForCausalLM")
    assert found.rule is None
    assert words in found.why


def test_a_folder_without_model_files_is_no_source(tmp_path: Path) -> None:
    assert not probe(tmp_path, "ToyForCausalLM").found


def test_inheritance_in_a_circle_ends(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        a="from x.b import B\nclass A(B):\n    pass\n",
        b="from x.a import A\nclass B(A):\n    pass\n",
    )
    assert probe(root, "A").rule is None


def test_a_setter_that_sets_nothing_for_some_ids_is_unknown_for_them(tmp_path: Path) -> None:
    rule = rule_of(tree(tmp_path, toy=source(SETTER.replace("    else:", "    elif layer_ids[0] != 7:"))))
    assert rule.served([2, 30, 58], 61).states == (3, 31, 59)
    with pytest.raises(RuleUnknown):
        rule.served([7, 30, 58], 61)


def test_a_shape_behind_a_branch_is_unknown_only_where_it_is_reached(tmp_path: Path) -> None:
    setter = SETTER.replace(
        "    else:", "    elif len(layer_ids) == 5:\n        layer_ids = magic(layer_ids)\n    else:"
    )
    rule = rule_of(tree(tmp_path, toy=source(setter)))
    assert rule.served([2, 30, 58], 61).states == (3, 31, 59)
    with pytest.raises(SourceUnknown):
        rule.served([1, 2, 3, 4, 5], 61)


@given(text=st.text(max_size=200))
def test_any_text_as_a_body_gives_an_answer(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = tree(
        tmp_path_factory.mktemp("any"), toy=source(f"def set_eagle3_layers_to_capture(self, ids=None):\n    {text!s}\n")
    )
    found = probe(root, "ToyForCausalLM")
    assert found.rule is not None or found.why


def test_the_embedded_engines_own_rule_is_read() -> None:
    root = Path(__file__).resolve().parents[2] / "console" / "demo" / "engine"
    rule = rule_of(root, "LlamaForCausalLM")
    assert rule.served([2, 6, 9], 14).states == (3, 7, 10)
    assert rule.served([-1, 2, 6], 14) == type(rule.served(None, 14))((0, 3, 7))
    assert rule.served(None, 14).states == (2, 7, 11)
    assert rule.served([2, 6, 13], 14).problem is not None


@pytest.mark.parametrize(
    "body",
    [
        "for _ in range(400):\n    x = [x, x]",
        "y = [2]\nfor _ in range(400):\n    x, y = [x, x], [y, y]\nif x == y:\n    pass",
        "for _ in range(3000):\n    x = [x]\nx = sorted([x, x])",
        "for _ in range(400):\n    x = list(enumerate(x))",
        "x.append(x)",
        "for _ in range(400):\n    x.append([x])",
        "x = [" + "-" * 450 + "1]",
        "x = [1" + " + 1" * 450 + "]",
    ],
)
def test_a_rule_that_builds_what_grows_or_nests_without_end_is_not_read(tmp_path: Path, body: str) -> None:
    setter = "def set_eagle3_layers_to_capture(self, layer_ids=None):\n    x = [1]\n" + indent(
        f"{body}\nself.model.layers_to_capture = x", "    "
    )
    try:
        shown = str(states(tree(tmp_path, toy=source(setter)), [2, 30, 58]))
    except (AssertionError, SourceUnknown, RuleUnknown):
        return
    assert len(shown) < 1000
