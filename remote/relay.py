"""TCP connections into a host through a small process on it, for containers and servers that forbid forwarding."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from remote import scripts
from remote.errors import NotListening, RemoteError
from remote.host import CommandHost, Reader, Writer

if TYPE_CHECKING:
    from remote.stream import Stream


class _Relay:
    """Reads and writes one relayed connection; the process ends with it."""

    def __init__(self, stream: Stream, closing: asyncio.Event, owner: asyncio.Task[None]) -> None:
        self._stream, self._closing, self._owner = stream, closing, owner
        self._pending = bytearray()
        self._held = bytearray()

    async def read(self, n: int = -1) -> bytes:
        if n >= 0:
            data = bytes(self._held) or await self._stream.read()
            self._held = bytearray(data[n:])
            return data[:n]
        parts = [bytes(self._held)]
        self._held.clear()
        while data := await self._stream.read():
            parts.append(data)
        return b"".join(parts)

    def write(self, data: bytes) -> None:
        self._pending += data

    async def drain(self) -> None:
        data, self._pending = bytes(self._pending), bytearray()
        await self._stream.write(data)

    def close(self) -> None:
        self._closing.set()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._owner, return_exceptions=True)


async def open_relay(host: CommandHost, port: int, address: str) -> tuple[Reader, Writer]:
    """A connection to `address`:`port` as seen from `host`. Raises NotListening, PythonMissing, HostUnreachable."""
    argv, shown = await scripts.command(host, "relay", address, str(port))
    opened: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
    closing = asyncio.Event()

    async def hold() -> None:
        try:
            async with host.stream(argv, input=None, shown=shown) as stream:
                opened.set_result(stream)
                await closing.wait()
                stream.write_eof()
                await stream.finish(2)
        except RemoteError as error:
            if not opened.done():
                opened.set_exception(error)

    owner = asyncio.create_task(hold())
    try:
        stream = await opened
        greeting = await stream.read(1)
    except BaseException:
        owner.cancel()
        raise
    if greeting != b"+":
        await stream.wait()
        closing.set()
        await owner
        why = stream.stderr_tail.decode("utf-8", "replace").strip() or "the relay could not connect"
        raise NotListening(host.name, port, why)
    relay = _Relay(stream, closing, owner)
    return relay, relay
