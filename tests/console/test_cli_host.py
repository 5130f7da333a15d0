"""What the commands say to do next on a host: a kept capture is judged with, an unknown key is told once."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.cli import main
from console.deployment import Deployment
from console.embedded import Embedded, embedded_host
from console.exits import Exit
from console.session import Session

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with embedded_host("right") as running:
        yield running


async def set_running(deployment: Deployment, wanted: bool) -> None:
    session = await Session.open(deployment)
    try:
        await (session.start("test") if wanted else session.stop("end of test"))
    finally:
        await session.close()


def test_what_a_capture_says_to_do_next_judges_with_it_even_when_the_server_is_gone(
    embedded: Embedded, tmp_path: Path, capsys: Captured
) -> None:
    deployment = embedded.folder.deployment
    out = tmp_path / "kept here"
    given = [str(deployment.path), "-F", str(deployment.ssh_config)]
    asyncio.run(set_running(deployment, True))
    try:
        assert main(["capture", *given, "--samples", "3", "--out", str(out)]) == Exit.OK
    finally:
        asyncio.run(set_running(deployment, False))
    words = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("next: console "))
    assert words == ["check", *given, "--capture", str(out / "engine"), "--capture", str(out / "all-states")]

    asked = ["--only", "align.states", "--json"]
    assert main([*words, *asked]) == Exit.OK
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["verdict"], "R_3, R_7, R_10" in found["summary"]) == ("PASS", True)
    assert main(["check", *given, *asked]) == Exit.OK
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found["verdict"] == "UNKNOWN", "without it nothing names the states"

    shutil.rmtree(out)
    assert main([*words, *asked]) == Exit.NOT_RUN
    assert "--capture" in capsys.readouterr().err
    assert main([*words, "--draft", str(tmp_path)]) == Exit.USAGE
    assert "not both" in capsys.readouterr().err


@pytest.fixture
def never_met(embedded: Embedded) -> Iterator[Path]:
    """The list of known hosts, without the embedded one."""
    config = Path(str(embedded.folder.deployment.ssh_config))
    named = re.search(r"UserKnownHostsFile\s+(\S+)", config.read_text("utf-8"))
    assert named is not None
    file = Path(named[1])
    before = file.read_text("utf-8")
    file.write_text("", "utf-8")
    yield file
    file.write_text(before, "utf-8")


@pytest.mark.parametrize("command", ["status", "init"])
def test_an_unknown_key_is_told_once_with_what_shows_and_what_trusts_it(
    embedded: Embedded, never_met: Path, command: str, capsys: Captured
) -> None:
    deployment = embedded.folder.deployment
    named = [str(deployment.path)] if command == "status" else [deployment.host.ssh, "--yes"]
    assert main([command, *named, "-F", str(deployment.ssh_config)]) == Exit.NOT_RUN
    said = capsys.readouterr().err
    assert said.count("is not a known host") == 1
    assert said.startswith("error: ")
    assert re.search(r"`ssh-keyscan -p \d+ 127\.0\.0\.1 \| ssh-keygen -lf -`", said)
    assert "in a terminal" in said
    assert never_met.read_text("utf-8") == ""


class Terminal(io.StringIO):
    """A person's answer."""

    def isatty(self) -> bool:
        return True


def test_a_key_that_a_person_does_not_trust_is_not_told_again(
    embedded: Embedded, never_met: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = embedded.folder.deployment
    given = [str(deployment.path), "-F", str(deployment.ssh_config)]
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main(["status", *given]) == Exit.NOT_RUN
    said = capsys.readouterr().err
    assert said.count("is not a known host") == 1
    assert "was not trusted, so nothing was done" in said
    assert never_met.read_text("utf-8") == ""
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert main(["status", *given]) == Exit.OK
    assert never_met.read_text("utf-8") != ""
