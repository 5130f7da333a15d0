"""vLLM's reading of the draft's layer ids, as a table by version.

An id is the boundary k itself (k=id) wherever vLLM reads EAGLE-3 ids at all. What changed is where it reads them, and
which indices the loop reaches. Read in the released wheels from 0.8.5 to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checks.engines.reach import Reach, collect, wrong_ids
from checks.engines.versions import Span, release, span
from checks.layers import Served

NEWEST = "0.33.0"

TOP = "/eagle_aux_hidden_state_layer_ids"
INSIDE = "/eagle_config/eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Row:
    """In these releases ids are read from the first of `reads` that is present; the loop reaches these indices."""

    versions: Span
    reads: tuple[str, ...]
    reach: Reach
    architectures: tuple[str, ...] = ()
    note: str = ""


# Up to 0.16 the tensor is taken before a layer (index 0 has no residual, index n is never met); later after it.
_BEFORE_LAYER = Reach(start=False, end=False)
_AFTER_LAYER = Reach(start=True, end=True)

ROWS: tuple[Row, ...] = (
    Row(span("0.8.5", "0.11.0"), (), _BEFORE_LAYER, note="ids in the config are ignored"),
    Row(span("0.11.1", "0.16"), (TOP,), _BEFORE_LAYER),
    Row(span("0.17", "0.17"), (TOP,), Reach()),
    Row(span("0.18", "0.21"), (TOP,), _AFTER_LAYER),
    # Model runner V2 reads the top level only; which targets it serves by default grew release by release.
    Row(span("0.22", "0.28"), (TOP,), _AFTER_LAYER, ("Qwen3ForCausalLM",), "model runner V2"),
    Row(span("0.23", "0.28"), (TOP,), _AFTER_LAYER, ("LlamaForCausalLM", "MistralForCausalLM"), "model runner V2"),
    Row(span("0.22", "0.28"), (INSIDE, TOP), _AFTER_LAYER, note="model runner V1; V2 reads the top level only"),
    Row(span("0.29"), (TOP,), _AFTER_LAYER, note="model runner V2; V1 would read eagle_config first"),
)


@dataclass(frozen=True)
class TableRule:
    """A row of the table as a rule."""

    row: Row

    @property
    def source(self) -> str:
        """The row, in words."""
        return f"table: vllm {self.row.versions}, k=id, default k=2, n//2, n-3"

    def served(self, ids: Sequence[object] | None, n: int) -> Served:
        """The states fed for these ids on a target of n layers. Raises RuleUnknown where the table does not know."""
        if ids is None or not self.row.reads:
            return collect([2, n // 2, n - 3], n, self.row.reach)
        return wrong_ids(ids) or collect(list(ids), n, self.row.reach)


def table_rule(version: str, architecture: str) -> tuple[TableRule | None, str]:
    """The table's rule for a version and a target's architecture, and a note. An empty version means the newest."""
    asked = release(version) or release(NEWEST)
    for row in ROWS:
        if asked in row.versions and (not row.architectures or architecture in row.architectures):
            notes = [row.note] if row.note else []
            if asked > release(NEWEST):
                notes.append(f"{version} is newer than the table ({NEWEST}): assumed to behave like it")
            return TableRule(row), "; ".join(notes)
    return None, f"the table of vllm has no row for {version}; it begins at 0.8.5"


def pointers(rule: TableRule | None) -> tuple[str, ...]:
    """Where this release reads the ids, in order of precedence."""
    return rule.row.reads if rule is not None else (TOP,)
