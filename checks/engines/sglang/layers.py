"""SGLang's reading of the draft's layer ids, as a table by model family and version: used when no source is at hand.

`layers_to_capture` holds loop indices: at the entry of decoder layer i the residual stream is R_i. The rows say how a
config id becomes a loop index, and which indices the family's loop can reach. Read in the released wheels from
0.4.6.post1 to 0.5.23 (`srt/models/*.py`, method `set_eagle3_layers_to_capture`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from checks.engines.reach import Reach, collect, wrong_ids
from checks.engines.versions import Span, dotted, release, span
from checks.layers import Served

NEWEST = "0.5.23"
"""The newest release the table was read from; a later one is assumed to behave like it, and says so."""

READS_IDS = span("0.4.9")
"""Releases that read the ids at all (0.4.9.post6 is the first inspected); before, defaults always apply."""

POINTER = "/eagle_config/eagle_aux_hidden_state_layer_ids"
"""The only place SGLang reads ids from; a top-level list is ignored for the capture, in every version."""

UNMARKED = "the list is set, but not the flags of the layers that the loop tests: no state is captured"

Mapping = Callable[[Sequence[int], int], Sequence[int]]


def _plus_one(ids: Sequence[int], n: int) -> Sequence[int]:
    return [value + 1 for value in ids]


def _as_is(ids: Sequence[int], n: int) -> Sequence[int]:
    return list(ids)


def _plus_one_if_first_is_1(ids: Sequence[int], n: int) -> Sequence[int]:
    return _plus_one(ids, n) if ids and ids[0] == 1 else _as_is(ids, n)


def _as_is_if_max_is_n(ids: Sequence[int], n: int) -> Sequence[int]:
    return _as_is(ids, n) if ids and max(ids) == n else _plus_one(ids, n)


def _standard(n: int) -> Sequence[int]:
    return [2, n // 2, n - 3]


def _shifted(n: int) -> Sequence[int]:
    return [3, n // 2 + 1, n - 2]


MAPPINGS: dict[str, Mapping] = {
    "id -> k=id+1": _plus_one,
    "first id 1 -> k=id+1, else k=id": _plus_one_if_first_is_1,
    "max id n -> k=id, else k=id+1": _as_is_if_max_is_n,
}
PLUS_ONE, FIRST_IS_1, MAX_IS_N = MAPPINGS

DEFAULTS: dict[str, Callable[[int], Sequence[int]]] = {"2, n//2, n-3": _standard, "3, n//2+1, n-2": _shifted}
STANDARD, SHIFTED = DEFAULTS


_NOT_THE_END = Reach(start=None, end=False)


@dataclass(frozen=True)
class Row:
    """One line of the table: in these releases this family maps ids so, and its loop reaches these indices."""

    family: str
    versions: Span
    mapping: str = PLUS_ONE
    default: str = STANDARD
    reach: Reach = _NOT_THE_END
    note: str = ""
    broken: str = ""


_CRASHES_AT_0 = Reach(start=False, end=False)
_TAKES_0 = Reach(start=True, end=False)
_TAKES_BOTH = Reach(start=True, end=True)
_MARKS = Reach(start=None, end=False, flagged=True)

ROWS: tuple[Row, ...] = (
    Row("llama", span("0.4.6", "0.5.21"), reach=_CRASHES_AT_0),
    Row("llama", span("0.5.22"), reach=_TAKES_0),
    Row("llama4", span("0.4.9", "0.5.20"), reach=_CRASHES_AT_0),
    Row("llama4", span("0.5.21"), reach=_TAKES_0),
    Row("llama4_vl", span("0.4.9", "0.5.20"), reach=_CRASHES_AT_0, note="passes the ids to its language model"),
    Row("llama4_vl", span("0.5.21"), reach=_TAKES_0, note="passes the ids to its language model"),
    Row("qwen3", span("0.4.9")),
    Row("qwen3_moe", span("0.4.9", "0.5.4")),
    Row("qwen3_moe", span("0.5.5"), reach=_MARKS),
    Row("qwen2", span("0.5.2"), reach=_TAKES_0),
    Row("qwen2_moe", span("0.5.2", "0.5.4")),
    Row("qwen2_moe", span("0.5.5"), reach=_MARKS),
    Row("qwen2_5_vl", span("0.5.2"), reach=_TAKES_0, note="captures in the language model of Qwen2"),
    Row("gpt_oss", span("0.5.1", "0.5.16"), reach=_CRASHES_AT_0),
    Row("gpt_oss", span("0.5.17"), MAX_IS_N, reach=_TAKES_BOTH, note="upstream pull request 32334"),
    Row("apertus", span("0.5.3", "0.5.21"), reach=_CRASHES_AT_0),
    Row("apertus", span("0.5.22"), reach=_TAKES_0),
    Row("deepseek_v2", span("0.5.5", "0.5.12"), reach=_CRASHES_AT_0),
    Row("deepseek_v2", span("0.5.13", "0.5.13"), FIRST_IS_1, reach=_CRASHES_AT_0, note="upstream pull request 25454"),
    Row("deepseek_v2", span("0.5.14"), FIRST_IS_1, reach=_TAKES_0, note="upstream pull request 25454"),
    Row("glm4_moe", span("0.5.5", "0.5.20"), reach=_CRASHES_AT_0),
    Row("glm4_moe", span("0.5.21"), reach=_TAKES_0),
    Row("glm4_moe_lite", span("0.5.8", "0.5.12"), reach=_CRASHES_AT_0, note="inherits the setter of deepseek_v2"),
    Row("glm4_moe_lite", span("0.5.13", "0.5.20"), FIRST_IS_1, reach=_CRASHES_AT_0),
    Row("glm4_moe_lite", span("0.5.21"), FIRST_IS_1),
    Row("glm5_next", span("0.5.20"), note="not the rule of deepseek_v2"),
    Row("longcat_flash", span("0.5.6", "0.5.20"), reach=_CRASHES_AT_0),
    Row("longcat_flash", span("0.5.21")),
    Row("minimax_m2", span("0.5.6", "0.5.10"), reach=_CRASHES_AT_0),
    Row("minimax_m2", span("0.5.11")),
    Row("minimax_m3", span("0.5.16", "0.5.17"), broken=UNMARKED),
    Row("minimax_m3", span("0.5.18", "0.5.22")),
    Row("minimax_m3", span("0.5.23"), reach=_TAKES_BOTH),
    Row("minimax_m3_vl", span("0.5.18", "0.5.22"), default=SHIFTED),
    Row("minimax_m3_vl", span("0.5.23"), default=SHIFTED, reach=_TAKES_BOTH),
    Row("bailing_moe", span("0.5.9"), reach=_TAKES_0),
    Row("exaone_moe", span("0.5.9", "0.5.21"), reach=_CRASHES_AT_0),
    Row("exaone_moe", span("0.5.22"), reach=_TAKES_0),
    Row("qwen3_next", span("0.5.9"), reach=_MARKS),
    Row("qwen3_vl", span("0.5.11"), reach=_TAKES_0),
    Row("qwen3_vl_moe", span("0.5.11", "0.5.21"), reach=_TAKES_0),
    Row("qwen3_vl_moe", span("0.5.22"), reach=_MARKS),
    Row("gemma3", span("0.5.12"), reach=_TAKES_BOTH, note="0.5.17 to 0.5.23 capture the MLP's share instead of R_k"),
    Row("gemma4", span("0.5.12"), reach=_TAKES_BOTH),
    Row("qwen3_5", span("0.5.22"), reach=_MARKS),
    Row("qwen3_5_vl", span("0.5.11", "0.5.21"), broken=UNMARKED),
    Row("qwen3_5_vl", span("0.5.22"), reach=_MARKS),
)

# Architecture (config.json "architectures"[0] of the target) -> family: the entry classes of the model files and the
# classes that inherit their setter.
FAMILIES: dict[str, tuple[str, ...]] = {
    "llama": (
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Ministral3ForCausalLM",
        "Phi3ForCausalLM",
        "InternLM3ForCausalLM",
        "IQuestCoderForCausalLM",
        "TeleFLMForCausalLM",
    ),
    "llama4": ("Llama4ForCausalLM",),
    "llama4_vl": ("Llama4ForConditionalGeneration",),
    "qwen3": ("Qwen3ForCausalLM",),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "MellumForCausalLM"),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen2_moe": ("Qwen2MoeForCausalLM",),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration",),
    "gpt_oss": ("GptOssForCausalLM",),
    "apertus": ("ApertusForCausalLM",),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "GlmMoeDsaForCausalLM",
        "MistralLarge3ForCausalLM",
        "KimiK25ForConditionalGeneration",
    ),
    "glm4_moe": ("Glm4MoeForCausalLM",),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM",),
    "glm5_next": ("Glm5NextForConditionalGeneration",),
    "longcat_flash": ("LongcatFlashForCausalLM",),
    "minimax_m2": ("MiniMaxM2ForCausalLM",),
    "minimax_m3": ("MiniMaxM3SparseForCausalLM",),
    "minimax_m3_vl": ("MiniMaxM3SparseForConditionalGeneration",),
    "bailing_moe": (
        "BailingMoEForCausalLM",
        "BailingMoeForCausalLM",
        "BailingMoeV2ForCausalLM",
        "SarvamMoEForCausalLM",
    ),
    "exaone_moe": ("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"),
    "qwen3_next": ("Qwen3NextForCausalLM",),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", "Cosmos3ForConditionalGeneration"),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration", "InternS1ProForConditionalGeneration"),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    "gemma4": ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"),
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
    "qwen3_5_vl": (
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "InternS2MobiusForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
    ),
}

# First inspected release of architectures that came, or got the setter, later than their family.
SINCE: dict[str, str] = {
    "Ministral3ForCausalLM": "0.5.7",
    "IQuestCoderForCausalLM": "0.5.8",
    "TeleFLMForCausalLM": "0.5.6",
    "MellumForCausalLM": "0.5.16",
    "GlmMoeDsaForCausalLM": "0.5.9",
    "MistralLarge3ForCausalLM": "0.5.7",
    "KimiK25ForConditionalGeneration": "0.5.10",
    "ExaoneMoeForCausalLM": "0.5.22",
    "Cosmos3ForConditionalGeneration": "0.5.20",
    "Gemma4UnifiedForConditionalGeneration": "0.5.13",
    "InternS1ProForConditionalGeneration": "0.5.11",
    "InternS2MobiusForConditionalGeneration": "0.5.18",
    "InternS2PreviewForConditionalGeneration": "0.5.11",
    "Qwen4ExpForConditionalGeneration": "0.5.20",
    "SarvamMoEForCausalLM": "0.5.10",
}


@dataclass(frozen=True)
class TableRule:
    """A row of the table as a rule."""

    row: Row
    reads_ids: bool = True

    @property
    def source(self) -> str:
        """The row, in words."""
        rule = self.row.mapping if self.reads_ids else "ids are not read"
        return f"table: sglang {self.row.versions} {self.row.family}, {rule}, default k={self.row.default}"

    def served(self, ids: Sequence[object] | None, n: int) -> Served:
        """The states fed for these ids on a target of n layers. Raises RuleUnknown where the table does not know."""
        if ids is None or not self.reads_ids:
            indices = DEFAULTS[self.row.default](n)
        else:
            wrong = wrong_ids(ids)
            if wrong is not None:
                return wrong
            indices = MAPPINGS[self.row.mapping]([value for value in ids if isinstance(value, int)], n)
        if self.row.broken:
            return Served((), self.row.broken)
        return collect(indices, n, self.row.reach)


def family_of(architecture: str) -> str | None:
    """The family of a target's architecture, None when the table has none."""
    return next((family for family, names in FAMILIES.items() if architecture in names), None)


