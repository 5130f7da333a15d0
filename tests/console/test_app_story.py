"""The main job by keys alone, over a real SSH connection: from a red strip to a green one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from console.demo.setup import TRAINED_STATES, WIRINGS, make_folder
from console.deployment import Deployment
from console.embedded import embedded_host
from console.screens.draft import DraftScreen
from console.screens.launch import LaunchScreen
from console.widgets.topline import TopLine
from console.widgets.wiring import WiringStrip
from tests.console.driving import Driver, driven, start_server, stop_server, traffic
from tests.remote.servers import openssh_server

FINE = ("PASS", "INFO")
LINES_ENOUGH = 12  # decode lines that a mean accept length is taken over before it is compared


@asynccontextmanager
async def on_embedded(folder: Path) -> AsyncIterator[Deployment]:
    """The host that the demo brings along."""
    with embedded_host("embedding") as embedded:
        yield embedded.folder.deployment


@asynccontextmanager
async def on_openssh(folder: Path) -> AsyncIterator[Deployment]:
    """Debian's sshd, the demo's files in its home."""
    async with openssh_server(folder / "ssh") as server:
        made = make_folder(folder / "demo", "embedding").deployment
        deployment = replace(
            made, host=replace(made.host, ssh=server.address), ssh_config=server.config, history=folder / "history"
        )
        try:
            yield deployment
        finally:
            await stop_server(deployment)


HOSTS = {"embedded": on_embedded, "openssh": on_openssh}


@pytest.mark.parametrize("host", HOSTS)
async def test_a_wrong_wiring_is_seen_proven_fixed_and_better(host: str, tmp_path: Path) -> None:
    async with HOSTS[host](tmp_path) as deployment:
        await start_server(deployment)
        with traffic(deployment.server.url):
            async with driven(deployment) as driver:
                config = Path(deployment.model.draft) / "config.json"
                await the_strip_is_red_without_asking(driver)
                before = await accept_length(driver)
                await the_checks_find_it(driver)
                await the_fix_is_written(driver, config)
                await the_server_is_restarted(driver)
                after = await accept_length(driver)
                assert after > 1.3 * before
                await everything_is_right(driver)
                await the_history_tells(driver)
                await the_server_is_stopped(driver)


async def accept_length(driver: Driver) -> float:
    """The mean over this life of the server, once it stands on enough lines."""
    serving = driver.session.serving
    await driver.until(lambda: serving.windows >= LINES_ENOUGH, "enough decode lines")
    assert serving.mean_accept_len is not None
    return serving.mean_accept_len


async def the_strip_is_red_without_asking(driver: Driver) -> None:
    await driver.until_shown("wiring – WRONG", "slot 0: fed 0, trained on 3, 3 early", "slot 1: fed 3, trained on 7")
    panel = driver.app.screen.query_one("#wiring")
    assert panel.has_class("bad")
    assert panel.styles.border_top[1].hex == driver.app.theme_variables["error"].upper()
    await driver.until_shown("accept length", "serving", "decode")
    top = driver.app.screen.query_one(TopLine).render().plain
    assert "demo-gpu" in top or "gpu-box" in top
    assert "/6" in top


async def the_checks_find_it(driver: Driver) -> None:
    await driver.go("3", "ChecksScreen")
    await driver.press("c")
    found = await driver.checked()
    assert driver.app.cockpit.board.verdict == "FAIL"
    assert [found[name]["verdict"] for name in ("align.engine_pair", "align.states", "align.embedding")] == ["FAIL"] * 3
    assert found["align.engine_pair"]["evidence"]["engine_states"] == [0, 3, 7]
    assert found["align.engine_pair"]["evidence"]["trained_states"] == list(TRAINED_STATES)
    # The cursor stands on the worst finding, with what is wrong and the right ids in words.
    await driver.until_shown("checks – FAIL", "FAIL align.", "fix:", "[2, 6,")


async def the_fix_is_written(driver: Driver, config: Path) -> None:
    as_it_was = config.read_bytes()
    await driver.press("f")
    await driver.until(lambda: isinstance(driver.app.screen, DraftScreen), "the draft screen")
    await driver.until_shown("staged, not written", "every slot is fed the state it was trained on")
    assert config.read_bytes() == as_it_was
    await driver.press("w")
    await driver.asked("Write ")
    assert "-1" in driver.text
    await driver.press("y")
    await driver.until(lambda: config.read_bytes() != as_it_was, "the write")
    await driver.until_shown("as on the host")
    written = json.loads(config.read_text("utf-8"))
    assert written["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == list(WIRINGS["right"])
    assert as_it_was in [path.read_bytes() for path in config.parent.rglob("*") if path.is_file() and path != config]


async def the_server_is_restarted(driver: Driver) -> None:
    timeline, first = driver.app.cockpit.timeline, driver.session.last_status.pid
    await driver.press("R")
    await driver.asked("Restart the server?")
    assert "the fix of align." in driver.text
    await driver.press("y")
    await driver.until(lambda: timeline.started and not timeline.busy, "the end of the restart")
    assert timeline.error == ""
    assert isinstance(driver.app.screen, LaunchScreen)
    names = [step.name for step in timeline.steps]
    assert [name for name in names if name in ("stop", "start", "loading", "ready")] == [
        "stop", "start", "loading", "ready",
    ]  # fmt: skip
    await driver.until_shown("loading", "ready")
    assert driver.session.last_status.pid not in (None, first)


async def everything_is_right(driver: Driver) -> None:
    board = driver.app.cockpit.board
    await driver.go("3", "ChecksScreen")
    await driver.press("c")
    await driver.until(lambda: board.busy, "the second run of the checks")
    found = await driver.checked()
    assert [
        (item["verdict"], name, item["summary"]) for name, item in found.items() if item["verdict"] not in FINE
    ] == []
    assert board.verdict == "PASS"
    await driver.go("1", "LiveScreen")
    await driver.until_shown("wiring – right", "every slot is fed the state it was trained on")
    assert driver.app.screen.query_one("#wiring").has_class("good")
    assert driver.app.screen.query_one(WiringStrip).wiring is not None


async def the_history_tells(driver: Driver) -> None:
    await driver.go("5", "RunsScreen")
    await driver.until(lambda: driver.app.screen.query_one("#runs").row_count == 2, "two runs")  # type: ignore[attr-defined]
    runs = await driver.session.runs.list("demo")
    assert [run.verdict for run in runs] == ["PASS", "FAIL"]
    assert runs[0].finding is not None
    assert runs[0].finding["check"].startswith("align.")
    assert runs[0].config_sha != runs[1].config_sha
    await driver.until_shown("PASS", "FAIL", "first start")
    await driver.press("equals_sign")
    await driver.until_shown(f"run {runs[1].id}", f"run {runs[0].id}", "verdict")


async def the_server_is_stopped(driver: Driver) -> None:
    await driver.press("S")
    await driver.asked("Stop the server?")
    await driver.press("y")
    await driver.until(lambda: not driver.session.last_status.up, "the stop")
