"""A small HTTP/1.1 client whose connections start on the host: one request each, bounded in time and size."""

from __future__ import annotations

import asyncio
import contextlib
import json as json_format
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from remote.errors import BadResponse, NotListening, RemoteError, TimedOut, printable
from remote.host import Host, Reader

LIMIT = 64 << 20
HEAD_LIMIT = 64 << 10
CLOSING = 5.0  # seconds for a connection to close


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body as JSON. Raises BadResponse."""
        try:
            return json_format.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise BadResponse(
                "the answer is not JSON", f"status {self.status}: {printable(self.body, 200)}", ""
            ) from error


class _Incoming:
    """Reads lines and counted bytes, and never more than it was told to expect."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._bytes = bytearray()
        self.ended = False

    async def _more(self) -> None:
        data = await self._reader.read(1 << 16)
        self.ended = not data
        self._bytes += data

    async def line(self) -> bytes:
        while (end := self._bytes.find(b"\n")) < 0:
            if self.ended or len(self._bytes) > HEAD_LIMIT:
                raise BadResponse("the answer cannot be read", "it ended in its head, or is not HTTP", "Check the url")
            await self._more()
        line = bytes(self._bytes[:end])
        del self._bytes[: end + 1]
        return line.rstrip(b"\r")

    async def exactly(self, size: int) -> bytes:
        while len(self._bytes) < size:
            if self.ended:
                raise BadResponse("the answer was cut short", f"{len(self._bytes)} of {size} bytes came", "See its log")
            await self._more()
        data = bytes(self._bytes[:size])
        del self._bytes[:size]
        return data

    async def rest(self, limit: int) -> bytes:
        while not self.ended:
            await self._more()
            _fits(len(self._bytes), limit)
        return bytes(self._bytes)


def _fits(size: int, limit: int) -> None:
    if not 0 <= size <= limit:
        raise BadResponse("the answer is too long", f"it has more than {limit} bytes", "")


def _integer(text: bytes | str, base: int) -> int:
    try:
        return int(text, base)
    except ValueError as error:
        raise BadResponse(
            "the answer cannot be read", f"{printable(text, 40)} is no length", "Check the url"
        ) from error


async def _body(incoming: _Incoming, status: int, headers: Mapping[str, str], limit: int) -> bytes:
    if status in (204, 304):
        return b""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = bytearray()
        while size := _integer((await incoming.line()).split(b";")[0], 16):
            _fits(len(body) + size, limit)
            body += await incoming.exactly(size)
            await incoming.line()
        return bytes(body)
    if "content-length" in headers:
        size = _integer(headers["content-length"], 10)
        _fits(size, limit)
        return await incoming.exactly(size)
    return await incoming.rest(limit)


async def _receive(reader: Reader, limit: int) -> Response:
    incoming = _Incoming(reader)
    status = 100
    while 100 <= status < 200:
        words = (await incoming.line()).split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
            raise BadResponse("the answer cannot be read", "it is not HTTP/1", "Check the url")
        status = _integer(words[1], 10)
        headers: dict[str, str] = {}
        while line := await incoming.line():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
            if len(headers) > 200:
                raise BadResponse("the answer cannot be read", "it has too many headers", "")
    return Response(status, headers, await _body(incoming, status, headers, limit))


async def request(
    host: Host,
    method: str,
    url: str,
    *,
    json: Any = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
    limit: int = LIMIT,
) -> Response:
    """Send one request to `url` as seen from `host` (`http://127.0.0.1:8000/health`), with `json` as its body if given.

    Raises NotListening, TimedOut (seconds), BadResponse (not HTTP, cut short, or a body over `limit` bytes),
    HostUnreachable. A status such as 500 is an answer, not an error.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise BadResponse(f"cannot use the url {printable(url)}", "only http://HOST:PORT/… is understood", "")
    port = parts.port or 80
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    body = b"" if json is None else json_format.dumps(json).encode()
    fields = {"Host": f"{parts.hostname}:{port}", "Connection": "close", "Accept": "*/*", **(headers or {})}
    if json is not None:
        fields.update({"Content-Type": "application/json", "Content-Length": str(len(body))})
    head = (
        f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"
    )
    if any(c in value for value in (method, target, *fields, *fields.values()) for c in "\r\n"):
        raise BadResponse(f"cannot send to {printable(url)}", "there is a line break in the request", "")
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await host.open_connection(port, parts.hostname)
            try:
                writer.write(head.encode("latin-1") + body)
                await writer.drain()
                answer = await _receive(reader, limit)
            except (OSError, EOFError) as error:
                raise NotListening(host.name, port, f"it hung up: {error}") from error
            finally:
                writer.close()
                with contextlib.suppress(OSError, RemoteError, TimeoutError):
                    async with asyncio.timeout(CLOSING):
                        await writer.wait_closed()
    except TimeoutError:
        raise TimedOut(
            f"no answer from {printable(url)} on {host.name}",
            f"it took longer than {timeout:g} s",
            "See the server's log",
        ) from None
    host.state.saw_bytes()
    return answer


async def get(
    host: Host,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
    limit: int = LIMIT,
) -> Response:
    """GET `url`; see request."""
    return await request(host, "GET", url, headers=headers, timeout=timeout, limit=limit)


async def post(
    host: Host,
    url: str,
    json: Any,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
    limit: int = LIMIT,
) -> Response:
    """POST `json` to `url`; see request."""
    return await request(host, "POST", url, json=json, headers=headers, timeout=timeout, limit=limit)
