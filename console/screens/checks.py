"""Checks: every question with its verdict, and for the one under the cursor what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.coordinate import Coordinate
from textual.message import Message
from textual.widget import Widget
from textual.widgets import DataTable, Static
from textual.widgets.data_table import ColumnKey

from console import keys
from console.feeds import OPERATIONAL
from console.glyphs import glyphs
from console.plain import one_line, plain
from console.screens.base import ConsoleScreen
from console.screens.saying import READ_ONLY
from console.topics import Topic
from console.widgets.flagtable import clip
from console.widgets.heatmap import HeatMap
from console.widgets.trend import fit

# verdict -> (name of its glyph, style)
VERDICTS = {
    "PASS": ("ok", "$success"),
    "INFO": ("info", "$accent"),
    "WARN": ("warn", "$warning"),
    "FAIL": ("bad", "bold $error"),
    "UNKNOWN": ("unknown", "$secondary"),
}
_FAILING = ("FAIL", "WARN")
STALE = "stale: "
"""Before what was found until the check is run again, or that run was cancelled."""
# While checks run they stay in their order; then what asks for something comes first.
_WORST_FIRST = {"FAIL": 0, "WARN": 1, "UNKNOWN": 2}
_CHECK_WIDTH = 17  # at least; more where ids are longer and the summaries keep most of the width
_KEY_WIDTH = 22  # of evidence, at most: a longer one stands before its value all the same


class FindingList(DataTable[Content]):
    """The findings, worst first."""

    class Resized(Message):
        """The width to share out among the columns is another one."""

    def on_mount(self) -> None:
        """Glyph, check, summary."""
        self.add_column(" ", width=1)
        self.add_column("check", width=_CHECK_WIDTH, key="check")
        self.add_column("summary", width=20, key="summary")

    def on_resize(self) -> None:
        """Say so: the screen's own size changes before that of its parts."""
        self.post_message(self.Resized())


