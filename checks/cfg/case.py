"""One config under one engine: what every question on a draft's config.json is asked about."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional

from checks.catalog import CheckFunction, check
from checks.cfg.layouts import Layout, layout_of
from checks.draft import Draft
from checks.draft_shapes import normal_names
from checks.errors import CheckError
from checks.evidence import Evidence, Need
from checks.finding import Finding, Fix, Verdict
from checks.jsonfile import whole
from checks.patch import join_pointer
from checks.rules import Serving, servings
from checks.target import Target
from checks.tensors import TensorInfo


@dataclass(frozen=True)
class Case:
    """The draft's config as one engine sees it, and what else is known of it."""

    id: str
    evidence: Evidence
    draft: Draft
    serving: Serving

    @property
    def config(self) -> dict[str, Any]:
        """The keys of the model, a nested layout laid flat. Raises BadConfig."""
        return self.draft.flat

    @property
    def target(self) -> Target | None:
        """The target, None when it is not given or cannot be used."""
        return target_of(self.evidence)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The draft's tensors under one spelling; none when there are none or the file is damaged."""
        return tensors_of(self.draft)

    def pointer(self, key: str) -> str:
        """Where a key of the model stands, or would stand, in the file."""
        layout = layout_of(self.draft.config)
        nested = layout is not None and layout.holder in self.draft.config and key not in self.draft.config
        return join_pointer([layout.holder, key] if layout is not None and nested else [key])

    def number(self, key: str) -> int | None:
        """A positive whole number of the config, or None."""
        return whole(self.config.get(key))

    def say(
        self, verdict: Verdict, summary: str, facts: Mapping[str, Any] | None = None, fix: Fix | None = None
    ) -> Finding:
        """The finding of this question."""
        return Finding(self.id, verdict, summary, dict(facts or {}), fix)

    def unknown(self, what: str, facts: Mapping[str, Any] | None = None) -> Finding:
        """The finding that says what would decide."""
        return self.say(Verdict.UNKNOWN, f"not checked: needs {what}", {**(facts or {}), "needs": [what]})


def tensors_of(draft: Draft) -> Mapping[str, TensorInfo]:
    """A draft's tensors under one spelling; none when there are none or the file is damaged."""
    try:
        return normal_names(draft.weights.info) if draft.weights is not None else {}
    except CheckError:
        return {}


def layout_for(draft: Draft) -> Layout | None:
    """The foreign layout of a draft, by its config and its tensors. Raises BadConfig."""
    return layout_of(draft.config, tensors_of(draft))


def target_of(evidence: Evidence) -> Target | None:
    """The target, None when it is not given or cannot be used: what can do without it then says less."""
    try:
        return evidence.target
    except CheckError:
        return None


Judge = Callable[[Case], Optional[Finding]]


def cfg_check(id: str, by_engine: bool = False) -> Callable[[Judge], CheckFunction]:
    """Register a question on the draft's config; `by_engine` when the answer differs between engines.

    A config of a foreign layout is the business of cfg.format alone: an engine that does not read it gets one INFO
    from every other question, never the misses that follow from it.
    """

    def register(judge: Judge) -> CheckFunction:
        @check(id, needs=(Need.DRAFT,))
        @functools.wraps(judge)
        def asked(evidence: Evidence) -> Iterable[Finding]:
            draft = evidence.draft
            assert draft is not None
            engines = servings(evidence)
            for serving in engines if by_engine else _one(engines):
                case = Case(id, evidence, draft, serving)
                layout = layout_for(draft)
                found = judge(case) if layout is None or reads(serving, layout) else _elsewhere(case, layout)
                if found is not None:
                    yield replace(found, engine=serving.label if by_engine else None)

        return asked

    return register


def reads(serving: Serving, layout: Layout) -> bool:
    """Whether this engine understands a config of this layout."""
    return serving.name in layout.read_by


def _one(engines: tuple[Serving, ...]) -> Iterator[Serving]:
    """The engine that stands for all: SGLang, where it is one of them, for it reads the fewest layouts."""
    yield next((item for item in engines if item.is_sglang), engines[0])


def _elsewhere(case: Case, layout: Layout) -> Finding:
    summary = f"not asked: config.json is of the layout of {layout.name}, see cfg.format"
    return case.say(Verdict.INFO, summary, {"layout": layout.name})
