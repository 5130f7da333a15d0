"""Every screen: at every size, without colour, without UTF-8, allowed to change nothing, and with hostile text."""

from __future__ import annotations

import json
import locale
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from textual.document._syntax_aware_document import SyntaxAwareDocument
from textual.widgets import Input

from console.checking import Found, Report
from console.demo.setup import WIRINGS, wire
from console.embedded import Embedded
from console.screens.checks import ChecksScreen
from console.screens.dialogs import Line, Reading
from console.screens.draft import ConfigText
from console.topics import Topic
from tests.console.driving import Driver, driven, serving_host

SCREENS = {"1": "LiveScreen", "2": "DraftScreen", "3": "ChecksScreen", "4": "LaunchScreen", "5": "RunsScreen"}
SIZES = ((80, 24), (120, 36), (200, 60), (60, 20), (40, 12))
MARKUP = "[bold red]x[/] [/nope] [#1] [@click=app.leave()]y"


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with serving_host("embedding") as running:
        yield running


@pytest.fixture
async def driver(embedded: Embedded) -> AsyncIterator[Driver]:
    """The app on a host that serves a wrong wiring."""
    wire(embedded.folder.draft_config, WIRINGS["embedding"])
    async with driven(embedded.folder.deployment) as opened:
        yield opened


def possible(driver: Driver, key: str) -> bool:
    """Whether a key does something here and now."""
    return driver.app.screen.active_bindings[key].enabled


# -- sizes, colours, characters ----------------------------------------------------------------------------------


async def test_every_screen_fits_every_size_and_says_the_verdict(embedded: Embedded) -> None:
    async with driven(embedded.folder.deployment, SIZES[0]) as driver:
        await driver.until_shown("wiring – WRONG")
        await driver.go("3", "ChecksScreen")
        driver.app.run_checks(("cfg.aux_ids", "align.engine_pair"))
        await driver.checked()
        for size in (*SIZES, SIZES[0]):
            await driver.pilot.resize_terminal(*size)
            for key, screen in SCREENS.items():
                await driver.go(key, screen)
                await driver.until(lambda at=size: driver.shape == at, f"{screen} at {size}")  # type: ignore[misc]
                assert "demo" in driver.text.splitlines()[0]
                if key == "1":
                    await driver.until_shown("wiring – WRONG")
                if key == "3":
                    await driver.until_shown("checks – FAIL")
            await driver.press("question_mark")
            await driver.told("help")
            await driver.press("escape")


