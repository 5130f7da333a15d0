"""vLLM: what its log lines, sources and versions mean."""

from __future__ import annotations

from checks.engines.parts import parts
from checks.engines.vllm import layers
from checks.engines.vllm.layers import TableRule, refuses, table_rule

__all__ = ["NAME", "PACKAGE", "TableRule", "pointers", "refuses", "rule_for"]

NAME = "vllm"
PACKAGE = "vllm"

__getattr__ = parts(__name__, "launch", "log", "probe")


def rule_for(version: str, architecture: str) -> tuple[TableRule | None, str]:
    """The table's rule for a version ("" = newest known), with a note."""
    return table_rule(version, architecture)


def pointers(version: str, architecture: str) -> tuple[str, ...]:
    """Where this version reads the ids in the draft's config, as JSON pointers in order of precedence."""
    return layers.pointers(table_rule(version, architecture)[0])
