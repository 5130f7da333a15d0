"""vLLM's /metrics: how many drafts of each position were accepted since the server started."""

from __future__ import annotations

import re
from dataclasses import dataclass

# vllm/v1/spec_decode/metrics.py; the client library appends `_total`. A label's value may hold anything but an
# unescaped quote, and NaN or an exponent stands where a number cannot be written plainly.
_SAMPLE = re.compile(
    r"vllm:spec_decode_num_(?P<what>drafts|accepted_tokens_per_pos)(?:_total)?"
    r'\{(?P<labels>(?:[^"{}]|"(?:[^"\\]|\\.)*")*)\} (?P<value>[0-9.eE+]{1,30})(?: [0-9]+)?'
)
_POSITION = re.compile(r'(?:^|,)\s*position="([0-9]{1,3})"')


@dataclass(frozen=True)
class Positions:
    """Counts since the server started, over all its engines: drafts made, and how many had position i accepted."""

    drafts: float
    accepted: tuple[float, ...]

    def since(self, earlier: Positions) -> Positions | None:
        """What came after an earlier look; None where nothing did, or the server was started again in between."""
        pairs = list(zip(self.accepted, earlier.accepted))
        if len(self.accepted) != len(earlier.accepted) or self.drafts <= earlier.drafts:
            return None
        if any(now < before for now, before in pairs):
            return None
        return Positions(self.drafts - earlier.drafts, tuple(now - before for now, before in pairs))

    @property
    def rates(self) -> tuple[float, ...]:
        """P(at least k drafts accepted) for k = 1, 2, …: accepted at position k - 1 of all drafts."""
        return tuple(count / self.drafts for count in self.accepted)


def positions(text: str) -> Positions | None:
    """The counts in the text of /metrics; None where there are none, as without speculation."""
    drafts, accepted = 0.0, dict[int, float]()
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line.rstrip()) if line.startswith("vllm:spec_decode_num_") else None
        value = _number(found["value"]) if found else None
        if found is None or value is None:
            continue
        if found["what"] == "drafts":
            drafts += value
            continue
        position = _POSITION.search(found["labels"])
        if position is not None:
            accepted[int(position[1])] = accepted.get(int(position[1]), 0.0) + value
    if drafts <= 0 or sorted(accepted) != list(range(len(accepted))) or not accepted:
        return None
    return Positions(drafts, tuple(accepted[index] for index in range(len(accepted))))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
