"""The names of vLLM's launch options: what a spelling stands for."""

from __future__ import annotations

from checks.engines.vllm.launch import ALIASES


def canonical(name: str) -> str:
    """The first name of an option as written."""
    return ALIASES.get(name, name)
