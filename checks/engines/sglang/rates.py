"""What SGLang's printed accept rate means by release, and which meaning and how many draft tokens fit the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from checks.engines.versions import Span, release, span


@dataclass(frozen=True)
class RateMeaning:
    """What `accept rate` is in some releases: in words, and as a function of accept length and draft tokens."""

    versions: Span
    formula: str
    strict: bool
    """True where the bonus token is left out, so that no acceptance at all prints 0."""

    def rate(self, accept_len: float, draft_tokens: int) -> float:
        """The rate these releases print for an accept length, with topk 1 (draft tokens = steps + 1)."""
        return (accept_len - 1) / (draft_tokens - 1) if self.strict else accept_len / draft_tokens


RATE_MEANINGS: tuple[RateMeaning, ...] = (
    RateMeaning(span("0.5.4", "0.5.5"), "accept len / (steps + 1)", strict=False),
    RateMeaning(span("0.5.6", "0.5.10"), "accept len / draft tokens", strict=False),
    RateMeaning(span("0.5.11"), "(accept len - 1) / (draft tokens - 1)", strict=True),
)


def rate_meaning(version: str) -> RateMeaning | None:
    """What the printed accept rate means in a release; None before 0.5.4, which prints none, or without a version."""
    asked = release(version)
    return next((item for item in RATE_MEANINGS if asked and asked in item.versions), None)


def rates_that_fit(accept_len: float, rate: float, draft_tokens: int) -> tuple[RateMeaning, ...]:
    """The meanings under which a printed pair (two decimals each) is consistent; () when none is."""
    if draft_tokens < 2:
        return ()
    slack = 0.0051 + 0.0051 / (draft_tokens - 1)
    return tuple(item for item in RATE_MEANINGS if abs(item.rate(accept_len, draft_tokens) - rate) <= slack)


def per_step(accept_len: float, steps: int) -> float:
    """Mean acceptance of a draft token on a chain: (accept length - 1) / steps, the same in every release."""
    return (accept_len - 1) / steps


# -- from the numbers alone ---------------------------------------------------------------------------------------

PER_TOKEN, STRICT = "accept len / draft tokens", "(accept len - 1) / (draft tokens - 1)"
MOST_TOKENS = 128


@dataclass(frozen=True)
class Fit:
    """A formula and a number of draft tokens under which every printed pair is consistent."""

    formula: str
    draft_tokens: int

    @property
    def strict(self) -> bool:
        """Whether the formula leaves the bonus token out."""
        return self.formula == STRICT


def fits(pairs: Iterable[tuple[float, float]], tokens: Sequence[int] = ()) -> tuple[Fit, ...]:
    """The readings of (accept len, accept rate) pairs, printed with two decimals each, that fit every one of them.

    `tokens`: the numbers of draft tokens to try, 2 … 128 when empty. A window that spans a change of adaptive steps
    fits none; so may lines of a tool that divides otherwise.
    """
    distinct = sorted(set(pairs))
    if not distinct:
        return ()
    return tuple(
        Fit(formula, count)
        for count in tokens or range(2, MOST_TOKENS + 1)
        for formula in (PER_TOKEN, STRICT)
        if all(_consistent(formula == STRICT, length, rate, count) for length, rate in distinct)
    )


def _consistent(strict: bool, length: float, rate: float, tokens: int) -> bool:
    """Whether some accept length that prints as `length` has a rate that prints as `rate`."""
    below, above = length - 0.005001, length + 0.005001
    if length > tokens + 0.005:
        return False
    low, high = ((below - 1) / (tokens - 1), (above - 1) / (tokens - 1)) if strict else (below / tokens, above / tokens)
    return low - 0.005001 <= rate <= high + 0.005001
