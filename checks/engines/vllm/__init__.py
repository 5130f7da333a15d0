"""vLLM: what its log lines, sources and versions mean."""

from __future__ import annotations

from pathlib import Path

from checks.engines.vllm import launch, layers, log
from checks.engines.vllm.layers import TableRule, table_rule
from checks.engines.vllm.probe import package_folder, probe

__all__ = ["NAME", "PACKAGE", "launch", "log", "looks_like", "pointers", "probe", "rule_for"]

NAME = "vllm"
PACKAGE = "vllm"


def rule_for(version: str, architecture: str) -> tuple[TableRule | None, str]:
    """The table's rule for a version ("" = newest known), with a note."""
    return table_rule(version, architecture)


def pointers(version: str, architecture: str) -> tuple[str, ...]:
    """Where this version reads the ids in the draft's config, as JSON pointers in order of precedence."""
    return layers.pointers(table_rule(version, architecture)[0])


def looks_like(root: Path) -> bool:
    """Whether a source folder is this engine's."""
    return package_folder(root) is not None
