"""The folder of a demo: the shipped pair and cache in the embedded host's home, wired as asked, and its deployment."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from console.demo.host import ALIAS
from console.deployment import CacheSpec, Deployment, HostSpec, ModelSpec, ServerSpec, save_deployment

TRAINED_STATES = (3, 7, 10)
"""What the shipped draft was trained on, as the script that trained it chose them."""

RIGHT, LATE, EMBEDDING = "right", "late", "embedding"
WIRINGS: dict[str, tuple[int, ...]] = {RIGHT: (2, 6, 9), LATE: (3, 7, 10), EMBEDDING: (-1, 2, 6)}
"""The ids of each wiring on offer, in SGLang's convention (id -> state id + 1): right; all slots one layer late; the
embedding, then two trained states, each in the slot after its own."""

STEPS = 5
_ARGS: dict[str, Any] = {
    "speculative-algorithm": "EAGLE3",
    "speculative-num-steps": STEPS,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": STEPS + 1,
    "enable-return-hidden-states": True,
    "enable-metrics": True,
    "decode-log-interval": 10,
}


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """Where a demo lives. `home` is the home folder of the embedded host; the deployment speaks of paths in it."""

    root: Path
    home: Path
    deployment: Deployment

    @property
    def draft_config(self) -> Path:
        """The config.json that decides the wiring."""
        return Path(self.deployment.model.draft) / "config.json"


@contextmanager
def shipped(name: str) -> Iterator[Path]:
    """A file or folder shipped with the demo, as a path: `models/target`, `models/draft`, `cache`, `prompts.json`."""
    with as_file(files("console.demo").joinpath(*name.split("/"))) as path:
        yield path


def make_folder(root: Path, wiring: str) -> DemoFolder:
    """Copy what is shipped into `root`/home, wire the draft, and write the deployment. `wiring` is a key of WIRINGS."""
    home = root / "home"
    home.mkdir(parents=True, mode=0o700)
    for name, place in (("models/target", "target"), ("models/draft", "draft"), ("cache", "hidden_states")):
        with shipped(name) as source:
            shutil.copytree(source, home / place, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    wire(home / "draft" / "config.json", WIRINGS[wiring])
    deployment = Deployment(
        name="demo",
        host=HostSpec(ssh=ALIAS, python=sys.executable),
        model=ModelSpec(str(home / "target"), str(home / "draft")),
        caches=(CacheSpec(str(home / "hidden_states")),),
        server=ServerSpec(
            engine="sglang",
            entrypoint="console.demo.engine",
            log=str(home / "server.log"),
            url=f"http://127.0.0.1:{free_port()}",
            # The engine is this package: it must be found whether or not it is installed.
            env={"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OPENBLAS_NUM_THREADS": "1"},
            args=_ARGS,
        ),
        path=root / "demo.toml",
        ssh_config=root / "ssh" / "ssh_config",
        history=root / "history.sqlite3",
    )
    save_deployment(deployment, root / "demo.toml")
    return DemoFolder(root, home, deployment)


def wire(config: Path, ids: tuple[int, ...]) -> None:
    """Write the ids into a draft's config, where SGLang reads them."""
    raw = json.loads(config.read_text("utf-8"))
    raw.setdefault("eagle_config", {})["eagle_aux_hidden_state_layer_ids"] = list(ids)
    config.write_text(json.dumps(raw, indent=2) + "\n", "utf-8")


def free_port() -> int:
    """A port on loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
