"""The errors the embedded engine raises on purpose.

EngineError
├── ArgumentError      a launch flag the engine cannot honour
├── CheckpointError    a model folder that cannot be served
└── RequestError       a request that is answered with HTTP 400
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of the errors this package raises on purpose."""


class ArgumentError(EngineError):
    """A launch flag, or a combination of flags, that the engine cannot honour."""


class CheckpointError(EngineError):
    """A model folder whose config or tensors cannot be served."""


class RequestError(EngineError):
    """A request that is malformed or asks for what the engine does not do."""
