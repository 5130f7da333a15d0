"""Widgets as text: the strip, the lines and the heat map at fixed widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import dedent

import pytest
from rich.cells import cell_len
from textual.content import Content

from console.glyphs import ASCII, UNICODE
from console.widgets.ascii import to_ascii
from console.widgets.diff import diff_content
from console.widgets.heatmap import heat
from console.widgets.topline import TopLineValue, elapsed_words, topline
from console.widgets.trend import fit, sparkline
from console.widgets.wiring import strip
from console.wiring import Wiring

WRONG = Wiring(12, (3, 7, 10), (0, 3, 7), "probed", "measured")
LATE = Wiring(12, (3, 7, 10), (4, 8, 11), "probed", "measured")
RIGHT = Wiring(12, (3, 7, 10), (3, 7, 10), "probed", "measured")
BIG = Wiring(61, (3, 31, 59), (0, 3, 31), "probed", "measured")


def rows(content: Content) -> list[str]:
    return [row.rstrip() for row in content.plain.split("\n")]


def styles(content: Content, word: str) -> str:
    """The style under the first cell of a word."""
    at = content.plain.index(word)
    return " ".join(str(span.style) for span in content.spans if span.start <= at < span.end)


STRIPS = {
    "embedding": (
        WRONG,
        """
        trained              ▼3             ▼7         ▼10
               0 ┼───────────┼──────────────┼──────────┼──────── 12
        served   ▲0╌╌╌╌╌╌╌╌╌╌▶ ▲3╌╌╌╌╌╌╌╌╌╌╌▶ ▲7╌╌╌╌╌╌╌▶
        slot 0: fed 0, trained on 3, 3 early
        slot 1: fed 3, trained on 7, 4 early
        slot 2: fed 7, trained on 10, 3 early
        """,
    ),
    "late": (
        LATE,
        """
        trained              ▼3             ▼7         ▼10
               0 ────────────┼──┼───────────┼───┼──────┼───┼──── 12
        served               ◀  ▲4          ◀   ▲8     ◀   ▲11
        slot 0: fed 4, trained on 3, 1 late
        slot 1: fed 8, trained on 7, 1 late
        slot 2: fed 11, trained on 10, 1 late
        """,
    ),
    "right": (
        RIGHT,
        """
        trained              ▼3             ▼7         ▼10
               0 ────────────┼──────────────┼──────────┼──────── 12
        served               ▲3             ▲7         ▲10
        ✓ every slot is fed the state it was trained on
        """,
    ),
    "of 61 layers": (
        BIG,
        """
        trained    ▼3                   ▼31                  ▼59
               0 ┼─┼────────────────────┼────────────────────┼── 61
        served   ▲0╌▶ ▲3╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌▶ ▲31╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌▶
        slot 0: fed 0, trained on 3, 3 early
        slot 1: fed 3, trained on 31, 28 early
        slot 2: fed 31, trained on 59, 28 early
        """,
    ),
}


@pytest.mark.parametrize("name", STRIPS)
def test_the_strip(name: str) -> None:
    wiring, drawn = STRIPS[name]
    assert rows(strip(wiring, 60, UNICODE)) == dedent(drawn).strip().split("\n")


def test_the_strip_is_red_where_it_is_wrong_and_green_where_it_is_right() -> None:
    wrong, right = strip(WRONG, 60, UNICODE), strip(RIGHT, 60, UNICODE)
    assert all("$error" in styles(wrong, word) for word in ("▼3", "▲0", "╌", "slot 0"))
    assert all("$success" in styles(right, word) for word in ("▼3", "▲3", "✓"))
    assert "$error" not in str(right.spans)


@pytest.mark.parametrize("wiring", [WRONG, LATE, RIGHT, BIG], ids=["embedding", "late", "right", "big"])
def test_the_strip_fits_every_width_and_loses_no_mark(wiring: Wiring) -> None:
    for width in range(40, 200):
        drawn = rows(strip(wiring, width, UNICODE))
        assert max(len(row) for row in drawn[:3]) <= width
        assert all(f"▼{k}" in drawn[0] for k in wiring.trained or ())
        assert all(f"▲{k}" in drawn[2] for k in wiring.served or ())


def test_the_strip_in_ascii() -> None:
    drawn = strip(WRONG, 40, ASCII).plain
    assert drawn.isascii()
    assert drawn.startswith("trained        v3       v7     v10")


@pytest.mark.parametrize(
    ("wiring", "words"),
    [
        (None, "not known yet"),
        (Wiring(), "not known yet"),
        (Wiring(12), "neither side is known"),
        (Wiring(12, (3, 7, 10), None), "what is fed is not known"),
        (Wiring(12, None, (3, 7, 10)), "trained on: not measured"),
        (Wiring(12, (3, 7, 10), (3, 7)), "slot 2: trained on 10, not fed"),
        (Wiring(12, (3, 7), (3, 7, 10)), "slot 2: fed 10, not trained"),
        (Wiring(12, (3, 7, 10), (3, 8, 10)), "slot 1: fed 8, trained on 7, 1 late"),
        (
            Wiring(12, (3, 7, 10), None, since="10:00", after=(3, 7, 10)),
            "what is fed now is not known · config.json was",
        ),
        (Wiring(12, (3, 7, 10), (0, 3, 7), since="10:00", after=(3, 7, 10)), "after a restart: fed 3, 7, 10"),
        (Wiring(12, (3, 7, 10), (3, 7, 10), since="10:00", after=(0, 3, 7)), "after a restart: fed 0, 3, 7"),
    ],
)
def test_what_is_not_known_is_said(wiring: Wiring | None, words: str) -> None:
    assert words in strip(wiring, 120, UNICODE).plain


@pytest.mark.parametrize(
    ("values", "width", "low", "high", "drawn"),
    [
        ((1, 2, 3, 4, 5, 6), 10, 1, 6, "▁▂▄▅▇█"),
        (range(20), 5, 0, None, "▇▇███"),
        ((), 5, 0, None, ""),
        ((3, 3), 5, 3, 3, "▁▁"),
        ((0.0, 0.0), 5, 0, None, "▁▁"),
        ((-5, 99), 5, 0, 6, "▁█"),
    ],
)
def test_the_sparkline(values: Sequence[float], width: int, low: float, high: float | None, drawn: str) -> None:
    assert sparkline(values, width, low, high) == drawn


def test_a_text_is_cut_but_no_number_in_it() -> None:
    assert fit("by position .72 .47 .33", 23) == "by position .72 .47 .33"
    assert fit("by position .72 .47 .33", 20) == "by position .72 .47…"
    assert fit("by position .72 .47 .33", 18) == "by position .72…"
    assert fit("by position .72 .47 .33", 10) == "by positi…"
    assert fit("states 0,3,7: slot 0", 14) == "states 0,3,7:…"
    assert fit("states 0,3,7: slot 0", 13) == "states…"
    assert fit("1234567890", 5) == "1234…"


def test_the_heat_map_boxes_the_best_and_marks_what_is_fed() -> None:
    evidence = {
        "matrix": [[0.9, 0.5, 0.0, 0.8], [1.0, 0.4, None, 0.01]],
        "states": [0, 3, 7, 10],
        "best": [7, 10],
        "expected": [7, 3],
    }
    drawn = heat(evidence, 60)
    assert rows(drawn)[:3] == [
        "state      0   3   7  10",
        "slot 0        ▒▒ [█◆] ░░",
        "slot 1        ▒◆   ? [█]",
    ]
    assert "$success" in styles(drawn, "[█◆]")
    assert "$warning" in styles(drawn, "[█]")
    assert "$error" in styles(drawn, " ▒◆")


def test_the_heat_map_knows_states_by_number_and_by_name() -> None:
    evidence = {
        "matrix": [[0.9, 0.0, 0.8, 1.0]],
        "states": ["R_0", "R_7", "R_10", "N"],
        "best": ["R_7"],
        "expected": [0],
    }
    assert rows(heat(evidence, 60))[:2] == ["state      0   7  10   N", "slot 0     ◆ [█]  ░░"]


def test_a_wide_heat_map_keeps_the_columns_that_matter() -> None:
    evidence = {
        "matrix": [[abs(k - 31) / 61 for k in range(62)]],
        "states": list(range(62)),
        "best": [31],
        "expected": [3],
    }
    head, row, _ = rows(heat(evidence, 60))
    assert len(row) <= 60
    assert " 31 " in head
    assert "   3 " in head
    assert "|" in head
    assert "[█]" in row


@pytest.mark.parametrize("evidence", [{"matrix": []}, {"matrix": [[]]}, {"matrix": [[float("nan")]]}])
def test_a_heat_map_of_nothing_is_drawn(evidence: dict[str, object]) -> None:
    assert "slot" in heat(evidence, 60).plain or evidence == {"matrix": []}


TOP = TopLineValue("demo", "demo-gpu", True, 2.0, "demo, sglang 0.1", "serving", None, 2.8, 6, 142.8, 100.0)


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (120, " demo · ● demo-gpu · serving · accept 2.80/6 · 142.8 tok/s +42.8% · demo, sglang 0.1"),
        (80, " demo · ● demo-gpu · serving · accept 2.80/6 · 142.8 tok/s +42.8%"),
        (60, " demo · ● demo-gpu · serving · accept 2.80/6"),
        (40, " demo · ● demo-gpu · serving"),
        (20, " demo · ● demo-gpu"),
    ],
)
def test_the_top_line_drops_whole_parts(width: int, line: str) -> None:
    assert topline(TOP, width).plain == line


def test_the_top_line_tells_a_silent_link_and_one_that_is_lost() -> None:
    assert "● demo-gpu 12s" in topline(replace(TOP, silence=12.3), 120).plain
    assert "◌ demo-gpu" in topline(replace(TOP, linked=False), 120).plain
    assert topline(replace(TOP, read_only=True), 120).plain.endswith("read-only")


def test_what_was_measured_is_grey_in_the_top_line_once_it_is_stale() -> None:
    for stale in (False, True):
        drawn = topline(replace(TOP, stale=stale), 120)
        assert ("muted" in styles(drawn, "accept 2.80")) is stale
        assert ("muted" in styles(drawn, "142.8 tok/s")) is stale


@pytest.mark.parametrize(
    ("seconds", "words"), [(-1, "0s"), (42.9, "42s"), (185, "3m05"), (3599, "59m59"), (7620, "2h07"), (180000, "2d02h")]
)
def test_durations(seconds: float, words: str) -> None:
    assert elapsed_words(seconds) == words


def test_a_diff_says_what_changed_in_meaning_and_in_text() -> None:
    drawn = diff_content("[a]\nb\n", "[a]\nc\n", names=("on the host", "staged"), changes=["x: 1 → 2"])
    assert rows(drawn) == ["x: 1 → 2", "--- on the host", "+++ staged", "@@ -1,2 +1,2 @@", " [a]", "-b", "+c"]
    assert "$success" in styles(drawn, "+c")
    assert "$error" in styles(drawn, "-b")
    assert "no difference" in diff_content("a", "a", names=("", "")).plain


@pytest.mark.parametrize(
    ("text", "ascii"),
    [("╭─ a – b ─╮", "+- a - b -+"), ("▲0╌▶ ✓ ✗ …", "^0~> + x ~"), ("模型 é", "???? ?"), ("plain", "plain")],
)
def test_ascii_takes_as_many_cells(text: str, ascii: str) -> None:
    assert to_ascii(text) == ascii
    assert len(ascii) == cell_len(text)
