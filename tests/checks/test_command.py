"""`python -m checks` and the zipapp, each a process of its own: what goes in, what comes out, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import checks
from tests.checks.files import write_cache, write_draft, write_target

SCHEMA = json.loads((Path(__file__).parent / "report.schema.json").read_text("utf-8"))
PACKAGE = Path(checks.__file__).parent


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """checks and an entry point that calls its main, as a zip."""
    path = tmp_path_factory.mktemp("zip") / "checks.pyz"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(PACKAGE.rglob("*.py")):
            archive.write(file, Path("checks") / file.relative_to(PACKAGE))
        archive.writestr("__main__.py", "import sys\nfrom checks.__main__ import main\nsys.exit(main())\n")
    return path


def ask(command: list[str], request: object, cwd: Path, **environment: str) -> tuple[int, list[dict[str, Any]], str]:
    """(exit code, events, stderr) of one run."""
    raw = request if isinstance(request, bytes) else json.dumps(request).encode()
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, *command], input=raw, capture_output=True, cwd=cwd, env=env, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def module(cwd: Path, request: object, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    return ask(["-m", "checks", *arguments], request, cwd, PYTHONPATH=str(PACKAGE.parent))


def test_the_module_and_the_zipapp_give_the_same_findings(tmp_path: Path, zipapp: Path) -> None:
    request = {
        "draft": str(write_draft(tmp_path / "d")),
        "target": str(write_target(tmp_path / "t")),
        "caches": [{"path": str(write_cache(tmp_path / "c"))}],
    }
    answers = []
    for code, events, errors in (module(tmp_path, request), ask([str(zipapp)], request, tmp_path)):
        assert (code, errors) == (0, "")
        assert [item["event"] for item in events][-1] == "report"
        report = events[-1]["report"]
        jsonschema.validate(report, SCHEMA)
        answers.append([{**item, "took_s": 0} for item in report["findings"]])
    assert answers[0] == answers[1]
    assert "internal" not in {item["check"] for item in answers[0]}


@pytest.mark.parametrize(
    ("request_", "exit_code", "said"),
    [
        (b"", 3, "not one JSON object"),
        (b"\xff", 3, "not one JSON object"),
        ([1], 3, "not a JSON object"),
        ({"what": 1}, 3, "unknown key 'what'"),
        ({"draft": "/no/such/draft"}, 3, "/no/such/draft: no such file or folder"),
        ({"only": ["cfg.aux_id"]}, 2, "did you mean cfg.aux_ids?"),
    ],
    ids=str,
)
def test_what_cannot_run_is_one_error_event(tmp_path: Path, request_: object, exit_code: int, said: str) -> None:
    code, events, errors = module(tmp_path, request_)
    assert (code, errors) == (exit_code, "")
    (event,) = events
    assert (event["event"], event["exit"]) == ("error", exit_code)
    assert said in event["message"]


def test_a_python_without_numpy_says_how_to_name_another(tmp_path: Path, zipapp: Path) -> None:
    """Without its site folder this python has the standard library alone, as a host's own python may."""
    code, events, errors = ask(["-I", "-S", str(zipapp)], {}, tmp_path)
    assert (code, errors) == (3, "")
    (event,) = events
    assert event["exit"] == 3
    assert "cannot import numpy" in event["message"]
    assert "python under [host]" in event["message"]


def test_modules_of_the_folder_it_is_started_in_are_not_taken(tmp_path: Path, zipapp: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('taken')")
    code, events, _ = ask([str(zipapp)], {"only": ["cfg"]}, tmp_path)
    assert code == 0
    assert events[-1]["event"] == "report"


def test_headers_are_judged_without_torch_or_a_terminal(tmp_path: Path) -> None:
    request = {"draft": str(write_draft(tmp_path / "d")), "only": ["cfg", "ckpt"]}
    code = (
        "import sys, json; from checks.answer import answer; "
        "answer(json.loads(sys.argv[1]), lambda event: None); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & set(sys.argv[2].split())))"
    )
    unwanted = "torch transformers safetensors textual rich asyncssh socket ssl"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(request), unwanted],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        cwd=tmp_path,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def started(cwd: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A run that waits for its request."""
    return subprocess.Popen(
        [sys.executable, "-m", "checks", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )


def test_a_reader_that_went_away_is_no_traceback(tmp_path: Path) -> None:
    process = started(tmp_path)
    assert process.stdin and process.stdout and process.stderr
    process.stdout.close()
    process.stdin.write(b"{}")
    process.stdin.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141
    process.stderr.close()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_a_quiet_end(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    process = started(tmp_path)
    assert process.stdin and process.stdout and process.stderr
    _wait_until_it_reads(process)
    process.send_signal(sent)
    assert process.stderr.read() == b""
    assert process.wait() == code
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def _wait_until_it_reads(process: subprocess.Popen[bytes]) -> None:
    """Until the process sleeps in the read of its stdin: a signal just before the read would not end the read."""
    wanted, reading = 1 << (signal.SIGTERM - 1), False
    while not reading:
        assert process.poll() is None
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        status = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
        reading = bool(int(status["SigCgt"][0], 16) & wanted) and status["State"][0] == "S"
        time.sleep(0.01)