class ChecksScreen(ConsoleScreen):
    """Runs the checks on the host and says, with numbers, what is wrong and what to do.

    c runs all of them, full stop the one under the cursor, x cancels. f stages the fix and goes where it is written.
    A server that gives hidden states is sent a few cached texts for them; nothing is restarted or flushed.
    """

    CSS_PATH = "checks.tcss"
    BINDINGS = keys.CHECKS
    AUTO_FOCUS = "DataTable"

    def __init__(self) -> None:
        super().__init__()
        self._only_failing = False
        self._shown: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}
        self._judged: float | None = None
        self._drawn: list[tuple[dict[str, Any], bool]] = []
        self._layout = (0, 0)
        self._detailed: tuple[dict[str, Any] | None, bool] = (None, False)

    def body(self) -> Iterable[Widget]:
        """List and detail."""
        with Container(id="split"):
            table = FindingList(id="list", cursor_type="row", cursor_foreground_priority="renderable", classes="panel")
            table.border_title = "checks"
            yield table
            with VerticalScroll(id="detail", classes="panel") as detail:
                detail.border_title = "evidence"
                yield Static(id="summary")
                yield HeatMap()
                yield Static(id="facts")

    def on_finding_list_resized(self) -> None:
        """The summary takes what the other columns leave."""
        self._fill()

    def redraw(self, topic: Topic) -> None:
        """The list on CHECKS."""
        if topic is Topic.CHECKS:
            self._fill()

    @property
    def current(self) -> dict[str, Any] | None:
        """The finding under the cursor."""
        row = self.query_one("#list", DataTable).cursor_row
        return self._shown[row] if 0 <= row < len(self._shown) else None

    def _fill(self) -> None:
        board, table = self.cockpit.board, self.query_one(FindingList)
        # A run of one check leaves the cursor on it, and one that was cancelled where it is; else it ends on the worst.
        ended = board.took not in (None, self._judged) and not board.error
        chosen = None if ended and len(board.only) != 1 else self.current
        self._judged = board.took
        self._order()
        # 1 cell for the glyph, 2 of padding a column, 1 for the scroll bar.
        longest = max((len(item["check"]) for item in board.findings), default=0)
        names = max(_CHECK_WIDTH, min(longest, table.size.width // 3))
        layout = (names, max(20, table.size.width - names - 8))
        rows = [(item, item["check"] in board.stale) for item in self._shown]
        if layout != self._layout or len(rows) < len(self._drawn):
            self._layout, self._drawn = layout, []
            table.clear()
            table.columns[ColumnKey("check")].width, table.columns[ColumnKey("summary")].width = layout
        # Only what is another: filling the table anew with each finding would stop the screen.
        for place, (item, stale) in enumerate(rows):
            if place >= len(self._drawn):
                table.add_row(*_cells(item, stale, layout))
            elif self._drawn[place] != (item, stale):
                for column, cell in enumerate(_cells(item, stale, layout)):
                    table.update_cell_at(Coordinate(place, column), cell)
        self._drawn = rows
        if self._shown:
            table.move_cursor(row=_row_of(chosen, self._shown))
        table.border_title = self._title()
        table.border_subtitle = Content(fit(self._subtitle(), table.size.width - 4))
        self._detail()

    def _order(self) -> None:
        """The worst first; while a run goes on each check keeps its place, and new ones come behind."""
        board, ordered = self.cockpit.board, list(self.cockpit.board.findings)
        if board.busy:
            ordered.sort(key=lambda item: self._places.get(item["check"], len(self._places)))
        else:
            ordered.sort(key=lambda item: _WORST_FIRST.get(item["verdict"], len(_WORST_FIRST)))
            self._places = {item["check"]: place for place, item in reversed(list(enumerate(ordered)))}
        self._shown = [item for item in ordered if not self._only_failing or item["verdict"] in _FAILING]

    def _title(self) -> Content:
        board = self.cockpit.board
        if not board.started:
            return Content("checks – c runs them on the host")
        if not board.verdict:
            return Content("checks")
        if board.busy:
            return Content(f"checks – was {board.verdict}")
        style = VERDICTS.get(board.verdict, VERDICTS["UNKNOWN"])[1]
        return Content.assemble("checks – ", (board.verdict, style), f", {board.lacking}" if board.lacking else "")

    def _subtitle(self) -> str:
        board = self.cockpit.board
        if board.busy:
            count = f" {board.done}/{board.total}" if board.total else ""
            return f"{glyphs().running} {board.running or 'starting'}{count} {one_line(board.note)}"
        if board.took is None:
            return ""
        stale = sum(item["check"] in board.stale for item in board.findings)
        found = f"{len(board.findings)} finding{'s' if len(board.findings) != 1 else ''}"
        parts = [
            one_line(board.error),
            "only failing" if self._only_failing else "",
            f"{stale} of {found} stale" if stale else found,
        ]
        return " – ".join(filter(None, parts)) + ("" if board.error else f" in {board.took:.1f}s")

    def _detail(self) -> None:
        item = self.current
        stale = item is not None and item["check"] in self.cockpit.board.stale
        if item is self._detailed[0] and stale == self._detailed[1]:
            return
        self._detailed = (item, stale)
        fixable = not self.why_not("fix")
        self.query_one("#detail").border_subtitle = "f stages the fix" if fixable else ""
        heat = self.query_one(HeatMap)
        heat.evidence = (item or {}).get("evidence") if item and _is_matrix(item) else None
        heat.display = heat.evidence is not None
        self.query_one("#summary", Static).update(summary_content(item, stale) if item else Content(""))
        self.query_one("#facts", Static).update(facts_content(item) if item else Content(""))

    def on_data_table_row_highlighted(self) -> None:
        """The cursor moved: show what that check measured."""
        self._detail()
        self.show_keys()

    def copyable(self) -> str:
        """The finding under the cursor, as text."""
        item = self.current
        if item is None:
            return ""
        stale = item["check"] in self.cockpit.board.stale
        return f"{summary_content(item, stale).plain}\n{facts_content(item).plain}"

    # -- keys ---------------------------------------------------------------------------------------------------

    def why_not(self, action: str) -> str:
        """One run at a time; a fix belongs to a finding."""
        board, item = self.cockpit.board, self.current
        if action == "cancel":
            return "" if board.busy else "no checks run"
        if action in ("run_all", "run_one"):
            if self.session is None:
                return "not connected yet"
            if board.busy:
                return "checks run already: x cancels them"
            return "no finding is under the cursor" if action == "run_one" and item is None else ""
        if action == "fix":
            if self.console_app.read_only:
                return READ_ONLY
            if item is not None and item.get("fix"):
                return ""
            which = f"{one_line(item['check'])} has no fix" if item else "no finding is under the cursor"
            return f"checks still run; f when they are done ({which})" if board.busy else which
        return ""

    def action_run_all(self) -> None:
        """Run every check on the host."""
        self.console_app.run_checks()

    def action_run_one(self) -> None:
        """Run the check under the cursor again."""
        if self.current:
            self.console_app.run_checks((self.current["check"],))

    def action_cancel(self) -> None:
        """Cancel the run; the process on the host ends too."""
        self.app.workers.cancel_group(self.app, "check")

    def action_only_failing(self) -> None:
        """Show only WARN and FAIL, or everything again."""
        self._only_failing = not self._only_failing
        self._fill()

    def action_fix(self) -> None:
        """Stage the fix of the finding under the cursor, and go where it is written."""
        finding, session = self.current, self.session
        if session is None or finding is None or not finding.get("fix"):
            return
        if finding["fix"]["kind"] == "config":
            try:
                session.draft.stage_fix(finding["fix"], finding)
            except OPERATIONAL as error:
                self.console_app.fail("the fix was not staged", error)
                return
            self.console_app.publish(Topic.DRAFT)
            self.app.switch_mode("draft")
        else:
            flags = finding["fix"]
            self.cockpit.overrides.update({**flags.get("set", {}), **dict.fromkeys(flags.get("unset", ()))})
            self.cockpit.causing = finding
            self.console_app.publish(Topic.STATUS)
            self.app.switch_mode("launch")


def _cells(item: dict[str, Any], stale: bool, layout: tuple[int, int]) -> tuple[Content, Content, Content]:
    """Glyph, check and summary of a finding in columns of these widths; dim while it is stale."""
    glyph, style = VERDICTS.get(item["verdict"], VERDICTS["UNKNOWN"])
    engine = f" ({item['engine']})" if item.get("engine") else ""
    summary = fit(one_line(f"{STALE if stale else ''}{item['summary']}{engine}"), layout[1])
    return (
        Content.styled(getattr(glyphs(), glyph), f"{style} dim" if stale else style),
        Content.styled(clip(item["check"], layout[0]), f"{style} dim" if stale else style),
        Content.styled(summary, "dim" if stale else ""),
    )


def _is_matrix(item: dict[str, Any]) -> bool:
    matrix = item.get("evidence", {}).get("matrix")
    return isinstance(matrix, list) and bool(matrix) and isinstance(matrix[0], list)


def _row_of(chosen: dict[str, Any] | None, shown: Sequence[dict[str, Any]]) -> int:
    """The row of what was under the cursor: the same finding, else one of the same check; the first FAIL for none."""
    if chosen in shown:
        return shown.index(chosen)
    check, engine = (chosen["check"], chosen.get("engine")) if chosen else (None, None)
    tests: tuple[Callable[[dict[str, Any]], bool], ...] = (
        lambda item: item["check"] == check and item.get("engine") == engine,
        lambda item: item["check"] == check,
        lambda item: item["verdict"] == "FAIL",
    )
    return next((row for test in tests for row, item in enumerate(shown) if test(item)), 0)


def summary_content(item: dict[str, Any], stale: bool = False) -> Content:
    """Verdict, summary, and the fix if there is one; `stale`: found before a run that has not told."""
    glyph, style = VERDICTS.get(item["verdict"], VERDICTS["UNKNOWN"])
    rows = [
        Content.assemble(
            (f"{getattr(glyphs(), glyph)} {item['verdict']} ", style), (one_line(item["check"]), "$foreground-muted")
        ),
        Content.styled(plain(f"{STALE if stale else ''}{item['summary']}"), "bold"),
        Content(""),
    ]
    if item.get("fix"):
        rows += [Content.styled(f"fix: {one_line(fix_words(item['fix']))}", "bold $success"), Content("")]
    return Content("\n").join(rows)


def fix_words(fix: dict[str, Any]) -> str:
    """What a fix changes, in one line."""
    if fix.get("kind") == "config":
        changes = [op for op in fix.get("patch", ()) if op.get("op") != "test"]
        return "; ".join(f"{op.get('op')} {op.get('path')} = {op.get('value')}" for op in changes)
    parts = [f"--{key} {value}" for key, value in fix.get("set", {}).items()]
    parts += [f"drop --{key}" for key in fix.get("unset", ())]
    parts += [f"{key}={value}" for key, value in fix.get("env", {}).items()]
    return "; ".join(parts)


def facts_content(item: dict[str, Any]) -> Content:
    """The evidence as a table, then what the check is about; the matrix is drawn above it instead."""
    shown = {
        one_line(key): value
        for key, value in item.get("evidence", {}).items()
        if not (key == "matrix" and _is_matrix(item))
    }
    width = min(max(map(len, (*shown, "took"))), _KEY_WIDTH) + 2
    rows = [
        Content.assemble((f"{key:<{width - 1}} ", "$foreground-muted"), plain(_value(value)))
        for key, value in shown.items()
    ]
    took = Content.assemble((f"{'took':<{width}}", "$foreground-muted"), f"{item.get('took_s', 0):.2f}s")
    about = [Content(""), Content.styled(plain(item["help"]), "$foreground-muted")] if item.get("help") else []
    return Content("\n").join([*rows, took, *about])


def _value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list) and all(not isinstance(item, (list, dict)) for item in value):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, (dict, list)):
        import json

        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
