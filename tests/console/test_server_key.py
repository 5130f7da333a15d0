"""Asking a server that wants an API key: with the key where it is known, and once only where it is not."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.apikey import api_key, config_text
from console.deployment import Deployment, ServerSpec
from console.errors import StartFailed
from console.masking import MASK
from console.server import Server
from console.startup import await_ready, healthy
from remote.host import LocalHost
from remote.process import process
from remote.server import adopt
from remote.snapshot import Sought, snapshot

KEY = "hush-hush"


class Locked(BaseHTTPRequestHandler):
    """As SGLang with --api-key: health is open, all else wants the key. `open` may be emptied, as a proxy would."""

    asked: ClassVar[list[tuple[str, int]]] = []
    open: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        allowed = self.path in self.open or self.headers.get("Authorization") == f"Bearer {KEY}"
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
    Locked.open = {"/health"}
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


def test_what_a_server_says_is_told_without_its_key() -> None:
    server = asking(1)
    server.key = KEY
    assert server.masked(f"no right for {KEY}, nor for Bearer {KEY}x") == f"no right for {MASK}, nor for Bearer {MASK}"


@pytest.mark.parametrize("broken", [MASK, "a\r\nHost: b", "", True, 5])
def test_what_cannot_be_a_key_is_none(broken: Any) -> None:
    assert api_key(Deployment("d", server=ServerSpec(args={"api-key": broken})), ()) == ""


def test_the_variable_of_vllm_is_a_key_of_vllm_alone() -> None:
    env = {"VLLM_API_KEY": KEY}
    assert api_key(Deployment("d", server=ServerSpec(engine="vllm==0.11", env=env)), ()) == KEY
    assert api_key(Deployment("d", server=ServerSpec(env=env)), ()) == ""


def test_what_runs_is_asked_with_its_own_key_and_not_with_the_file_s() -> None:
    spec = ServerSpec(engine="vllm", args={"api-key": "of the file"}, env={"VLLM_API_KEY": "of the file too"})
    running = {"VLLM_API_KEY": KEY}
    assert api_key(Deployment("d", server=spec), ("vllm", "serve"), running) == KEY
    assert api_key(Deployment("d", server=spec), ("vllm", "serve", "--api-key", "flag", "second"), running) == "flag"
    assert api_key(Deployment("d", server=spec), ("vllm", "serve"), {}) == "of the file"


@pytest.mark.parametrize(
    "text",
    [
        f"model: /m\napi-key: {KEY}\ntp-size: 8\n",
        f"api_key: '{KEY}'  # of the team",
        f'"api-key" : "{KEY}"',
        f"api-key: {KEY} # of the team\r\nport: 1",
        f"api-key:\n  - {KEY}\n  - second\n",
        f"api-key: [{KEY}, second]",
    ],
)
def test_the_file_of_flags_names_the_key_too(text: str) -> None:
    made = Deployment("d", server=ServerSpec(args={"api-key": "of the file"}))
    assert api_key(made, ("--config", "a.yaml"), {}, text) == KEY
    assert api_key(made, ("--config", "a.yaml", "--api-key", "flag"), {}, text) == "flag"


@pytest.mark.parametrize(
    "text",
    ["", "api-key:\nport: 1", "api-key: null", "# api-key: x", "admin-api-key: x", "a:\n  api-key: x", "api-key: |"],
)
def test_what_a_file_of_flags_does_not_name_is_no_key(text: str) -> None:
    assert api_key(Deployment("d"), (), {}, text) == ""


@given(st.text(alphabet="apikey-_:'\"[]{}|& \n\r\\#", max_size=60))
def test_no_file_of_flags_gives_what_cannot_be_sent(text: str) -> None:
    assert api_key(Deployment("d"), (), {}, f"api-key: {text}").isprintable()


async def test_the_file_of_flags_is_read_from_the_working_folder_and_may_be_gone(tmp_path: Path) -> None:
    made, host = Deployment("d"), LocalHost()
    (tmp_path / "a.yaml").write_text(f"api-key: {KEY}\n", "utf-8")
    argv = ("python", "-m", "sglang.launch_server", "--config", "a.yaml")
    assert KEY in await config_text(host, made, argv, str(tmp_path))
    assert KEY in await config_text(host, made, (*argv[:-1], str(tmp_path / "a.yaml")), "/")
    assert await config_text(host, made, argv, "/") == ""
    assert await config_text(host, made, argv[:-2], str(tmp_path)) == ""


# -- whoever guards its health too ---------------------------------------------------------------------------------


async def test_the_host_s_health_is_asked_with_the_key(port: int, tmp_path: Path) -> None:
    Locked.open = set()
    url, sent = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {KEY}"}
    assert await healthy(LocalHost(), url, sent) and not await healthy(LocalHost(), url, {})
    sought = Sought(1, health=f"{url}/health", headers=sent)
    assert KEY not in repr(sought)
    seen = await snapshot(LocalHost(), sought, str(tmp_path / "state"))
    assert seen["health"]["status"] == 200 and KEY not in json.dumps(seen["health"])


@pytest.mark.parametrize("itself", [True, False])
async def test_a_start_gives_the_key_to_the_server_itself_alone(port: int, itself: bool, tmp_path: Path) -> None:
    Locked.open = set()
    (tmp_path / "log").touch()
    host, sent = LocalHost(), {"Authorization": f"Bearer {KEY}"}
    record = await adopt(host, port)
    assert record is not None
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        try:
            if not itself:
                info = await process(host, other.pid)
                assert info is not None
                record = replace(record, pid=info.pid, pgid=info.pgid, start_time=info.start_time, cmdline=info.argv)
            record = replace(record, log=str(tmp_path / "log"), port=port)
            waiting = await_ready(host, record, f"http://127.0.0.1:{port}", "sglang", lambda *_: None, sent)
            if itself:
                await waiting
            else:
                with pytest.raises(StartFailed, match=f"process {os.getpid()} answers on port {port}"):
                    await waiting
        finally:
            other.kill()
    assert [status for _, status in Locked.asked] == ([401, 200] if itself else [401])
