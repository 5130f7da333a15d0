"""vLLM's reading of the draft's layer ids, as a table by version.

An id is the boundary k itself (k=id) wherever vLLM reads EAGLE-3 ids at all. What changed is where it reads them, and
which indices the loop reaches. Read in the released wheels from 0.8.5 to 0.33.0; target by target, by the
probe, in those of 0.11.2, 0.24.0, 0.32.0 and 0.33.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checks.engines.reach import Reach, collect, wrong_ids
from checks.engines.versions import Release, Span, release, span
from checks.layers import Served

NEWEST = "0.33.0"

KEY = "eagle_aux_hidden_state_layer_ids"
TOP = f"/{KEY}"
INSIDE = f"/eagle_config/{KEY}"


@dataclass(frozen=True)
class Row:
    """In these releases ids are read from the first of `reads` that is present."""

    versions: Span
    reads: tuple[str, ...]
    architectures: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Loop:
    """In these releases the loop over the layers of these targets reaches these indices."""

    versions: Span
    reach: Reach
    architectures: tuple[str, ...] = ()


_V2 = "model runner V2; V1 looks into eagle_config too, where the top level has none"
_V1 = "model runner V1; V2 reads the top level only"

ROWS: tuple[Row, ...] = (
    Row(span("0.8.5", "0.11.0"), (), note="ids in the config are ignored"),
    Row(span("0.11.1", "0.21"), (TOP,)),
    # Model runner V2 reads the top level only; which targets it serves by default grew release by release.
    Row(span("0.22", "0.28"), (TOP,), ("Qwen3ForCausalLM",), _V2),
    Row(span("0.23", "0.28"), (TOP,), ("LlamaForCausalLM", "MistralForCausalLM"), _V2),
    Row(span("0.24", "0.28"), (TOP,), ("DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM"), _V2),
    Row(span("0.22", "0.28"), (TOP, INSIDE), note=_V1),
    # A build without Triton, as the one for CPUs, is served by V1 in these releases too.
    Row(span("0.29"), (TOP,), note=_V2),
)

DEEPSEEK = (
    "DeepseekForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "KimiK25ForConditionalGeneration",
    "MistralLarge3ForCausalLM",
)
# Of the same class at first; later the platform chooses among several.
SPARSE = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
_GUARDED = ("GptOssForCausalLM", "Qwen3MoeForCausalLM", "MiniCPMForCausalLM", "MiniCPM3ForCausalLM")
# Taken before a layer: index 0 has no residual yet, which some targets see to; index n is never met.
_BEFORE_LAYER = Reach(start=False, end=False)
_AFTER_LAYER = Reach(start=True, end=True)

LOOPS: tuple[Loop, ...] = (
    Loop(span("0.8.5", "0.16"), Reach(start=None, end=False), _GUARDED),
    Loop(span("0.8.5", "0.16"), _BEFORE_LAYER),
    Loop(span("0.17", "0.17"), Reach()),
    # The family of DeepSeek stays with the test before a layer; a branch for index n came between 0.25 and 0.32.
    Loop(span("0.18", "0.24"), _BEFORE_LAYER, DEEPSEEK + SPARSE),
    Loop(span("0.25", "0.31"), Reach(start=False, end=None), DEEPSEEK),
    Loop(span("0.32"), Reach(start=False, end=True), DEEPSEEK),
    Loop(span("0.25"), Reach(), SPARSE),
    Loop(span("0.18"), _AFTER_LAYER),
)


@dataclass(frozen=True)
class Late:
    """Targets whose states no release up to `until` takes; `since`: the first one looked into that does ("" = none)."""

    until: str
    since: str
    architectures: tuple[str, ...]


# By the interface that the class of the target has or inherits, and up to 0.11.2 by the model types that the config of
# speculation admits. 0.12 to 0.21 were not looked into.
LATE: tuple[Late, ...] = (
    Late("0.10.0", "0.10.1", ("Qwen3ForCausalLM", "Llama4ForCausalLM")),
    Late("0.10.1", "0.10.2", ("Qwen2ForCausalLM",)),
    Late("0.10.2", "0.11.0", ("GptOssForCausalLM", "MiniCPMForCausalLM", "MiniCPM3ForCausalLM")),
    Late(
        "0.11.0",
        "0.11.1",
        ("Llama4ForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "Qwen3MoeForCausalLM"),
    ),
    Late(
        "0.11.2",
        "0.22",
        (
            *DEEPSEEK,
            *SPARSE,
            "AfmoeForCausalLM",
            "ApertusForCausalLM",
            "ArceeForCausalLM",
            "Gemma4ForCausalLM",
            "Gemma4ForConditionalGeneration",
            "HunYuanDenseV1ForCausalLM",
            "HunYuanMoEV1ForCausalLM",
            "LlavaForConditionalGeneration",
            "MiniMaxM2ForCausalLM",
            "Ministral3ForCausalLM",
            "Mistral3ForConditionalGeneration",
            "MistralForCausalLM",
            "NemotronHForCausalLM",
            "Phi3ForCausalLM",
            "PixtralForConditionalGeneration",
            "Qwen3VLForConditionalGeneration",
            "Qwen3VLMoeForConditionalGeneration",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForConditionalGeneration",
        ),
    ),
    Late(
        "0.23",
        "0.24",
        ("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration", "Qwen3NextForCausalLM"),
    ),
    Late("0.24", "0.25.1", ("DeepseekV4ForCausalLM", "MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM")),
    Late("0.25", "0.26", ("Olmo2ForCausalLM", "OlmoForCausalLM")),
    Late("0.26", "0.27.1", ("KimiK3ForConditionalGeneration", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM")),
    Late("0.27", "0.28", ("KimiLinearForCausalLM",)),
    Late("0.28", "0.29", ("Olmo3ForCausalLM", "FlexOlmoForCausalLM", "Qwen3OmniMoeForConditionalGeneration")),
    Late("0.30", "0.31", ("Cohere2MoeForCausalLM",)),
    Late("0.31", "0.32", ("GraniteForCausalLM", "SeedOssForCausalLM", "PhiForCausalLM")),
    Late("0.32", "0.33", ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM")),
    Late(
        NEWEST,
        "",
        (
            "BailingMoeForCausalLM",
            "BailingMoeV2ForCausalLM",
            "Cohere2ForCausalLM",
            "CohereForCausalLM",
            "Ernie4_5_MoeForCausalLM",
            "Exaone4ForCausalLM",
            "ExaoneForCausalLM",
            "ExaoneMoeForCausalLM",
            "Gemma2ForCausalLM",
            "Gemma3ForCausalLM",
            "Gemma3ForConditionalGeneration",
            "GemmaForCausalLM",
            "Glm4ForCausalLM",
            "Glm4MoeForCausalLM",
            "Glm4MoeLiteForCausalLM",
            "Glm4vForConditionalGeneration",
            "Glm4vMoeForConditionalGeneration",
            "KimiVLForConditionalGeneration",
            "LongcatFlashForCausalLM",
            "MixtralForCausalLM",
            "PhiMoEForCausalLM",
            "Qwen2MoeForCausalLM",
            "Qwen2VLForConditionalGeneration",
            "Qwen4ExpForCausalLM",
            "SarvamMoEForCausalLM",
            "Step3p5ForCausalLM",
            "Step5ForCausalLM",
        ),
    ),
)


def refuses(version: str, architecture: str) -> str:
    """Why a release ("" = newest) cannot serve EAGLE-3 for this target; empty where it can or that is not known."""
    asked = release(version) or release(NEWEST)
    late = next((item for item in LATE if architecture in item.architectures), None)
    # Before 0.8.5 nothing was looked into.
    if late is None or asked not in span("0.8.5", late.until):
        return ""
    came = f"{late.since} can" if late.since else f"no release up to {NEWEST} can"
    return f"vllm {version or NEWEST} cannot serve EAGLE-3 for {architecture}, whose states it does not take; {came}"


@dataclass(frozen=True)
class TableRule:
    """A row of the table, and of that of loops, as a rule."""

    row: Row
    reach: Reach

    @property
    def source(self) -> str:
        """The row, in words."""
        return f"table: vllm {self.row.versions}, k=id, default k=2, n//2, n-3"

    def served(self, ids: Sequence[object] | None, n: int) -> Served:
        """The states fed for these ids on a target of n layers. Raises RuleUnknown where the table does not know.

        An empty list counts as none.
        """
        if ids is None or not self.row.reads or (isinstance(ids, (list, tuple)) and not ids):
            return collect([2, n // 2, n - 3], n, self.reach)
        return wrong_ids(ids) or collect(list(ids), n, self.reach)


def table_rule(version: str, architecture: str) -> tuple[TableRule | None, str]:
    """The table's rule for a version and a target's architecture, and a note. An empty version means the newest."""
    asked = release(version) or release(NEWEST)
    row = next((row for row in ROWS if _holds(row, asked, architecture)), None)
    loop = next((loop for loop in LOOPS if _holds(loop, asked, architecture)), None)
    if row is not None and loop is not None:
        notes = [row.note] if row.note else []
        if asked > release(NEWEST):
            notes.append(f"{version} is newer than the table ({NEWEST}): assumed to behave like it")
        return TableRule(row, loop.reach), "; ".join(notes)
    return None, f"the table of vllm has no row for {version}; it begins at 0.8.5"


def _holds(item: Row | Loop, asked: Release, architecture: str) -> bool:
    return asked in item.versions and (not item.architectures or architecture in item.architectures)


def pointers(rule: TableRule | None) -> tuple[str, ...]:
    """Where this release reads the ids, in order of precedence."""
    return rule.row.reads if rule is not None else (TOP,)
