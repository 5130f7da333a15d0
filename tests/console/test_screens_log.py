"""The log on the live screen: what a hostile or huge log looks like, and finding one's way in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.strip import Strip

from console.embedded import Embedded, embedded_host
from console.following import LineParser
from console.screens.dialogs import Line
from console.screens.logline import log_lines
from console.widgets.logview import CAPACITY, LogLine, LogView
from tests.console.driving import Driver, driven

DECODE = (
    "[2026-03-02 14:44:{:02} TP0] Decode batch, #running-req: 7, #token: 33, token usage: 0.25, accept len: 2.50, "
    "accept rate: 0.50, cuda graph: True, gen throughput (token/s): 123.45, #queue-req: 4"
)
PREFILL = (
    "[2026-03-02 14:44:10] Prefill batch, #new-seq: 1, #new-token: 80, #cached-token: 0, token usage: 0.00, "
    "#running-req: 0, #queue-req: 0"
)
WARNING = "[2026-03-02 14:44:11] WARNING: the weather turns [/red]"
ERROR = "[2026-03-02 14:44:12] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
SHOWN_AS_THEY_ARE = (
    "[rank0]: Traceback (most recent call last):",
    "[/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1553: operator(): block: [0,0,0]]",
    "[#1] [@x] [@click=app.leave()]quit[/] [bold red]loud[/bold red] \\[escaped]",
    "weights \u2581\u2588 100% naïve 模型",
)
# The reader drops terminal sequences and control characters; what else could mislead is written out.
SHOWN_HARMLESS = {
    "red \x1b[31mred\x1b[0m": "red red",
    "title \x1b]0;owned\x07 clip \x1b]52;c;aGk=\x1b\\": "title  clip",
    "cursor \x1b[2J\x1b[1;1H\x9b2J bell\x07 nul\x00 back\x08\x08": "cursor  bell nul back",
    "tab\tturned \u202e around": r"tab     turned \u202e around",
}


def test_a_health_probe_is_no_prefill_to_the_eye() -> None:
    line = "Prefill batch, #new-seq: 1, #new-token: {}, #cached-token: 0, token usage: 0.00, #running-req: 0"
    (probe,) = log_lines(LineParser("sglang").feed(f"[2026-08-10 09:20:45] {line.format(1)}\n".encode()))
    (prompt,) = log_lines(LineParser("sglang").feed(f"[2026-08-10 09:20:45] {line.format(9)}\n".encode()))
    assert (probe.kind, probe.shown) == ("other", "09:20:45 probe")
    assert prompt.kind == "prefill"
    assert ("probe", "True") in probe.fields()


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with embedded_host("right") as running:
        yield running


@pytest.fixture
def log(embedded: Embedded) -> Iterator[Path]:
    """The file the server would write; a test writes it instead."""
    path = Path(embedded.folder.deployment.server.log)
    path.write_bytes(b"begin\n")
    yield path
    path.unlink()


@pytest.fixture
async def driver(embedded: Embedded, log: Path) -> AsyncIterator[Driver]:
    async with driven(embedded.folder.deployment, (160, 50)) as opened:
        await opened.until_shown("begin")
        yield opened


async def say(driver: Driver, log: Path, *lines: str | bytes) -> LogView:
    """Append lines, and wait until the log view holds them all."""
    view = driver.app.live.query_one(LogView)
    before = view.total
    with log.open("ab") as file:
        for line in lines:
            file.write((line.encode() if isinstance(line, str) else line) + b"\n")
    await driver.until(lambda: view.total >= before + len(lines), f"{before + len(lines)} lines in the log")
    return view


async def test_a_hostile_log_is_shown_and_never_interpreted(driver: Driver, log: Path) -> None:
    await say(driver, log, *SHOWN_AS_THEY_ARE, *SHOWN_HARMLESS, b"not utf-8 \xff\xfe")
    await driver.until_shown(*SHOWN_HARMLESS.values(), "not utf-8")
    # A wide character takes two cells, so that the screen is read without the spaces.
    seen = driver.text.replace(" ", "")
    assert [line for line in SHOWN_AS_THEY_ARE if line.replace(" ", "") not in seen] == []
    assert driver.text.replace("\n", "").isprintable()
    await driver.press("enter")
    await driver.told("line ")
    assert "as it came" in driver.text
    await driver.press("escape")


async def test_a_line_of_a_megabyte_does_no_harm(driver: Driver, log: Path) -> None:
    view = await say(driver, log, "x" * (1 << 20), "after it")
    await driver.until_shown("xxxxxxxx", "after it")
    assert driver.shape == (160, 50)
    await driver.press("up", "up", "enter")
    await driver.told("line ")
    await driver.press("escape")
    assert view.total == 3


async def test_batch_lines_are_columns_and_their_fields_open(driver: Driver, log: Path) -> None:
    await say(driver, log, DECODE.format(1), PREFILL)
    columns = ("14:44:01", "run 7", "queue 4", "accept 2.50", "123.5 tok/s", "new 80")
    await driver.until(lambda: all(column in driver.flow for column in columns), "the columns")
    await driver.press("up", "enter")
    await driver.told("decode")
    await driver.until_shown("throughput", "123.45", "as it came", "#running-req: 7")
    await driver.press("escape")


async def test_lines_are_filtered_by_kind(driver: Driver, log: Path) -> None:
    await say(driver, log, DECODE.format(1), PREFILL, WARNING, ERROR, "plain words")
    marks = {"d": "run 7 queue 4", "p": "new 80", "w": "the weather turns [/red]", "e": "CUDA out of memory"}
    every = (*marks.values(), "plain words")
    await driver.until(lambda: all(mark in driver.flow for mark in every), "every line")
    for key, mark in marks.items():
        await driver.press(key)
        await driver.until(lambda only=mark: [one for one in every if one in driver.flow] == [only], f"only {mark}")  # type: ignore[misc]
        await driver.press("a")
        await driver.until(lambda: all(mark in driver.flow for mark in every), "every line")
    await driver.press("d", "w")
    await driver.until_shown("decode, warning")
    assert [one for one in every if one in driver.flow] == [marks["d"], marks["w"]]


@pytest.mark.parametrize("pattern", ["[rank0]", "[/red]", r"\[/red\]", "nee[d]le", "(", "[b"])
async def test_any_pattern_can_be_searched_for(driver: Driver, log: Path, pattern: str) -> None:
    await say(driver, log, "a needle", WARNING, *(f"hay {number}" for number in range(60)))
    await driver.press("slash")
    await driver.until(lambda: isinstance(driver.app.screen, Line), "the line to type")
    driver.app.screen.query_one("Input").value = pattern  # type: ignore[attr-defined]
    await driver.press("enter")
    if pattern in ("(", "[b"):
        await driver.until_shown("not a regular expression", pattern)
    else:
        await driver.until_shown(f"/{pattern}/", "detached")
    if pattern == "nee[d]le":
        await driver.until_shown("a needle")


async def test_scrolling_up_detaches_and_f_follows_again(driver: Driver, log: Path) -> None:
    view = await say(driver, log, *(f"line {number:03}" for number in range(100)))
    await driver.until_shown("line 099", "follow")
    await driver.press("home")
    await driver.until_shown("line 000", "detached (F follows)")
    await say(driver, log, *(f"late {number:03}" for number in range(50)))
    assert "line 000" in driver.text
    assert not view.following
    await driver.press("F")
    await driver.until_shown("late 049", "follow")
    await say(driver, log, ERROR, *(f"more {number:03}" for number in range(60)))
    await driver.until_shown("more 059")
    await driver.press("exclamation_mark")
    await driver.until_shown("CUDA out of memory", "detached")
    await driver.press("n")
    await driver.until_shown("no further match")


async def test_next_and_previous_walk_the_matches(driver: Driver, log: Path) -> None:
    view = await say(driver, log, *(f"{'needle' if number % 40 == 0 else 'hay'} {number:03}" for number in range(120)))
    view.search("needle")
    seen = []
    for key in ("N", "N", "N", "n"):
        await driver.press(key)
        seen.append(view._visible[view._cursor].shown)
    assert seen == ["needle 080", "needle 040", "needle 000", "needle 040"]


async def test_a_log_of_200_000_lines_draws_only_what_is_in_view() -> None:
    drawn: list[int] = []

    class Counted(LogView):
        def render_line(self, y: int) -> Strip:
            drawn.append(y)
            return super().render_line(y)

    class Only(App[None]):
        def compose(self) -> ComposeResult:
            yield Counted()

    async with Only().run_test(size=(80, 24)) as pilot:
        view = pilot.app.query_one(Counted)
        for begin in range(0, 200_000, 1000):
            view.add(LogLine(n, "other", f"line {n}") for n in range(begin, begin + 1000))
        await pilot.pause()
        assert view.total == CAPACITY
        assert len(drawn) < 200 * 24
        assert view._visible[0].shown == f"line {200_000 - CAPACITY}"
        drawn.clear()
        view.add([LogLine(200_000, "other", "the last")])
        await pilot.pause()
        assert 0 < len(drawn) <= 3 * 24
        rows = [strip.text.rstrip() for strip in pilot.app.screen._compositor.render_strips()]
        assert rows[-1].startswith("the last")
        drawn.clear()
        await pilot.press("home")
        await pilot.pause()
        assert len(drawn) <= 6 * 24
        assert "line 100001" in pilot.app.screen._compositor.render_strips()[0].text
