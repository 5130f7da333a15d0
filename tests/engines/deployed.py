"""A deployment of the shipped pair on SGLang, reached over SSH."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from console.demo.setup import shipped
from console.deployment import CacheSpec, Deployment, HostSpec, ModelSpec, ServerSpec, save_deployment
from console.session import Session
from tests.engines.pair import Pair, copied_pair
from tests.engines.serving import SGLANG_ARGS, SGLANG_VARIABLES, python_of, unused_port
from tests.remote.servers import openssh_server


@asynccontextmanager
async def deployed(
    folder: Path, wiring: str, args: Mapping[str, Any] = SGLANG_ARGS
) -> AsyncIterator[tuple[Session, Pair]]:
    """A session on it; its server is stopped at the end. The deployment is also saved, as `folder`/real.toml."""
    pair = copied_pair(folder, wiring)
    with shipped("cache") as source:
        shutil.copytree(source, folder / "hidden_states", ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    async with openssh_server(folder / "ssh") as host:
        deployment = Deployment(
            name="real",
            host=HostSpec(ssh=host.address, python=python_of("sglang")),
            model=ModelSpec(str(pair.target), str(pair.draft)),
            caches=(CacheSpec(str(folder / "hidden_states")),),
            server=ServerSpec(
                engine="sglang",
                log=str(folder / "server.log"),
                url=f"http://127.0.0.1:{unused_port()}",
                env=SGLANG_VARIABLES,
                args=args,
            ),
            path=folder / "real.toml",
            ssh_config=host.config,
            history=folder / "history.sqlite3",
        )
        save_deployment(deployment, folder / "real.toml")
        session = await Session.open(deployment)
        try:
            yield session, pair
        finally:
            if (await session.status()).up:
                await session.stop("the test is over")
            await session.close()
