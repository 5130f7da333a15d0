"""SGLang: what its log lines, flags, sources and versions mean."""

from __future__ import annotations

from checks.engines.parts import parts
from checks.engines.sglang.layers import POINTER, READS_IDS, TableRule, refuses, table_rule
from checks.engines.versions import release

__all__ = ["NAME", "PACKAGE", "TableRule", "pointers", "refuses", "rule_for"]

NAME = "sglang"
PACKAGE = "sglang"

__getattr__ = parts(__name__, "launch", "log", "probe")


def rule_for(version: str, architecture: str) -> tuple[TableRule | None, str]:
    """The table's rule for a version ("" = newest known) and a target's architecture, with a note."""
    return table_rule(version, architecture)


def pointers(version: str, architecture: str) -> tuple[str, ...]:
    """Where this version reads the ids in the draft's config, as JSON pointers in order of precedence."""
    asked = release(version)
    return (POINTER,) if not asked or asked in READS_IDS else ()
