"""The traffic generator against real engines: answers kept, decode lines kept coming, restarts survived."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from console.demo import traffic
from tests.console.engine_process import READY, ROOT, free_port, running_engine, speculative_flags
from tests.console.random_pair import write_random_pair

TEXTS = ["def a():", "import os", "class B:"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({"traffic": TEXTS, "held_out": TEXTS[:1]}))
    return path


def test_once_keeps_every_answer(tmp_path: Path, prompts: Path) -> None:
    target, draft = write_random_pair(tmp_path)
    out = tmp_path / "answers.json"
    with running_engine(tmp_path, target, *speculative_flags(draft)) as engine:
        engine.wait_for(READY)
        argv = ["--url", engine.url, "--prompts", str(prompts), "--max-new-tokens", "20", "--once", "--out", str(out)]
        assert traffic.main(argv) == 0
    answers = json.loads(out.read_text())
    assert [answer["prompt"] for answer in answers] == TEXTS
    assert all(len(answer["output_ids"]) == 20 for answer in answers)
    assert all(sum(answer["meta_info"]["spec_correct_drafts_histogram"]) > 0 for answer in answers)


def test_the_loop_survives_a_restart(tmp_path: Path, prompts: Path) -> None:
    target, draft = write_random_pair(tmp_path)
    port = free_port()
    flags = [*speculative_flags(draft), "--decode-log-interval", "5"]
    argv = [sys.executable, "-m", "console.demo.traffic", "--url", f"http://127.0.0.1:{port}"]
    argv += ["--prompts", str(prompts), "--max-new-tokens", "12", "--interval", "0.05"]
    sender = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(2):
            with running_engine(tmp_path, target, *flags, port=port) as engine:
                engine.wait_for(READY)
                deadline = time.monotonic() + 60
                while engine.log().count("Decode batch") < 3 and time.monotonic() < deadline:
                    time.sleep(0.05)
                assert engine.log().count("Decode batch") >= 3
                assert sender.poll() is None
                engine.process.terminate()
                engine.process.wait(60)
                engine.log_path.unlink()
    finally:
        sender.terminate()
        notes = sender.communicate(timeout=60)[1]
    assert "waiting for it" in notes and "answers again" in notes


def test_a_refusal_ends_the_traffic_with_its_reason(
    tmp_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, _ = write_random_pair(tmp_path)
    with running_engine(tmp_path, target) as engine:
        engine.wait_for(READY)
        argv = ["--url", engine.url, "--prompts", str(prompts), "--max-new-tokens", "5000"]
        assert traffic.main(argv) == 1
    assert "maximum context length" in capsys.readouterr().err


def test_prompts_that_cannot_be_used_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert traffic.main(["--prompts", str(tmp_path / "none.json"), "--once"]) == 1
    assert "cannot read" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text('{"traffic": []}')
    assert traffic.main(["--prompts", str(tmp_path / "bad.json"), "--once"]) == 1
    assert "not empty" in capsys.readouterr().err
