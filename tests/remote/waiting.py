"""Waiting for something to become true, without a guess how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path


def running(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def until(condition: Callable[[], object], limit: float = 30.0) -> None:
    """Return once `condition()` is true; an AssertionError after `limit` seconds, which only a failure reaches."""
    try:
        async with asyncio.timeout(limit):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError("it did not become true") from None


async def gone(pid: int) -> None:
    """Return once the process has ended."""
    await until(lambda: not running(pid))
