"""HTTP from the host's point of view, and answers that are not what they should be."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from remote import http
from remote.errors import BadResponse, NotListening, TimedOut
from remote.host import Host, LocalHost
from tests.remote.servers import free_port


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (b"one", b"two" * 50_000, b""):
                self.wfile.write(b"%x;note=1\r\n%s\r\n" % (len(part), part))
            return
        body = json.dumps({"path": self.path, "host": self.headers["Host"]}).encode()
        self.send_response(503 if self.path == "/health" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Type", self.headers["Content-Type"])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_get_and_post(host: Host, url: str) -> None:
    answer = await http.get(host, f"{url}/a?b=c")
    assert answer.ok and answer.json() == {"path": "/a?b=c", "host": url.removeprefix("http://")}
    unwell = await http.get(host, f"{url}/health")
    assert (unwell.status, unwell.ok) == (503, False)
    data = {"input_ids": list(range(20_000)), "é": None}
    echo = await http.post(host, f"{url}/generate", data)
    assert echo.json() == data
    assert echo.headers["x-type"] == "application/json"


async def test_chunks_are_joined(host: Host, url: str) -> None:
    assert (await http.get(host, f"{url}/chunked")).body == b"one" + b"two" * 50_000


async def test_a_body_over_the_limit_is_refused(host: Host, url: str) -> None:
    for path in ("/chunked", "/x"):
        with pytest.raises(BadResponse, match="more than 10 bytes"):
            await http.get(host, url + path, limit=10)


async def test_nobody_there(host: Host) -> None:
    with pytest.raises(NotListening):
        await http.get(host, f"http://127.0.0.1:{free_port()}/health")


async def answered_with(raw: bytes, *, hang: bool = False, limit: int = 1000) -> http.Response:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        if hang:
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await http.get(LocalHost(), f"http://127.0.0.1:{port}/", timeout=0.5 if hang else 30, limit=limit)


async def test_a_body_that_ends_with_the_connection() -> None:
    assert (await answered_with(b"HTTP/1.0 200 OK\r\n\r\nall of it")).body == b"all of it"


async def test_an_interim_answer_is_passed_over() -> None:
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nA: b\r\n\r\n"
    answer = await answered_with(raw)
    assert (answer.status, answer.headers, answer.body) == (204, {"a": "b"}, b"")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000,
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"a%d: b\r\n" % n for n in range(300)) + b"\r\n",
        b"y" * 100_000,
    ],
)
async def test_an_answer_that_cannot_be_read_is_an_error(raw: bytes) -> None:
    with pytest.raises(BadResponse):
        await answered_with(raw)


async def test_no_answer_in_time() -> None:
    with pytest.raises(TimedOut, match=r"took longer than 0\.5 s"):
        await answered_with(b"HTTP/1.1 200 OK\r\n", hang=True)


@pytest.mark.parametrize("url", ["https://127.0.0.1:1/", "ftp://x/", "http:///x", "nonsense"])
async def test_urls_that_cannot_be_used(url: str) -> None:
    with pytest.raises(BadResponse, match="cannot use the url"):
        await http.get(LocalHost(), url)


async def test_no_header_can_be_smuggled_in() -> None:
    with pytest.raises(BadResponse, match="line break"):
        await http.request(LocalHost(), "GET", "http://127.0.0.1:1/", headers={"A": "b\r\nC: d"})


async def test_json_that_is_none() -> None:
    with pytest.raises(BadResponse, match="not JSON"):
        http.Response(200, {}, b"<html>").json()
