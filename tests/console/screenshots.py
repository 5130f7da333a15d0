"""`make screenshots`: every screen at three sizes, before and after the fix, from a live demo, as SVG and PNG.

Nothing shown is made up. So that no picture names the machine it was taken on, the embedded host's home is reached
through a link with a neutral name (/home/demo where it can be made), and Python and this package through links in it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import console
from console.demo.setup import DemoFolder
from console.deployment import CacheSpec, Deployment, ModelSpec
from console.embedded import embedded_host
from console.screens.dialogs import Question
from tests.console.driving import Driver, driven, start_server
from tests.console.pictures import PNG_WIDTHS, NoConverter, self_contained, write_png

SIZES = ((80, 24), (120, 36), (200, 60))
SCREENS = {"live": "1", "draft": "2", "checks": "3", "launch": "4", "runs": "5"}
DOCS = Path(__file__).resolve().parents[2] / "docs" / "screenshots"
LINES = 40  # decode lines of a life of the server before its picture is taken


@contextmanager
def neutral(folder: DemoFolder) -> Iterator[Deployment]:
    """The deployment with the same files under paths that say nothing of this machine."""
    home = _linked(folder.home)
    (folder.home / "venv").symlink_to(sys.prefix)
    (folder.home / "src").symlink_to(Path(console.__file__).resolve().parents[1])
    made = folder.deployment
    try:
        yield replace(
            made,
            host=replace(made.host, python=str(home / "venv" / "bin" / "python")),
            model=ModelSpec(str(home / "target"), str(home / "draft")),
            caches=(CacheSpec(str(home / "hidden_states")),),
            server=replace(
                made.server, log=str(home / "server.log"), env={**made.server.env, "PYTHONPATH": str(home / "src")}
            ),
        )
    finally:
        home.unlink()


def _linked(home: Path) -> Path:
    for link in (Path("/home/demo"), Path(tempfile.gettempdir()) / "demo"):
        try:
            link.symlink_to(home)
        except OSError:
            continue
        return link
    raise SystemExit("error: neither /home/demo nor a demo in the temporary folder can be made; remove what is there")


async def take(out: Path, sizes: tuple[tuple[int, int], ...]) -> None:
    """Play the story and take the pictures."""
    with embedded_host("embedding") as embedded, neutral(embedded.folder) as deployment:
        await start_server(deployment)
        embedded.begin_traffic()
        async with driven(deployment, (120, 36)) as driver:
            shots = Shots(driver, out, sizes)
            await served(driver)
            await judged(driver)
            await driver.until_shown("fix: ")
            await driver.press("f")
            await driver.until_shown("staged, not written")
            await shots.every_screen("before")
            await shots.dialog("before", "2", "w", "Write ")
            await driver.press("w")
            await driver.asked("Write ")
            await driver.press("y")
            await driver.until_shown("as on the host")
            await shots.dialog("after", "1", "R", "Restart the server?")
            await driver.press("R")
            await driver.asked("Restart the server?")
            await driver.press("y")
            timeline = driver.app.cockpit.timeline
            await driver.until(lambda: timeline.started and not timeline.busy, "the end of the restart")
            await served(driver)
            await judged(driver)
            await shots.every_screen("after")


async def served(driver: Driver) -> None:
    """Wait until the accept length stands on enough lines."""
    await driver.until(lambda: driver.session.serving.windows >= LINES, "enough decode lines")


async def judged(driver: Driver) -> None:
    """Run all checks."""
    await driver.go("3", "ChecksScreen")
    await driver.press("c")
    await driver.until(lambda: driver.app.cockpit.board.busy, "the run of the checks")
    await driver.checked()


class Shots:
    """Writes what stands on the screen."""

    def __init__(self, driver: Driver, out: Path, sizes: tuple[tuple[int, int], ...]) -> None:
        self.driver, self.out, self.sizes = driver, out, sizes

    async def every_screen(self, when: str) -> None:
        """Each screen at each size, and help."""

        async def each(size: tuple[int, int]) -> None:
            for name, key in SCREENS.items():
                await self.driver.go(key, f"{name.capitalize()}Screen")
                if name == "runs":
                    await self.driver.press("equals_sign")
                await self.shoot(f"{name}-{when}", size)
            await self.driver.go("1", "LiveScreen")
            await self.driver.press("question_mark")
            await self.driver.told("help")
            await self.shoot(f"help-{when}", size)
            await self.driver.press("escape")

        await self.at_each_size(each)

    async def dialog(self, when: str, screen: str, key: str, title: str) -> None:
        """A question at each size, answered with no."""

        async def each(size: tuple[int, int]) -> None:
            await self.driver.press(screen)
            await self.quiet()
            await self.driver.press(key)
            await self.driver.asked(title)
            await self.shoot(f"dialog-{when}", size)
            await self.driver.press("n")
            await self.driver.until(lambda: not isinstance(self.driver.app.screen, Question), "the answer")

        await self.at_each_size(each)

    async def at_each_size(self, shoot: Callable[[tuple[int, int]], Awaitable[None]]) -> None:
        for size in self.sizes:
            await self.driver.pilot.resize_terminal(*size)
            await shoot(size)

    async def quiet(self) -> None:
        """Wait until no notification covers the screen in front."""
        self.driver.app.clear_notifications()
        await self.driver.until(lambda: not self.driver.app.screen.query("Toast"), "the end of the notifications")

    async def shoot(self, name: str, size: tuple[int, int]) -> None:
        """One picture, once what was published is drawn."""
        await self.driver.until(lambda: self.driver.shape == size, f"{name} at {size}")
        await self.quiet()
        # Two of the app's own redraws: workers of a screen that has just come to the front have then been seen.
        for _ in range(2):
            await self.driver.pilot.pause(0.3)
        svg = self_contained(self.driver.app.export_screenshot(title="console demo"))
        path = self.out / f"{name}-{size[0]}x{size[1]}.svg"
        path.write_text(svg, "utf-8")
        print(path.name, file=sys.stderr)


def convert(out: Path) -> None:
    """A PNG beside every SVG."""
    for path in sorted(out.glob("*.svg")):
        columns = int(path.stem.rpartition("-")[2].partition("x")[0])
        write_png(path.read_text("utf-8"), path.with_suffix(".png"), PNG_WIDTHS.get(columns, 10 * columns))


def main() -> int:
    """Entry of `python -m tests.console.screenshots`; 3 when there is nothing to make PNGs with."""
    parser = argparse.ArgumentParser(prog="make screenshots", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=DOCS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(args.out, SIZES))
    try:
        convert(args.out)
    except NoConverter as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
