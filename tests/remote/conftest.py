"""The hosts every behaviour is tried on."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote.host import Host, open_host
from tests.remote.servers import SERVERS, SshServer

# What `docker exec -i NAME argv…` does, as far as a caller can tell: argv runs, with the caller's stdin and stdout.
DOCKER = """#!/bin/sh
[ "$1 $2 $3" = "exec -i box" ] || { echo "unexpected: docker $*" >&2; exit 125; }
shift 3
exec "$@"
"""


@pytest.fixture(params=sorted(SERVERS))
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SshServer]:
    """A real SSH server of each kind."""
    async with SERVERS[request.param](tmp_path / "ssh") as running:
        yield running


@pytest.fixture(params=["local", "container", *sorted(SERVERS)])
async def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    """A host of each kind; `home_of` says where its `~` is."""
    if request.param in SERVERS:
        async with SERVERS[request.param](tmp_path / "ssh") as running:
            opened = await open_host(running.address, **running.options)
            yield opened
            await opened.close()
        return
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    container = ""
    if request.param == "container":
        container = "box"
        docker = tmp_path / "bin" / "docker"
        docker.parent.mkdir()
        docker.write_text(DOCKER)
        docker.chmod(0o755)
        monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    opened = await open_host(None, container=container)
    yield opened
    await opened.close()
