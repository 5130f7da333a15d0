"""Checks of the server's log: what its decode lines say about acceptance, and what they must not be read as."""

from __future__ import annotations

from checks.log import accept, course, expected, failure, graph, rate
from checks.log.read import Tail, read_tail

__all__ = ["Tail", "accept", "course", "expected", "failure", "graph", "rate", "read_tail"]
