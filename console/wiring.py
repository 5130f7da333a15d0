"""The value behind the wiring strip: which states the draft was trained on, and which the engine feeds it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

OK, BAD, UNKNOWN = "ok", "bad", "unknown"


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of the draft's input: trained and served k (None: not known), and the distance in words."""

    index: int
    trained: int | None
    served: int | None

    @property
    def state(self) -> str:
        """`ok`, `bad` or `unknown`."""
        if self.trained is None or self.served is None:
            return UNKNOWN
        return OK if self.trained == self.served else BAD

    @property
    def words(self) -> str:
        """`right`, `1 late`, `3 early`; empty when either side is not known."""
        if self.trained is None or self.served is None:
            return ""
        distance = self.served - self.trained
        return "right" if not distance else f"{abs(distance)} {'late' if distance > 0 else 'early'}"


@dataclass(frozen=True, slots=True)
class Wiring:
    """The target's n layers, and per slot what was trained and what is served.

    `source` says where the served states come from (`probed`, `table`, `capture`), `trained_by` where the trained
    ones do; both empty when not known.
    """

    n: int | None = None
    trained: tuple[int, ...] | None = None
    served: tuple[int, ...] | None = None
    source: str = ""
    trained_by: str = ""
    engine: str = ""
    verdict: str = ""
    """The verdict of the finding these come from; empty where they are only set side by side."""
    since: str = ""
    """When the running server was started, where it has, or may have, another config than the one on disk."""
    after: tuple[int, ...] | None = None
    """With `since`: what would be fed after a restart, by the config on disk."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Trained and served side by side; as many as the longer of the two."""
        trained, served = self.trained or (), self.served or ()
        return tuple(
            Slot(i, trained[i] if i < len(trained) else None, served[i] if i < len(served) else None)
            for i in range(max(len(trained), len(served)))
        )

    @property
    def state(self) -> str:
        """`ok` when every slot is right, `bad` when one is wrong or the counts differ, else `unknown`.

        A finding that does not condemn what looks wrong, or acquit what looks right, leaves it unknown. So does a
        server whose config is not the one on disk, where it is fed what is right: it is not after the next restart.
        """
        if self.since and self.served is not None and self.served == self.trained:
            return UNKNOWN
        if self.verdict == "FAIL":
            return BAD
        if self.trained is None or self.served is None or self.verdict == "UNKNOWN":
            return UNKNOWN
        if self.trained != self.served:
            return BAD
        return OK if self.verdict in ("PASS", "") else UNKNOWN


def read_wiring(findings: Sequence[Mapping[str, Any]]) -> Wiring:
    """The wiring that a report's findings speak of; an unknown wiring when they name none.

    Of several engines or caches, the one that is worst off. Reads the evidence of `align.engine_pair`
    (`engine_states`, `trained_states`, `source`, `trained_by`, and `running` where the server that runs was started
    with another config), and the number of layers from `cfg.aux_ids`.
    """
    n = next((layers for item in findings if isinstance(layers := _evidence(item).get("layers"), int)), None)
    pairs = [item for item in findings if item.get("check") == "align.engine_pair"]
    worst = min(pairs, key=lambda item: _ORDER.get(str(item.get("verdict")), len(_ORDER)), default=None)
    if worst is None:
        return Wiring(n)
    facts = _evidence(worst)
    found = Wiring(
        n,
        _states(facts.get("trained_states")),
        _states(facts.get("engine_states")),
        str(facts.get("source") or ""),
        str(facts.get("trained_by") or ""),
        str(worst.get("engine") or ""),
        str(worst.get("verdict") or ""),
    )
    running = facts.get("running")
    return _as_served(found, running) if isinstance(running, Mapping) else found


def _as_served(found: Wiring, running: Mapping[str, Any]) -> Wiring:
    """What the running server feeds in place of what the config on disk says.

    Where that is not known, a wrong config on disk stays wrong, and a right one is not called served.
    """
    served = _states(running.get("states"))
    if served is None and found.state == BAD:
        return found
    source = found.source if served is not None else ""
    since = str(running.get("server_started") or "its start")
    return replace(found, served=served, source=source, since=since, after=found.served)


def served_by_ids(findings: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """What an engine feeds for which ids (`ids_key`), by the findings: under the config, and under their fixes."""
    known: dict[str, tuple[int, ...]] = {}
    for item in findings:
        if item.get("check") != "align.engine_pair":
            continue
        facts = _evidence(item)
        served, trained = _states(facts.get("engine_states")), _states(facts.get("trained_states"))
        if served is not None:
            known[ids_key(facts.get("configured_ids"))] = served
        for step in (item.get("fix") or {}).get("patch") or ():
            if step.get("op") != "test" and str(step.get("path", "")).endswith(_IDS) and trained is not None:
                # A fix of this finding is made by running the engine's rule until it gives the trained states.
                known[ids_key(step.get("value"))] = trained
    return known


def ids_key(ids: object) -> str:
    """A list of ids as a dictionary key; the absent list is one too."""
    return json.dumps(ids)


def ids_in(config: object) -> object:
    """The ids in a draft's config, where an engine finds them; None when there are none."""
    if not isinstance(config, Mapping):
        return None
    nested = config.get("eagle_config")
    inside = nested.get(_IDS) if isinstance(nested, Mapping) else None
    return inside if inside is not None else config.get(_IDS)


_IDS = "eagle_aux_hidden_state_layer_ids"
_ORDER = {"FAIL": 0, "WARN": 1, "UNKNOWN": 2, "INFO": 3, "PASS": 4}


def _evidence(finding: Mapping[str, Any]) -> Mapping[str, Any]:
    facts = finding.get("evidence")
    return facts if isinstance(facts, Mapping) else {}


def _states(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or any(isinstance(k, bool) or not isinstance(k, int) for k in value):
        return None
    return tuple(value)
