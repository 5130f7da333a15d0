"""The trainers' conventions: which states a trainer caches for its ids, and where it writes the ids down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

States = tuple[int, ...]
Default = Callable[[int], States]


def _standard(n: int) -> States:
    return (2, n // 2, n - 3)


def _one_above(n: int) -> States:
    return (3, n // 2 + 1, n - 2)


@dataclass(frozen=True)
class Trainer:
    """One trainer at some versions: `shift` = k - id (None: it has no ids), `default` = the states when none are named.

    `final` says what stands beside the aux states: pre (R_n), post (N), none. `writes`: where it puts the ids in the
    exported config, as a JSON pointer; "" when it does not, so that an engine falls back to its own default.
    """

    name: str
    versions: str
    shift: int | None
    default: Default | None
    final: str
    writes: str
    note: str = ""

    @property
    def label(self) -> str:
        """Name and versions."""
        return f"{self.name} {self.versions}"

    def states(self, ids: tuple[int, ...]) -> States | None:
        """The states for these ids, ascending, as every trainer stores them; None when it takes no ids."""
        return tuple(sorted({value + self.shift for value in ids})) if self.shift is not None else None


_INSIDE = "/eagle_config/eagle_aux_hidden_state_layer_ids"
_TOP = "/eagle_aux_hidden_state_layer_ids"

TRAINERS: tuple[Trainer, ...] = (
    Trainer("EAGLE", "EAGLE-3, official", None, _standard, "none", ""),
    Trainer("SpecForge (transformers)", "2025", 1, _standard, "post", _INSIDE),
    Trainer(
        "SpecForge (SGLang)",
        "all",
        None,
        _standard,
        "post",
        _INSIDE,
        "ids mean what the installed SGLang makes of them",
    ),
    Trainer("speculators", "0.1–0.2", None, _one_above, "post", "", "data format v0, data_{i}.ckpt"),
    Trainer("speculators", "0.3–0.4", 1, _one_above, "pre", "", "data format v1; default ids 2, n//2, n-3, n-1"),
    Trainer("speculators", "0.5 and later", 0, _standard, "pre", _TOP, "hs_{i}.safetensors; the last slot is R_n"),
    Trainer("ModelOpt (hooks, TensorRT-LLM)", "all", 1, _standard, "post", _TOP),
    Trainer("ModelOpt (vLLM)", "all", 0, None, "pre", _TOP),
    Trainer("TorchSpec", "2026", 1, _standard, "post", _TOP),
    Trainer("AngelSlim", "2026", 1, _standard, "post", _TOP),
    Trainer("NeMo Automodel", "2026", 1, _standard, "none", _TOP),
    Trainer("TensorRT-LLM", "all", 1, _standard, "pre", ""),
)


def trainers_with_default(states: States, n: int) -> tuple[Trainer, ...]:
    """The trainers whose default on a target of n layers is exactly these states."""
    return tuple(item for item in TRAINERS if item.default is not None and item.default(n) == tuple(states))
