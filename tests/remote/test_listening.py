"""What listens on a host, on every kind of host."""

from __future__ import annotations

import os
import socket

from remote.host import Host
from remote.listening import listening


async def test_a_listening_process_is_found_with_its_port(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        found, closed = await listening(host)
    (mine,) = [item for item in found if item.port == port]
    assert mine.process.pid == os.getpid()
    assert port not in closed
    assert all(item.port for item in found)