async def test_without_colour_every_cell_is_grey(embedded: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with driven(embedded.folder.deployment) as driver:
        await driver.until_shown("wiring – WRONG", "slot 0: fed 0, trained on 3, 3 early")
        for key, screen in SCREENS.items():
            await driver.go(key, screen)
            await driver.until(lambda: colours(driver), "a screen that is drawn")
            assert all(red == green == blue for red, green, blue in colours(driver))


def colours(driver: Driver) -> set[tuple[int, ...]]:
    """The colours of all cells on the screen."""
    return {
        tuple(colour.get_truecolor())
        for strip in driver.app.screen._compositor.render_strips()
        for segment in strip
        if segment.style is not None
        for colour in (segment.style.color, segment.style.bgcolor)
        if colour is not None
    }


async def test_without_utf8_every_cell_is_ascii(embedded: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locale, "getpreferredencoding", lambda _=True: "ANSI_X3.4-1968")
    async with driven(embedded.folder.deployment) as driver:
        await driver.until_shown("WRONG", "slot 0: fed 0, trained on 3, 3 early", "v3", "^0")
        for key, screen in SCREENS.items():
            await driver.go(key, screen)
            assert driver.text.isascii()
        await driver.press("question_mark")
        await driver.told("help")
        assert driver.text.isascii()


# -- keys that type, keys that act -------------------------------------------------------------------------------


async def test_letters_type_in_the_editor_and_escape_keeps_what_was_typed(driver: Driver) -> None:
    await driver.go("2", "DraftScreen")
    await driver.until_shown("config.json", "architectures")
    text = driver.app.screen.query_one(ConfigText)
    before = text.text
    await driver.press("e")
    await driver.until_shown("editing: Esc ends")
    typed = "qR15Sx?t@wuz"
    await driver.press("ctrl+home", *("question_mark" if c == "?" else "at" if c == "@" else c for c in typed))
    assert type(driver.app.screen).__name__ == "DraftScreen"
    assert text.text == typed + before
    await driver.press("escape")
    await driver.until_shown("staged, not written", "line 1")
    await driver.go("1", "LiveScreen")
    await driver.go("2", "DraftScreen")
    assert text.text == typed + before == driver.session.draft.staged
    while driver.session.draft.dirty:
        await driver.press("u")
    assert text.text == before


async def test_letters_type_in_a_line_and_escape_goes_back(driver: Driver) -> None:
    await driver.press("slash")
    await driver.until(lambda: isinstance(driver.app.screen, Line), "the line to type")
    await driver.press("q", "R", "1", "question_mark", "colon", "S")
    assert driver.app.screen.query_one(Input).value == "qR1?:S"
    await driver.press("escape")
    await driver.until_shown("wiring")
    assert type(driver.app.screen).__name__ == "LiveScreen"


async def test_the_editor_knows_json(driver: Driver) -> None:
    await driver.go("2", "DraftScreen")
    await driver.until_shown("architectures")
    text = driver.app.screen.query_one(ConfigText)
    assert text.language == "json"
    assert isinstance(text.document, SyntaxAwareDocument)
    assert text._highlights


async def test_what_was_changed_on_the_host_meanwhile_is_not_overwritten(driver: Driver, embedded: Embedded) -> None:
    config = embedded.folder.draft_config
    await driver.go("2", "DraftScreen")
    await driver.until_shown("architectures")
    driver.session.draft.set("/eagle_config/eagle_aux_hidden_state_layer_ids", [2, 6, 9])
    driver.app.publish(Topic.DRAFT)
    await driver.until_shown("staged, not written")
    theirs = json.loads(config.read_text("utf-8")) | {"written_by": "somebody else"}
    config.write_text(json.dumps(theirs, indent=2) + "\n", "utf-8")
    await driver.press("w")
    await driver.asked("Write ")
    await driver.press("y")
    await driver.asked("changed on the host meanwhile")
    assert json.loads(config.read_text("utf-8")) == theirs
    await driver.press("y")
    await driver.until_shown("staged, not written", "written_by")
    await driver.press("w")
    await driver.asked("Write ")
    await driver.press("y")
    await driver.until_shown("as on the host")
    both = json.loads(config.read_text("utf-8"))
    assert both["written_by"] == "somebody else"
    assert both["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]


async def test_a_staged_flag_is_shown_against_the_process_that_runs(driver: Driver) -> None:
    await driver.go("4", "LaunchScreen")
    await driver.until_shown("speculative-num-steps")
    table = driver.app.screen.query_one("#flags")
    table.move_cursor(row=table.get_row_index("speculative-num-steps"))  # type: ignore[attr-defined]
    await driver.press("enter")
    await driver.until(lambda: isinstance(driver.app.screen, Line), "the line to type")
    await driver.press("backspace", "3", "enter")
    await driver.until_shown("1 staged", "--speculative-num-steps 3", "against the process that runs now")
    await driver.press("R")
    await driver.asked("Restart the server?")
    assert "flags staged here" in driver.text
    await driver.press("n")
    await driver.until_shown("flags and environment")
    await driver.press("u")
    await driver.until(lambda: not driver.app.cockpit.overrides)


# -- without the right to change ---------------------------------------------------------------------------------


async def test_read_only_greys_what_would_change_and_refuses_it(embedded: Embedded) -> None:
    as_it_was = embedded.folder.draft_config.read_bytes()
    async with driven(embedded.folder.deployment, read_only=True) as driver:
        await driver.until_shown("wiring – WRONG", "read-only")
        assert not possible(driver, "R")
        assert not possible(driver, "S")
        await driver.press("R", "S")
        assert type(driver.app.screen).__name__ == "LiveScreen"
        await driver.go("2", "DraftScreen")
        assert not any(possible(driver, key) for key in "ewuz")
        await driver.press("e", "x")
        assert driver.app.screen.query_one(ConfigText).text == as_it_was.decode()
        await driver.go("3", "ChecksScreen")
        assert possible(driver, "c")
        driver.app.run_checks(("cfg.aux_ids", "align.engine_pair"))
        await driver.checked()
        await driver.until_shown("fix: ")
        assert not possible(driver, "f")
        await driver.press("f")
        assert type(driver.app.screen).__name__ == "ChecksScreen"
        await driver.go("4", "LaunchScreen")
        assert not possible(driver, "b")
        await driver.press("enter", "b")
        assert type(driver.app.screen).__name__ == "LaunchScreen"
        # Greyed keys are a courtesy; the session refuses as well.
        driver.app.run_stop()
        await driver.told("the server was not stopped")
        assert "read-only" in driver.text
        assert driver.session.last_status.up
    assert embedded.folder.draft_config.read_bytes() == as_it_was


async def test_a_check_that_is_run_again_keeps_its_row_and_the_cursor(embedded: Embedded) -> None:
    async with driven(embedded.folder.deployment) as driver:
        await driver.go("3", "ChecksScreen")
        board = driver.app.cockpit.board
        board.begin()
        for check, verdict in (("align.a", "FAIL"), ("align.b", "FAIL"), ("align.c", "PASS")):
            board.step(Found({**hostile(check), "verdict": verdict, "summary": f"{check} says"}))
        board.step(Report({"verdict": "FAIL", "findings": []}))
        driver.app.publish(Topic.CHECKS)
        await driver.until_shown("align.b says")
        await driver.press("down")
        screen = driver.app.screen
        assert isinstance(screen, ChecksScreen)
        for step, title in (
            (lambda: board.begin(("align.b",)), "checks – was FAIL"),
            (lambda: board.end("cancelled"), "checks – FAIL, interrupted"),
        ):
            step()
            driver.app.publish(Topic.CHECKS)
            await driver.until_shown("stale: align.b says", title)
            assert screen.current is not None and screen.current["check"] == "align.b"
            assert "stale: " in screen.copyable()
        board.begin(("align.b",))
        board.step(Found({**hostile("align.b"), "verdict": "PASS", "summary": "mended"}))
        board.step(Report({"verdict": "PASS", "findings": []}))
        driver.app.publish(Topic.CHECKS)
        await driver.until_shown("mended", "checks – FAIL")
        assert screen.current is not None and screen.current["check"] == "align.b"
        assert "stale: " not in screen.copyable()


async def test_a_run_of_all_checks_that_is_cancelled_keeps_what_was_found_before(embedded: Embedded) -> None:
    async with driven(embedded.folder.deployment) as driver:
        await driver.go("3", "ChecksScreen")
        board = driver.app.cockpit.board
        board.begin()
        for check in ("align.a", "align.b", "align.c"):
            board.step(Found({**hostile(check), "verdict": "PASS", "summary": f"{check} says"}))
        board.step(Report({"verdict": "PASS", "findings": []}))
        driver.app.publish(Topic.CHECKS)
        await driver.until_shown("checks – PASS")
        await driver.press("down")
        await driver.press("c")
        await driver.until_shown("checks – was PASS", "stale: align.a says", "x Cancel")
        await driver.press("x")
        await driver.until_shown("checks – UNKNOWN, interrupted", "cancelled", "stale: align.b says")
        screen = driver.app.screen
        assert isinstance(screen, ChecksScreen)
        assert screen.current is not None and screen.current["check"] == "align.b"


async def test_a_run_of_several_ends_on_the_worst_though_another_was_told_first(embedded: Embedded) -> None:
    async with driven(embedded.folder.deployment) as driver:
        await driver.go("3", "ChecksScreen")
        board = driver.app.cockpit.board
        board.begin(("cfg.a", "align.b"))
        for check, verdict in (("cfg.a", "PASS"), ("align.b", "FAIL")):
            board.step(Found({**hostile(check), "verdict": verdict, "summary": f"{check} says"}))
            driver.app.publish(Topic.CHECKS)
            await driver.until_shown(f"{check} says")
        board.step(Report({"verdict": "FAIL", "findings": []}))
        driver.app.publish(Topic.CHECKS)
        await driver.until_shown("checks – FAIL")
        screen = driver.app.screen
        assert isinstance(screen, ChecksScreen)
        assert screen.current is not None and screen.current["check"] == "align.b"


async def test_a_host_that_could_not_be_opened_is_tried_again_without_leaving(embedded: Embedded) -> None:
    known = embedded.folder.root / "ssh" / "known_hosts"
    as_it_was = known.read_text("utf-8")
    known.write_text("", "utf-8")
    try:
        async with driven(embedded.folder.deployment, connected=False) as driver:
            await driver.asked("Unknown host key")
            await driver.press("n")
            await driver.told("the host could not be opened")
            await driver.press("escape")
            await driver.until_shown("not connected: C tries again")
            assert possible(driver, "C")
            await driver.press("C")
            await driver.asked("Unknown host key")
            await driver.press("y")
            await driver.until(lambda: driver.app.cockpit.connected, "the connection")
            await driver.until_shown("wiring – WRONG")
            assert not possible(driver, "C")
    finally:
        known.write_text(as_it_was, "utf-8")


# -- hostile text ------------------------------------------------------------------------------------------------


def hostile(check: str) -> dict[str, Any]:
    return {
        "check": check,
        "verdict": "FAIL",
        "summary": f"{MARKUP} \x1b[2J\x1b]0;title\x07",
        "evidence": {MARKUP: MARKUP, "names": [MARKUP], "nested": {"key": MARKUP}},
        "fix": {"kind": "config", "patch": [{"op": "replace", "path": f"/{MARKUP}", "value": MARKUP}]},
        "help": MARKUP,
        "engine": MARKUP,
        "took_s": 0.1,
    }


async def test_markup_and_escapes_in_a_finding_are_text(embedded: Embedded) -> None:
    async with driven(embedded.folder.deployment, (320, 60)) as driver:
        await driver.go("3", "ChecksScreen")
        board = driver.app.cockpit.board
        board.begin()
        board.step(Found(hostile("align.x[/y]")))
        board.end(MARKUP)
        driver.app.publish(Topic.CHECKS)
        await driver.until_shown("align.x[/y]", r"\x1b[2J\x1b]0;title\x07")
        assert driver.text.count(MARKUP) >= 5
        assert driver.text.replace("\n", "").isprintable()


async def test_markup_in_a_config_is_text(embedded: Embedded) -> None:
    config = embedded.folder.draft_config
    as_it_was = config.read_text("utf-8")
    config.write_text(as_it_was.replace("{", '{"' + MARKUP + '": "' + MARKUP + '",', 1), "utf-8")
    try:
        async with driven(embedded.folder.deployment, (200, 60)) as driver:
            await driver.go("2", "DraftScreen")
            await driver.until_shown(MARKUP)
            driver.session.draft.edit(as_it_was.replace("{", '{"' + MARKUP + '": "[/other]",', 1))
            driver.app.publish(Topic.DRAFT)
            await driver.until_shown("[/other]", '-{"' + MARKUP[:40])
            await driver.press("w")
            await driver.asked("Write ")
            assert MARKUP in driver.text
            await driver.press("n")
    finally:
        config.write_text(as_it_was, "utf-8")


async def test_markup_in_flags_names_and_errors_is_text(driver: Driver) -> None:
    driver.app.cockpit.overrides[MARKUP] = MARKUP
    driver.app.publish(Topic.STATUS)
    await driver.go("4", "LaunchScreen")
    await driver.until_shown(MARKUP[:18])
    driver.app.cockpit.timeline.begin(MARKUP)
    driver.app.cockpit.timeline.step("loading", f"{MARKUP} \x1b[31m")
    driver.app.publish(Topic.TIMELINE)
    await driver.until_shown("[bold red]x", "loading")
    driver.app.cockpit.timeline.end(MARKUP)
    driver.app.fail(MARKUP, OSError(f"{MARKUP} \x1b[2J"))
    await driver.until(lambda: isinstance(driver.app.screen, Reading))
    await driver.until_shown(MARKUP, r"\x1b[2J")
