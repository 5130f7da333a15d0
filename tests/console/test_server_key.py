"""Asking a server that wants an API key: with the key where it is known, and once only where it is not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, cast

import pytest

from console.deployment import Deployment, ServerSpec
from console.masking import MASK
from console.server import Server, api_key
from remote.host import LocalHost

KEY = "hush-hush"


class Locked(BaseHTTPRequestHandler):
    """As SGLang with --api-key: health is open, all else wants the key."""

    asked: ClassVar[list[tuple[str, int]]] = []

    def do_GET(self) -> None:
        allowed = self.path == "/health" or self.headers.get("Authorization") == f"Bearer {KEY}"
        known = self.path in ("/health", "/get_model_info", "/get_server_info")
        status = (200 if known else 404) if allowed else 401
        self.asked.append((self.path, status))
        body = json.dumps({"version": "0.5.12"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    Locked.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Locked) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


class Asking(Server):
    """A server of which only the questions over HTTP are looked at."""

    async def poll(self, pid: int, *argv: str) -> tuple[bool, str, str]:
        self.key = api_key(self.deployment, argv)
        up = await self._answers(pid)
        record = cast(Any, type("Record", (), {"pid": pid, "port": 1}))
        return up, await self._engine_label(pid), self._note(record, True)


def asking(port: int, **args: Any) -> Asking:
    deployment = Deployment("d", server=ServerSpec(url=f"http://127.0.0.1:{port}", args=args))
    unused = cast(Any, None)
    return Asking(deployment, LocalHost(), unused, unused, "/")


@pytest.mark.parametrize(
    ("args", "argv"), [({"api-key": KEY}, ()), ({"api_key": KEY}, ()), ({"api-key": "old"}, ("--api-key", KEY))]
)
async def test_the_key_that_is_known_is_sent_and_nothing_is_refused(
    port: int, args: dict[str, str], argv: tuple[str, ...]
) -> None:
    server = asking(port, **args)
    for _ in range(2):
        assert await server.poll(7, *argv) == (True, "sglang 0.5.12", "")
    assert Locked.asked and all(status != 401 for _, status in Locked.asked)
    assert all(KEY not in word for command in server.host.commands for word in command.argv)


async def test_without_the_key_one_refusal_is_enough_until_the_server_is_another(port: int) -> None:
    server = asking(port)
    for _ in range(3):
        up, label, note = await server.poll(7)
        assert up and label == "sglang" and "wants an API key" in note and "[server.args]" in note
    assert [status for _, status in Locked.asked].count(401) == 1
    server._forget()
    assert (await server.poll(8))[0] and [status for _, status in Locked.asked].count(401) == 2
    assert (await server.poll(9, "--api-key", KEY))[1:] == ("sglang 0.5.12", "")


async def test_a_wrong_key_is_said_and_not_shown(port: int) -> None:
    up, _, note = await asking(port, **{"api-key": "wrong-one"}).poll(7)
    assert up and "refuses the API key" in note and "wrong-one" not in note


@pytest.mark.parametrize("broken", [MASK, "a\r\nHost: b", "", True, 5])
def test_what_cannot_be_a_key_is_none(broken: Any) -> None:
    assert api_key(Deployment("d", server=ServerSpec(args={"api-key": broken})), ()) == ""


def test_the_variable_of_vllm_is_a_key_of_vllm_alone() -> None:
    env = {"VLLM_API_KEY": KEY}
    assert api_key(Deployment("d", server=ServerSpec(engine="vllm==0.11", env=env)), ()) == KEY
    assert api_key(Deployment("d", server=ServerSpec(env=env)), ()) == ""
