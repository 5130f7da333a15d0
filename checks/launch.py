"""The command line a run is judged by: the running server's own where there is one, else the launch flags given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from checks.engines.launch_facts import LaunchFacts, Value
from checks.engines.sglang.launch import parse_argv
from checks.evidence import Evidence

RUNNING, PLANNED = "running server", "launch flags"

_OFF = ("", "0", "false", "no", "off", "n", "f", "none")


@dataclass(frozen=True)
class Launch:
    """Flags and environment of a server. `source` says whose: the running one's, or those it would be started with."""

    facts: LaunchFacts
    env: Mapping[str, str] = field(default_factory=dict)
    source: str = PLANNED

    def flag(self, name: str) -> Value | None:
        """A flag's value by its first name; None when absent."""
        return self.facts.flags.get(name)

    def has(self, name: str) -> bool:
        """Whether a flag is given and not switched off by its value."""
        value = self.flag(name)
        return value is not None and (not isinstance(value, str) or value.lower() not in _OFF)

    def text(self, name: str) -> str:
        """A flag's one value; empty when absent, bare or a list."""
        value = self.flag(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int | None:
        """A flag's whole number, not negative; None when it is something else."""
        value = self.text(name)
        return int(value) if re.fullmatch(r"[0-9]{1,12}", value) else None

    def decimal(self, name: str) -> float | None:
        """A flag's number, None when it is none."""
        value = self.text(name)
        return float(value) if re.fullmatch(r"[0-9]{0,9}\.?[0-9]{1,12}", value) else None

    def numbers(self, name: str) -> list[int]:
        """Every whole number of a flag that takes several."""
        value = self.flag(name)
        words = value if isinstance(value, list) else [value]
        return [int(word) for word in words if isinstance(word, str) and re.fullmatch(r"[0-9]{1,9}", word)]

    def switched_on(self, variable: str) -> bool:
        """Whether a variable of the environment is set to something that means yes."""
        return self.env.get(variable, "").strip().lower() not in _OFF


def launch_of(evidence: Evidence) -> Launch | None:
    """The command line to judge, None when neither a server runs nor flags or environment were given."""
    return evidence.memo("launch", lambda: _read(evidence))


def _read(evidence: Evidence) -> Launch | None:
    request = evidence.request
    words = request.server.argv or request.args
    if not words and not request.env:
        return None
    facts = parse_argv([str(word) for word in words], request.server.cwd)
    env = {**{str(key): str(value) for key, value in request.env.items()}, **facts.env}
    return Launch(facts, env, RUNNING if request.server.argv else PLANNED)
