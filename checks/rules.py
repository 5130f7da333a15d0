"""What a check needs to say of rules that hold for some releases of an engine: which engine, and whether it is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from checks.engines.versions import Span, dotted, release
from checks.errors import CheckError, NotRunnable
from checks.evidence import Evidence
from checks.finding import Finding

SGLANG, VLLM = "sglang", "vllm"


@dataclass(frozen=True)
class Serving:
    """An engine a question is asked for.

    Where none is named the question is asked for SGLang of an unknown release: `label` is None then, and only rules
    that hold for every release can decide.
    """

    name: str = SGLANG
    version: str = ""
    label: str | None = None

    @property
    def is_sglang(self) -> bool:
        """Whether the rules of SGLang apply."""
        return self.name == SGLANG

    @property
    def words(self) -> str:
        """The engine in a sentence."""
        return self.label or "SGLang"

    def within(self, versions: Span) -> bool | None:
        """Whether its release is one of these; None when it is not known and not every release is."""
        if versions.since is None and versions.until is None:
            return True
        asked = release(self.version)
        return asked in versions if asked else None


def servings(evidence: Evidence) -> tuple[Serving, ...]:
    """The engines to ask for, or the one of unknown release. Raises NotRunnable for an engine that does not exist."""
    try:
        engines = evidence.engines
    except NotRunnable:
        raise
    except CheckError:
        engines = ()
    found = tuple(Serving(item.name, item.version, item.label) for item in engines)
    return found or (Serving(),)


def per_engine(evidence: Evidence, judge: Callable[[Serving], Finding | None]) -> Iterator[Finding]:
    """One finding an engine, marked with it; None where the question does not arise there."""
    for serving in servings(evidence):
        found = judge(serving)
        if found is not None:
            yield replace(found, engine=serving.label)


def releases(versions: Span, engine: str = "SGLang") -> str:
    """A range of releases in words, as `SGLang 0.5.5–0.5.12` or `every release of SGLang`."""
    since, until = dotted(versions.since), dotted(versions.until)
    if since and until:
        return f"{engine} {since}" if since == until else f"{engine} {since}–{until}"
    if since:
        return f"{engine} {since} and later"
    return f"{engine} up to {until}" if until else f"every release of {engine}"
