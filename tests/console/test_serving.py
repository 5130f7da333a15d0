"""Rolling values: what the log says now, what it said before a restart, and what is too old to be shown as now."""

from __future__ import annotations

import math

from console.following import LineParser
from console.serving import Serving

STAMP = "[2026-08-10 09:20:45] "


def decode(accept: float, speed: float) -> str:
    return (
        f"{STAMP}Decode batch, #running-req: 1, #token: 90, token usage: 0.01, accept len: {accept:.2f}, "
        f"accept rate: 0.30, cpu graph: False, gen throughput (token/s): {speed:.2f}, #queue-req: 0\n"
    )


PREFILL = (
    f"{STAMP}Prefill batch, #new-seq: 1, #new-token: 4, #cached-token: 0, token usage: 0.00, #running-req: 0, "
    "#queue-req: 0, cpu graph: False, input throughput (token/s): 1.90\n"
)
START = f"{STAMP}server_args=ServerArgs()\n"
LOAD = f"{STAMP}Load weight begin. avail mem=1.00 GB\n"
READY = f"{STAMP}The server is fired up and ready to roll!\n"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fed(*lines: str, serving: Serving | None = None, live: bool = True) -> Serving:
    serving = serving or Serving(Clock())
    parser = LineParser("sglang")
    for line in lines:
        serving.feed(parser.feed(line.encode()), live)
    return serving


def test_phases_pass_by_and_decoding_means_serving() -> None:
    serving = fed(START)
    assert serving.phase == "starting"
    assert fed(START, LOAD).phase == "loading"
    assert fed(START, LOAD, READY).phase == "ready"
    assert fed(START, LOAD, READY, decode(2, 90)).phase == "serving"


def test_the_mean_leaves_out_the_speed_of_the_first_line_after_a_rest() -> None:
    serving = fed(START, READY, PREFILL, decode(2.0, 3.0), decode(4.0, 90.0), decode(3.0, 94.0))
    assert serving.accept_len == 3.0
    assert serving.mean_accept_len == 3.0
    assert serving.usual_tokens_per_s == 92.0
    assert serving.windows == 3


def test_a_health_probe_says_nothing_of_the_load() -> None:
    busy = PREFILL.replace("#queue-req: 0", "#queue-req: 7").replace("#running-req: 0", "#running-req: 2")
    probe = PREFILL.replace("#new-token: 4", "#new-token: 1")
    serving = fed(START, READY, decode(2.0, 90.0), busy)
    assert serving.queue == 7
    serving = fed(probe, decode(2.0, 92.0), serving=serving)
    assert serving.queue == 0
    assert serving.usual_tokens_per_s == 92.0
    assert fed(busy, probe).queue == 7


def test_a_restart_keeps_the_curve_and_forgets_the_values() -> None:
    serving = fed(START, READY, decode(1.6, 50.0), START, LOAD)
    assert serving.accept_len is None
    assert serving.windows == 0
    assert list(serving.accept_history) == [1.6]
    assert serving.phase == "loading"


def test_values_older_than_their_period_carry_their_age() -> None:
    clock = Clock()
    serving = Serving(clock)
    parser = LineParser("sglang")
    for _ in range(3):
        serving.feed(parser.feed(decode(3, 90).encode()))
        clock.now += 1.0
    assert serving.age_words == ""
    clock.now += 30
    assert serving.age_words == "31 s ago"
    assert fed(decode(3, 90), live=False).age_words == "from before"


def test_by_position_is_the_tail_of_the_histogram() -> None:
    serving = Serving()
    assert serving.by_position is None
    serving.add_histogram([2, 1])
    serving.add_histogram([0, 0, 1])
    assert serving.by_position is not None
    assert all(math.isclose(a, b) for a, b in zip(serving.by_position, (0.5, 0.25)))


def test_the_last_error_is_kept_as_text() -> None:
    serving = fed(f"{STAMP}torch.OutOfMemoryError: CUDA out of memory.\n")
    assert "CUDA out of memory" in serving.last_error
