"""What a server measured of itself: a run's values from its log, accept lengths with intervals from requests."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from console.following import LineParser
from console.serving import Serving

if TYPE_CHECKING:
    from remote.host import Host
    from remote.server import ServerRecord

LOG_LIMIT = 8 << 20
"""How much of a run's log is read to remember it by: its end, some 50 000 lines."""


async def run_values(host: Host, record: ServerRecord, engine: str) -> dict[str, Any]:
    """Mean accept length, usual tokens per second and the decode lines they stand on, from the run's log.

    Empty when its log cannot be read or has no decode line.
    """
    from remote import files
    from remote.errors import RemoteError

    if not record.log:
        return {}
    try:
        found = await files.stat(host, record.log)
        if found is None or found.size <= record.log_offset:
            return {}
        offset = max(record.log_offset, found.size - LOG_LIMIT)
        data = await files.read(host, record.log, found.size - offset, offset)
    except RemoteError:
        return {}
    serving = await asyncio.to_thread(_digest, data, engine)
    if not serving.windows and serving.tokens_per_s is None:
        return {}
    return {
        "accept_len": serving.mean_accept_len,
        "tokens_per_s": serving.usual_tokens_per_s,
        "windows": serving.windows,
    }


def _digest(data: bytes, engine: str) -> Serving:
    serving, parser = Serving(), LineParser(engine)
    serving.feed(parser.feed(data), live=False)
    serving.feed(parser.flush(), live=False)
    return serving


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over samples and its 95% interval by Student's t; without width when there are fewer than two."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of 0."""
        return self.count > 1 and (self.low > 0 or self.high < 0)

    def words(self, sign: bool = False) -> str:
        """`4.61 [4.40, 4.82]`."""
        form = "+.3f" if sign else ".3f"
        return f"{self.mean:{form}} [{self.low:{form}}, {self.high:{form}}]"


def interval(values: Sequence[float]) -> Interval:
    """The mean of `values` and its 95% interval. Raises ValueError for no values."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, mean, mean, len(values))
    half = t_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def paired(after: Sequence[float], before: Sequence[float]) -> Interval:
    """The mean of the differences of pairs, after minus before. Raises ValueError when they are no pairs."""
    if len(after) != len(before):
        raise ValueError(f"{len(after)} values cannot be paired with {len(before)}")
    return interval([a - b for a, b in zip(after, before)])


def t_975(freedom: int) -> float:
    """The 97.5% point of Student's t with `freedom` degrees of freedom.

    Exact for 1 and 2, else the expansion of Abramowitz and Stegun, 26.7.5, from the normal one (within 0.03 from 3 on,
    and within 0.001 from 8 on).
    """
    p = 0.975
    if freedom == 1:
        return math.tan(math.pi * (p - 0.5))
    if freedom == 2:
        return (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    z = statistics.NormalDist().inv_cdf(p)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / float(freedom) ** power for power, term in enumerate(terms))


def accept_length(histogram: Sequence[int]) -> float | None:
    """Tokens a verify step emitted, bonus included: sum h[i] (i + 1) / sum h over a request's drafts histogram.

    Exact where completion tokens / verify steps is not: that counts the prefill's token and cuts the last step short.
    None for a request without a verify step.
    """
    steps = sum(histogram)
    return sum(count * (drafts + 1) for drafts, count in enumerate(histogram)) / steps if steps else None
