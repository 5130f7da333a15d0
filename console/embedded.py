"""The embedded host as the console uses it: begun in a temporary folder, ended with everything that ran on it."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from console.apikey import api_key
from console.demo.host import MARK
from console.demo.setup import DemoFolder, make_folder
from console.demo.traffic import KEY_VARIABLE
from console.errors import NotRun

_START_S = 30.0
_END_S = 20.0
_PACKAGE_ROOT = Path(__file__).resolve().parents[1]


@dataclass(slots=True)
class Embedded:
    """A running embedded host. `traffic` is what sends prompts to its engine, once begun."""

    folder: DemoFolder
    process: subprocess.Popen[bytes]
    traffic: subprocess.Popen[bytes] | None = None

    def begin_traffic(self) -> None:
        """Send prompts to the engine, over and over, at a modest pace; it waits while the engine is down.

        It ends when something else has come to the engine's port and refuses it; then it is begun anew.
        """
        if self.traffic is None or self.traffic.poll() is not None:
            self.traffic = _python(
                ["-m", "console.demo.traffic", "--url", self.folder.deployment.server.url],
                self.folder.root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                more={KEY_VARIABLE: api_key(self.folder.deployment, ())},
            )

    def end(self) -> None:
        """End the traffic, and the host with all that was started through it."""
        if self.traffic is not None:
            self.traffic.terminate()
            self.traffic.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def embedded_host(wiring: str) -> Iterator[Embedded]:
    """An embedded host whose draft is wired as `wiring` says; it and its folder are gone afterwards.

    However this process ends, the host notices the end of its pipe and cleans up. Raises NotRun when it does not start.
    """
    root = Path(tempfile.mkdtemp(prefix="console-demo-")).resolve()
    folder = make_folder(root, wiring)
    process = _python(
        ["-m", "console.demo.host", "--dir", str(root), "--remove"], root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    embedded = Embedded(folder, process)
    try:
        _await_listening(process, root / "demo.log")
        yield embedded
    finally:
        embedded.end()
        shutil.rmtree(root, ignore_errors=True)


def _await_listening(process: subprocess.Popen[bytes], log: Path) -> None:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _START_S)
    line = process.stdout.readline() if ready else b""
    try:
        json.loads(line)
    except ValueError:
        said = log.read_text("utf-8", "replace").strip().splitlines()
        raise NotRun(f"the embedded host did not start: {said[-1] if said else 'it wrote nothing'}") from None


def _python(
    arguments: list[str], root: Path, stdin: int, stdout: int, more: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process of this package, in a session of its own: ctrl-c is for the console, which ends the others in order."""
    path = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]))
    with (root / "demo.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=log,
            env=os.environ | {"PYTHONPATH": path, MARK: str(root)} | dict(more or {}),
            start_new_session=True,
        )
