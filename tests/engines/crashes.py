"""Ways for SGLang to die that can be forced: how each is provoked, and what its log must be read as.

`python -m tests.engines.crashes NAME…` provokes them and keeps their logs as the recordings beside this file.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.engines.events import Error, Phase
from checks.engines.sglang import log
from console.demo.setup import RIGHT
from tests.console.engine_process import READY, running_engine, speculative_flags
from tests.engines.pair import Pair, copied_pair, prompts
from tests.engines.serving import ROOT, EngineServer, running_sglang, unused_port

RECORDINGS = Path(__file__).with_name("recordings")


@dataclass(frozen=True)
class Crash:
    """One way to die: `provoke` makes a server die so and gives its log, which must be read as `expected`."""

    provoke: Callable[[Path], str]
    expected: Reading


@dataclass(frozen=True)
class Reading:
    """What a log was read as: phases as entered, each once, and the class of the error that says why it died."""

    phases: tuple[str, ...]
    cause: str


SYMPTOMS = ("exception", "child-died", "start-failed")
"""Classes that say that it died, and not why."""


def read(text: str, grammar: Any = log) -> Reading:
    """A whole log through a parser: SGLang's, or the one given."""
    events = list(grammar.parse_lines(text.splitlines()))
    phases = dict.fromkeys(event.phase for event in events if isinstance(event, Phase))
    fatal = [event.kind for event in events if isinstance(event, Error) and event.fatal]
    return Reading(tuple(phases), next((kind for kind in fatal if kind not in SYMPTOMS), (fatal or [""])[0]))


def _start_only(change: Callable[[Pair], None], **args: object) -> Callable[[Path], str]:
    """A start that fails by itself, of the pair changed by `change`."""

    def provoke(folder: Path) -> str:
        pair = copied_pair(folder, RIGHT)
        change(pair)
        with running_sglang(folder, pair.target, pair.draft, args=args) as server:
            server.await_end()
            return server.log()

    return provoke


def _nothing(pair: Pair) -> None:
    """The pair as it is shipped."""


def _ids(*ids: object) -> Callable[[Pair], None]:
    def change(pair: Pair) -> None:
        pair.edit({"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True}})

    return change


def _without_draft(pair: Pair) -> None:
    pair.draft.rename(pair.draft.with_name("elsewhere"))


def _port_taken(folder: Path) -> str:
    """Another server that speaks SGLang's protocol owns the port, and answers the warm-up in the new one's place."""
    pair, port = copied_pair(folder, RIGHT), unused_port()
    with running_engine(folder, pair.target, *speculative_flags(pair.draft), port=port) as older:
        older.wait_for(READY)
        with running_sglang(folder, pair.target, pair.draft, port=port) as server:
            server.await_end()
            return server.log()


def _killed_scheduler(folder: Path) -> str:
    """The scheduler is killed in service, as the system does when memory runs out."""
    pair = copied_pair(folder, RIGHT)
    with running_sglang(folder, pair.target, pair.draft) as server:
        server.await_healthy()
        server.generate(prompts(1)[0], 96)
        os.kill(child(server, b"sglang::scheduler"), signal.SIGKILL)
        server.await_end()
        return server.log()


def child(server: EngineServer, title: bytes) -> int:
    """The process that a server started and that calls itself so. Raises AssertionError when there is none."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = re.search(rf"^PPid:\t{server.process.pid}$", (folder / "status").read_text(), re.MULTILINE)
            name = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if ours and name.startswith(title):
            return int(folder.name)
    raise AssertionError(f"the server has no process {title.decode()}")


def _reading(cause: str, *phases: str) -> Reading:
    return Reading((*phases, "crashed"), cause)


CRASHES: dict[str, Crash] = {
    "port-taken": Crash(_port_taken, _reading("port-taken", "starting", "loading", "warming")),
    "missing-draft": Crash(_start_only(_without_draft), _reading("path-missing")),
    "ids-at-last-layer": Crash(_start_only(_ids(2, 6, 11)), _reading("aux-width", "starting", "loading", "warming")),
    "ids-as-strings": Crash(_start_only(_ids("2", "6", "9")), _reading("aux-ids-type", "starting", "loading")),
    "killed-scheduler": Crash(
        _killed_scheduler, _reading("child-died", "starting", "loading", "warming", "ready", "serving")
    ),
    "too-little-memory": Crash(
        # Less than nothing: what is free changes while the weights load, and may just suffice for next to nothing.
        _start_only(_nothing, **{"mem-fraction-static": -1.0, "max-total-tokens": None}),
        _reading("out-of-memory", "starting", "loading"),
    ),
}


def neutral(text: str, folder: Path) -> str:
    """A log without the paths of the machine it was made on."""
    for path, name in ((str(folder), "/models"), (sys.base_prefix, "/usr"), (str(ROOT), "/src")):
        text = text.replace(path, name)
    text = re.sub(r"/\S*?/(?=lib/python3\.\d+/site-packages/)", "/venv/", text)
    return re.sub(r"(?<=server_args=ServerArgs\().*", "…", text)


def main() -> None:
    """Record the crashes named, or all."""
    RECORDINGS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CRASHES:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place).resolve()
            text = neutral(CRASHES[name].provoke(folder), folder)
        (RECORDINGS / f"{name}.log").write_text(text, "utf-8")
        print(f"{name}: {read(text)} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
