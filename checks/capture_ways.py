"""The ways to take what a draft is fed from an engine of a version, and what each asks of its command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Union

from checks.engines.versions import Span, dotted, release, span
from checks.errors import CaptureFailed

Value = Union[str, bool]

STATES, HOOK, AUX = "states", "hook", "aux"

WIDE = 2048
"""A target's width from which texts would have to be cut short for their states to travel as text."""
_NORMED = ("fc_norm", "use_aux_norm", "norm_before_fc")


@dataclass(frozen=True)
class Way:
    """One way. `since`: the releases that offer it. `flags` are added to the command, `drops` taken out of it.

    `satisfied`: a server started with any of these flags needs no restart.
    """

    name: str
    what: str
    since: Span
    flags: Mapping[str, Value] = field(default_factory=dict)
    drops: tuple[str, ...] = ()
    satisfied: tuple[str, ...] = ()


# SGLang's wheels, 0.4.6.post1 to 0.5.23. The engine's own dumper (DUMPER_*, 0.5.10) is not used: it shows the same
# input of `fc` as the hook does and writes thousands of files for it. Its tensor dump ends the scheduler under EAGLE-3.
WAYS: tuple[Way, ...] = (
    Way(
        STATES,
        "return_hidden_states: a one-token request gives the states side by side, as the draft gets them",
        span("0.4.7"),
        {"enable-return-hidden-states": True},
        satisfied=("enable-return-hidden-states", "return-hidden-states-mode"),
    ),
    Way(
        AUX,
        "a target served without its draft gives the states that the draft would get",
        span("0.5.23"),
        {"enable-return-aux-hidden-states": True, "speculative-algorithm": "EAGLE3"},
        drops=(
            "speculative-draft-model-path",
            "speculative-num-steps",
            "speculative-eagle-topk",
            "speculative-num-draft-tokens",
        ),
        satisfied=("enable-return-aux-hidden-states",),
    ),
    Way(
        HOOK,
        "a hook inside the engine writes the live input of the draft's `fc` to files on the host",
        span("0.5.6"),
    ),
)
_WITHOUT_FLAG = span("", "0.4.6")
"""Releases that return hidden states to whoever asks."""


def way_for(
    name: str, version: str, flags: Mapping[str, object], config: Mapping[str, Any] = MappingProxyType({})
) -> Way:
    """The way named, or with "" the one for a server of this version and these flags; an unknown version counts as new.

    `config` is the draft's. Raises CaptureFailed when the version does not offer the way, or the flags already use what
    it needs.
    """
    numbers = release(version)
    way = next(item for item in WAYS if item.name == (name or _best(numbers, flags, config)))
    if way.name == STATES and numbers and numbers in _WITHOUT_FLAG:
        return Way(way.name, way.what, _WITHOUT_FLAG)
    if numbers and numbers not in way.since:
        raise CaptureFailed(f"SGLang {dotted(numbers)} does not offer `{way.name}`: that is for {way.since}")
    if way.name == HOOK and "forward-hooks" in flags:
        raise CaptureFailed("the server has forward hooks of its own; take the states in another way")
    return way


def missing(way: Way, flags: Mapping[str, object]) -> dict[str, Value | None]:
    """The flags a server lacks for a way; None: one that must go. Empty when it needs no restart."""
    if way.satisfied and any(flags.get(name) not in (None, False) for name in way.satisfied):
        return {}
    return {**way.flags, **{name: None for name in way.drops if name in flags}}


def hook_flags(folder: str, module: str) -> str:
    """The value of --forward-hooks that has `module`:make write to `folder`, as JSON.

    `model.fc` is the draft's of the Llama flavour, `fc` that of the MLA one; no target has a module so named.
    """
    import json

    hook = {"name": module, "target_modules": ["model.fc", "fc"], "hook_factory": f"{module}:make"}
    return json.dumps([{**hook, "config": {"folder": folder}}], separators=(",", ":"))


def reads_normed(config: Mapping[str, Any]) -> str:
    """The key by which a draft's config says that its `fc` reads normed states, which are no R_k; "" without one."""
    nested = config.get("eagle_config")
    places = [config, nested if isinstance(nested, dict) else {}]
    return next((key for key in _NORMED if any(item.get(key) for item in places)), "")


def _best(numbers: tuple[int, ...], flags: Mapping[str, object], config: Mapping[str, Any]) -> str:
    """Served without speculation there is nothing that feeds a draft, unless the engine plays it.

    Where a restart is due anyway, wide states are better written to files than sent as text, and of several ranks only
    the hook shows each.
    """
    if "speculative-algorithm" not in flags:
        return AUX if not numbers or numbers in span("0.5.23") else STATES
    hook = next(way for way in WAYS if way.name == HOOK)
    states = next(way for way in WAYS if way.name == STATES)
    width = config.get("target_hidden_size") or config.get("hidden_size")
    ranks = str(flags.get("tp-size", 1))
    hooked = bool(numbers) and numbers in hook.since and "forward-hooks" not in flags and not reads_normed(config)
    costly = (isinstance(width, int) and width >= WIDE) or (ranks.isdecimal() and int(ranks) > 1)
    return HOOK if hooked and costly and missing(states, flags) else STATES
