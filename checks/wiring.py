"""Which states the draft was trained on, which an engine feeds it under the config, and the ids that put it right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from checks.draft import IN_EAGLE_CONFIG, TOP_LEVEL
from checks.errors import CheckError
from checks.evidence import Evidence
from checks.finding import ConfigFix
from checks.layers import ids_for, shift_words
from checks.naming import Naming, engine_capture, name_slots
from checks.patch import set_key

MEASURED, SIDE_FILE, BELIEF, UNKNOWN = "measured", "side file", "belief", "unknown"


@dataclass(frozen=True)
class Trained:
    """The states a cache holds, slot by slot, and how that is known.

    `how`: `measured` from numbers; `side file`, as the trainer recorded it; `belief` of the deployment; `unknown`, with
    the reason in `why`. `refuted` is the claim that the numbers contradict.
    """

    states: tuple[int, ...] | None
    how: str
    why: str = ""
    by: str = ""
    refuted: tuple[int, ...] | None = None

    @property
    def words(self) -> str:
        """The clause of a summary that names them."""
        if self.states is None:
            return "what the cache holds is not known"
        listed = ",".join(map(str, self.states))
        if self.how == MEASURED:
            return f"the cache holds {listed}"
        if self.how == SIDE_FILE:
            return f"the cache holds {listed} as {self.by} says (claimed, not measured)"
        return f"the cache is believed to hold {listed} ({self.by}; not measured)"


@dataclass(frozen=True)
class Fed:
    """What an engine feeds under the draft's config: the states in slot order; or what breaks; or why unknown."""

    ids: object | None
    states: tuple[int, ...] | None
    problem: str = ""
    unknown: str = ""


def trained_states(evidence: Evidence, cache: Any) -> Trained:
    """Numbers before claims: what a capture names, else what a side file records, else what the user believes."""
    naming = name_slots(evidence, cache)
    claim = cache.claim
    claimed = tuple(claim.states) if claim is not None else None
    measured = measured_states(evidence, naming)
    if measured is not None:
        return Trained(measured, MEASURED, by=naming.how, refuted=claimed if claimed not in (None, measured) else None)
    if naming.how in ("all-states", "reference") and claimed is not None and _refuted(naming, claimed):
        return Trained(
            None, UNKNOWN, f"its slots are not the {_listed(claimed)} that {claim.by} names, see align.states"
        )
    if claimed is not None:
        return Trained(claimed, BELIEF if claim.by == "deployment" else SIDE_FILE, by=claim.by)
    return Trained(None, UNKNOWN, naming.note or "its slots could not be named, see align.states")


def measured_states(evidence: Evidence, naming: Naming) -> tuple[int, ...] | None:
    """The states the numbers name, or None.

    A name by an engine capture is as good as the rule that says what was served.
    """
    if naming.how != "engine":
        return naming.states
    if not naming.slots or naming.mixed or not all(slot.decided for slot in naming.slots):
        return None
    served = served_in_capture(evidence)
    if served is None:
        return None
    columns = [int(slot.label.rpartition(" ")[2]) for slot in naming.slots]
    return tuple(served[column] for column in columns) if max(columns) < len(served) else None


def served_in_capture(evidence: Evidence) -> tuple[int, ...] | None:
    """The states that stand in the engine capture's slots by the one engine's rule for the capture's ids."""
    capture = engine_capture(evidence)
    engines = _engines(evidence)
    if capture is None or len(engines) != 1 or evidence.target is None or engines[0].rule is None:
        return None
    ids = capture.ids if capture.ids is not None else configured_ids(evidence, engines[0])
    try:
        served = engines[0].rule.served(list(ids) if isinstance(ids, (list, tuple)) else None, evidence.target.n)
    except CheckError:
        return None
    return tuple(served.states) if len(served.states) == capture.slots else None


def configured_ids(evidence: Evidence, engine: Any) -> object | None:
    """The ids this engine reads from the draft's config, None where it finds none. Raises BadConfig."""
    if evidence.draft is None:
        return None
    ids = evidence.draft.aux_ids
    return {TOP_LEVEL: ids.top_level, IN_EAGLE_CONFIG: ids.in_eagle_config}.get(engine.pointer)


def fed_states(evidence: Evidence, engine: Any) -> Fed:
    """What this engine feeds under the draft's config, by its rule. Raises BadConfig for an unusable draft config."""
    ids = configured_ids(evidence, engine)
    if engine.rule is None:
        return Fed(ids, None, unknown=engine.note or "its rule could not be read")
    if evidence.target is None:
        return Fed(ids, None, unknown="needs the target's config.json (--target DIR): how many layers it has")
    if ids is not None and not isinstance(ids, list):
        return Fed(ids, None, unknown=f"the ids are no list but {type(ids).__name__}, see cfg.aux_ids")
    try:
        served = engine.rule.served(ids, evidence.target.n)
    except CheckError as error:
        return Fed(ids, None, unknown=str(error))
    return Fed(ids, tuple(served.states), problem=served.problem or "")


def config_fix(evidence: Evidence, engine: Any, states: Sequence[int] | None) -> ConfigFix | None:
    """The config change that makes this engine feed `states`; None where no ids do, or they already stand there."""
    ids = ids_feeding(evidence, engine, states)
    if ids is None or evidence.draft is None or not engine.pointer:
        return None
    patch = set_key(evidence.draft.config, engine.pointer, list(ids))
    return ConfigFix(tuple(patch)) if patch else None


def ids_feeding(evidence: Evidence, engine: Any, states: Sequence[int] | None) -> tuple[int, ...] | None:
    """The ids under which this engine feeds `states`, or None."""
    if states is None or evidence.target is None or engine.rule is None:
        return None
    try:
        return ids_for(states, engine.rule, evidence.target.n)
    except CheckError:
        return None


def judged_engines(evidence: Evidence) -> tuple[Any, ...]:
    """The engines to judge for; none when finding them fails, which the checks that need one report."""
    return _engines(evidence)


def offsets(trained: Sequence[int], served: Sequence[int]) -> list[str]:
    """Slot by slot in the project's words: right, 1 late, 2 early."""
    return [shift_words(a, b) for a, b in zip(trained, served)]


def _engines(evidence: Evidence) -> tuple[Any, ...]:
    def find() -> tuple[Any, ...]:
        try:
            return tuple(evidence.engines)
        except CheckError:
            return ()

    found: tuple[Any, ...] = evidence.memo("engines or none", find)
    return found


def _refuted(naming: Naming, claimed: Sequence[int]) -> bool:
    """Whether a slot is clearly not the state that is claimed for it."""
    for slot, k in zip(naming.slots, claimed):
        if slot.kind in ("none", "empty") and not naming.partial:
            return True
        if slot.decided and slot.k != k:
            return True
    return len(naming.slots) != len(claimed)


def _listed(states: Sequence[int]) -> str:
    return "states " + ",".join(map(str, states))
