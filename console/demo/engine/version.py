"""What the engine calls itself, so that nobody takes it for SGLang."""

from __future__ import annotations

ENGINE = "demo, sglang-compatible"
__version__ = "0.1.0+demo"
