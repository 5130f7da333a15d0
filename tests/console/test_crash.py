"""A crash of the app: the error and its traceback on the terminal, and no value of a variable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from console.app import ConsoleApp
from console.crash import crash_text, secrets_of
from console.deployment import Deployment, ServerSpec
from console.exits import Exit
from console.masking import MASK

ROOT = Path(__file__).parents[2]
SECRET = "hush-hush"

CRASHING = f"""
import sys
from console.app import ConsoleApp
from console.deployment import Deployment, ServerSpec

async def work():
    held = app.deployment.server.args["api-key"]
    raise KeyError(f"[red]no\\x1b[31m {{held}}")

def crash():
    here = app.deployment
    CRASH

ConsoleApp.connect = lambda self: crash()
app = ConsoleApp(Deployment("d", server=ServerSpec(args={{"api-key": "{SECRET}"}})))
app.run(headless=True)
sys.exit(app.return_code)
"""


def crashed(crash: str) -> subprocess.CompletedProcess[str]:
    script = CRASHING.replace("CRASH", crash)
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("crash", "kind"),
    [
        ("raise ValueError(f'about {here.server.args}')", "ValueError"),
        ("app.run_worker(work())", "KeyError"),
        ("app.query_one('#nothing')", "NoMatches"),
    ],
)
def test_a_crash_says_what_happened_and_no_secret(crash: str, kind: str) -> None:
    done = crashed(crash)
    assert done.returncode == Exit.NOT_RUN
    said = done.stdout + done.stderr
    assert f"crashed: {kind}" in said and "Traceback (most recent call last)" in said and "please report" in said
    assert said.count(kind) >= 2 and said.count("please report") == 1
    assert SECRET not in said and "here =" not in said and "locals" not in said
    assert "\x1b[31m" not in said


async def test_a_test_still_sees_the_error_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(app: ConsoleApp) -> None:
        raise LookupError("nothing there")

    monkeypatch.setattr(ConsoleApp, "on_mount", crash)
    with pytest.raises(LookupError, match="nothing there"):
        async with ConsoleApp(Deployment("d")).run_test() as pilot:
            await pilot.pause()


def test_secrets_are_masked_as_they_stand_and_as_python_writes_them() -> None:
    secret = "a\"b\x1b'c"
    text = crash_text(ValueError(secret, [secret]), [secret, "", "x"])
    assert 'a"b' not in text and MASK in text and "\x1b" not in text
    assert "max" in crash_text(ValueError("max"), ["x"])


def test_secrets_come_from_flags_variables_and_the_command_that_runs() -> None:
    spec = ServerSpec(
        args={"api-key": "one", "port": 1, "admin_api_key": ("two",)}, env={"HF_TOKEN": "three", "A": "b"}
    )
    argv = ["python", "--api-key", "four", "--admin-api-key=five", "--tp", "2", "--key"]
    assert secrets_of(Deployment("d", server=spec), argv) == ("one", "two", "three", "four", "five")