def table_rule(version: str, architecture: str) -> tuple[TableRule | None, str]:
    """The table's rule for a version and a target's architecture, and a note: why there is none, or what is assumed.

    An empty version means the newest the table knows.
    """
    family = family_of(architecture)
    if family is None:
        return None, (
            f"the table of sglang has no row for {architecture or 'a target of unknown architecture'}; "
            "run the check where the engine is installed, or give its source with --engine-source"
        )
    asked = release(version) or release(NEWEST)
    since = span(SINCE.get(architecture, ""))
    for row in ROWS:
        if row.family == family and asked in row.versions and asked in since:
            notes = [row.note] if row.note else []
            if asked > release(NEWEST):
                notes.append(f"{version} is newer than the table ({NEWEST}): assumed to behave like it")
            return TableRule(row, asked in READS_IDS), "; ".join(notes)
    first = min(row.versions.since or () for row in ROWS if row.family == family)
    first = max(first, since.since or ())
    return None, f"sglang {version} cannot serve EAGLE-3 for {architecture}: support came with {dotted(first)}"


def refuses(version: str, architecture: str) -> str:
    """Why a release ("" = newest) cannot serve EAGLE-3 for this target; empty where it can or that is not known."""
    asked = release(version)
    if family_of(architecture) is None or (asked and asked not in READS_IDS):
        return ""  # between the first release looked into and 0.4.9 not every one was
    rule, note = table_rule(version, architecture)
    return note if rule is None else ""
