"""`align.slot_count`: as many states in the cache as ids in the config and slots in `fc`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checks.align.wording import place
from checks.catalog import check
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict

ID = "align.slot_count"


@check(ID, needs=(Need.DRAFT, Need.CACHE))
def slot_count(evidence: Evidence) -> Iterator[Finding]:
    """The cache holds as many states a token as the config names ids and `fc` has slots. A final state that stands
    beside the states counts for none of them: taking it for one, or stripping a state as if it were one, is how the
    counts come apart (`Target sizes: [S, 6, H]. Tensor sizes: [S, 5, H]`).

    How it decides. Slots of `fc` by its width in the weights, else by `num_aux_hidden_states`; ids where the config
    lists any; states by the shapes in the cache.

    - all that are known are equal: PASS.
    - two of them differ: FAIL, with all the numbers. Whichever is wrong, this draft was not trained on this cache as
      the config has it: look at what wrote the cache, and whether it added or stripped a final state.
    - a cache of the final state alone, or a draft that reads no such states: INFO.
    """
    draft = evidence.draft
    assert draft is not None
    ids = draft.aux_ids.value
    named = len(ids) if isinstance(ids, list) else None
    for cache in evidence.caches:
        counts = {"cache": cache.slots, "ids": named, "fc": draft.slots or None}
        facts: dict[str, Any] = {"slots": counts, "final": cache.final, **place(evidence, cache)}
        if not cache.slots or not draft.uses_aux:
            words = "there are no states to count: " + (
                "the cache holds a final state alone" if draft.uses_aux else "the draft reads the last state alone"
            )
            yield Finding(ID, Verdict.INFO, words, facts)
            continue
        known = {name: count for name, count in counts.items() if count is not None}
        said = ", ".join(f"{_WHAT[name]} {count}" for name, count in known.items())
        if len(set(known.values())) > 1:
            beside = " (beside a final state)" if cache.final not in ("none", "unknown") else ""
            yield Finding(ID, Verdict.FAIL, f"these have to be equal: {said}{beside}", facts)
        elif len(known) == 1:
            words = f"{said}; neither ids nor fc say how many the draft reads"
            yield Finding(ID, Verdict.INFO, words, facts)
        else:
            yield Finding(ID, Verdict.PASS, said, facts)


_WHAT = {"cache": "states in the cache", "ids": "ids in the config", "fc": "slots of fc"}
