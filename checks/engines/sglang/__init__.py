"""SGLang: what its log lines, flags, sources and versions mean."""

from __future__ import annotations

from pathlib import Path

from checks.engines.sglang import launch, log
from checks.engines.sglang.layers import POINTER, READS_IDS, TableRule, table_rule
from checks.engines.sglang.probe import Probe, models_folder, probe
from checks.engines.versions import release

NAME = "sglang"
PACKAGE = "sglang"

__all__ = ["NAME", "PACKAGE", "Probe", "launch", "log", "looks_like", "pointers", "probe", "rule_for"]


def rule_for(version: str, architecture: str) -> tuple[TableRule | None, str]:
    """The table's rule for a version ("" = newest known) and a target's architecture, with a note."""
    return table_rule(version, architecture)


def pointers(version: str, architecture: str) -> tuple[str, ...]:
    """Where this version reads the ids in the draft's config, as JSON pointers in order of precedence."""
    asked = release(version)
    return (POINTER,) if not asked or asked in READS_IDS else ()


def looks_like(root: Path) -> bool:
    """Whether a source folder is this engine's: its model files lie where SGLang keeps them."""
    return models_folder(root) is not None
