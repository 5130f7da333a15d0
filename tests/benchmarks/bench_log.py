"""Throughput of the log parsers as ratios to just reading the same lines, in one run: events, and columns of numbers.

`python -m tests.benchmarks.bench_log [--rounds N]`. Processor time, because a shared machine's clock says little.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from checks.engines.sglang import log

LINES = 200_000
BOUNDS = {"events": 0.025, "columns": 0.08}


def write_log(path: Path, lines: int = LINES) -> None:
    """A busy server's log: 60 % decode lines, 25 % prefill, 13 % requests, 2 % notices, as a chat load prints them."""
    draw = random.Random(7)
    with path.open("w", encoding="utf-8") as file:
        for index in range(lines):
            seconds = index // 8
            clock = f"2026-08-{10 + seconds // 86400:02d} {seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}"
            stamp, kind = f"[{clock}:{seconds % 60:02d}", draw.random()
            if kind < 0.60:
                running, length = draw.randint(1, 32), draw.uniform(1, 4)
                file.write(
                    f"{stamp} TP0] Decode batch, #running-req: {running}, #token: {draw.randint(100, 99999)}, "
                    f"token usage: {draw.random():.2f}, accept len: {length:.2f}, accept rate: {(length - 1) / 3:.2f}, "
                    f"cuda graph: True, gen throughput (token/s): {running * draw.uniform(50, 90):.2f}, #queue-req: 0\n"
                )
            elif kind < 0.85:
                file.write(
                    f"{stamp} TP0] Prefill batch, #new-seq: 1, #new-token: {draw.randint(1, 4096)}, #cached-token: "
                    f"{draw.randint(0, 99)}, token usage: {draw.random():.2f}, #running-req: {draw.randint(0, 31)}, "
                    f"#queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): "
                    f"{draw.uniform(10, 9000):.2f}\n"
                )
            elif kind < 0.98:
                port = draw.randint(30000, 60000)
                file.write(f'{stamp}] INFO:     127.0.0.1:{port} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n')
            else:
                file.write(f"{stamp} TP0] Adaptive spec params updated: steps 3 -> 1 (ema_accept_len=1.5)\n")


def read_text(path: Path) -> None:
    """What any reader of text does first."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for _ in file:
            pass


def read_bytes(path: Path) -> None:
    """What any reader of bytes does first."""
    with path.open("rb") as file:
        for _ in file:
            pass


def events(path: Path) -> None:
    """Every line as a typed event, with the phases."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for _ in log.parse_lines(file):
            pass


def columns(path: Path) -> None:
    """The batch lines as columns of numbers."""
    with path.open("rb") as file:
        log.history(file)


def best(work: Callable[[Path], None], path: Path) -> float:
    """Seconds of the processor that one pass takes."""
    start = time.process_time()
    work(path)
    return time.process_time() - start


def main(arguments: list[str] | None = None) -> None:
    """Run reading and parsing in turn, round after round, and print the ratios of the best of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_log", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = max(parser.parse_args(arguments).rounds, 2)
    took: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "server.log")
        write_log(path)
        for _ in range(rounds):
            for work in (read_bytes, read_text, events, columns):
                took[work.__name__] = min(took.get(work.__name__, 1e9), best(work, path))
    print(f"{'log parser':<26}{'k lines/s':>10}{'ratio':>8}  of {'':<18}bound")
    for name, unit in (("read_bytes", ""), ("read_text", ""), ("events", "read_text"), ("columns", "read_bytes")):
        speed = f"{name.replace('_', ' '):<26}{LINES / took[name] / 1e3:>10.0f}"
        if not unit:
            print(f"{speed}{'':>8}     {'':<18}-")
            continue
        ratio, bound = took[unit] / took[name], BOUNDS[name]
        print(f"{speed}{ratio:>8.3f}  of {unit.replace('_', ' '):<18}{bound} {'ok' if ratio >= bound else 'UNDER'}")


if __name__ == "__main__":
    main(sys.argv[1:])
