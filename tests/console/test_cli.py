"""The commands as scripts meet them: data on stdout, notes on stderr, and the promised exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from console.cli import COMMANDS, WIRINGS, main, parse
from console.demo.setup import WIRINGS as REAL_WIRINGS
from console.demo.setup import make_folder, shipped, wire
from console.embedded import Embedded, embedded_host
from console.exits import Exit

LOG = (
    "[2026-08-10 09:20:45] Decode batch, #running-req: 1, #token: 9, token usage: 0.01, accept len: 2.17, "
    "accept rate: 0.54, cuda graph: True, gen throughput (token/s): 178.90, #queue-req: 0\n"
)


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with embedded_host("embedding") as running:
        yield running


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """The shipped pair and cache in a folder of their own, wired right; nothing runs."""
    folder = make_folder(tmp_path / "demo", "right")
    return folder.home


def on_paths(home: Path, *more: str) -> list[str]:
    return [
        "check",
        "--draft",
        f"{home}/draft",
        "--target",
        f"{home}/target",
        "--cache",
        f"{home}/hidden_states",
        *more,
    ]


def on_host(embedded: Embedded, *words: str) -> list[str]:
    return [*words, str(embedded.folder.deployment.path), "-F", str(embedded.folder.deployment.ssh_config)]


# -- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        [],
        *([name] for name in COMMANDS),
        *(["draft", name] for name in ("show", "diff", "set", "write", "history", "restore")),
        ["runs", "list"],
        ["runs", "show"],
        ["runs", "compare"],
    ],
    ids=" ".join,
)
def test_every_command_has_help_with_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    assert "example:\n  console " in capsys.readouterr().out


def test_a_first_word_that_is_no_command_is_a_deployment() -> None:
    assert (parse(["prod-box"]).run, parse(["prod-box"]).name) == ("open", "prod-box")
    assert parse(["./prod.toml", "--read-only"]).read_only
    assert parse([]).run == "open"


def test_the_wirings_on_offer_are_those_of_the_demo() -> None:
    assert set(WIRINGS) == set(REAL_WIRINGS)


@pytest.mark.parametrize(
    "words",
    [
        ["check", "--samples", "none"],
        ["check", "--fail-on", "info"],
        ["check", "--json", "--markdown"],
        ["draft"],
        ["runs"],
        ["check", "--no-such-flag"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_exit_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == Exit.USAGE
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["status", "no-such"], "no deployment 'no-such'"),
        (["check", "box", "--draft", "d"], "not both"),
        (["check", "box", "--engine", "sglang"], "go with paths"),
        (["check", "--draft", "d", "--args", "'"], "--args"),
        (["check", "--explain", "align.state"], "align.states"),
        (["draft", "set", "box"], "KEY=VALUE"),
        (["draft", "set", "a=1", "b"], "'b' is not KEY=VALUE"),
        (["runs", "show", "x"], "not the number"),
        (["status"], "there is no deployment yet"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_meant_exits_with_2_and_says_why(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == Exit.USAGE
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""


# -- check -----------------------------------------------------------------------------------------------------------


def test_without_a_capture_nothing_fails_and_the_last_line_says_what_is_not_proven(
    pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(on_paths(pair, "--engine", "sglang==0.5.12", "--only", "cfg,align.engine_pair,align.states")) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("not proven: align.engine_pair (needs ")
    assert "align.states (needs capture)" in lines[-1]
    assert main(on_paths(pair, "--engine", "sglang==0.5.12", "--only", "align.states", "--strict")) == Exit.NOT_PROVEN


def test_an_embedding_that_no_slot_holds_fails_without_an_engine(
    pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wire(pair / "draft" / "config.json", (-1, 2, 6))
    words = on_paths(pair, "--engine", "sglang==0.5.12", "--only", "align.engine_pair,align.embedding")
    assert main([*words, "--json"]) == Exit.FINDINGS
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "FAIL"
    assert [item["verdict"] for item in report["findings"] if item["check"] == "align.embedding"] == ["FAIL"]
    assert main([*words, "--markdown"]) == Exit.FINDINGS
    assert capsys.readouterr().out.startswith("## FAIL")


def test_junit_goes_to_its_file(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.xml"
    assert main(on_paths(pair, "--only", "cfg", "--junit", str(file))) == Exit.OK
    assert "<testsuite " in file.read_text("utf-8")
    assert "PASS" in capsys.readouterr().out


def test_an_unparsable_config_is_a_finding_and_a_missing_path_is_not(
    pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pair / "draft" / "config.json").write_text("{", "utf-8")
    assert main(on_paths(pair, "--only", "cfg")) == Exit.FINDINGS
    capsys.readouterr()
    assert main(["check", "--draft", str(pair / "gone")]) == Exit.NOT_RUN
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{pair}/gone: no such file" in shown.err


def test_a_page_explains_a_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain", "align.states"]) == Exit.OK
    assert capsys.readouterr().out.startswith("align.states\n\n")


def test_the_name_of_a_family_lists_its_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain", "align"]) == Exit.OK
    shown = capsys.readouterr()
    ids = [line.split()[0] for line in shown.out.splitlines()]
    assert "align.states" in ids
    assert all(id.startswith("align.") for id in ids)
    assert "family" in shown.err


def test_here_and_over_ssh_the_findings_are_the_same(embedded: Embedded, capsys: pytest.CaptureFixture[str]) -> None:
    home = embedded.folder.home
    asked = ["--json", "--skip", "align.states,replay,log,flags,ops"]
    main([*on_host(embedded, "check"), *asked])
    there = json.loads(capsys.readouterr().out)
    model = embedded.folder.deployment.server
    flags = " ".join(f"--{key} {value}" for key, value in model.args.items() if value is not True)
    main([*on_paths(home, "--engine", "sglang", "--args", flags), *asked])
    here = json.loads(capsys.readouterr().out)

    def bare(report: dict[str, Any]) -> list[dict[str, Any]]:
        return [{key: value for key, value in item.items() if key != "took_s"} for item in report["findings"]]

    assert bare(here) == bare(there)
    assert (here["host"], there["host"]) == ("local", "demo-gpu")


def test_on_headers_neither_screen_nor_torch_nor_ssh_is_loaded(pair: Path) -> None:
    code = (
        "import sys; from console.cli import main; "
        f"code = main({on_paths(pair, '--only', 'cfg,ckpt')!r}); "
        "print(code, sorted({'textual', 'torch', 'asyncssh', 'sqlite3'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


# -- tail ------------------------------------------------------------------------------------------------------------


def test_a_finished_log_becomes_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.log"
    file.write_text("noise \x1b[31m\n" + LOG, "utf-8")
    assert main(["tail", "--file", str(file), "--json"]) == Exit.OK
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    decode = next(event for event in events if event["event"] == "decode")
    assert (decode["line"], decode["accept_len"], decode["throughput"], decode["graph"]) == (2, 2.17, 178.9, True)
    assert main(["tail", "--file", str(file)]) == Exit.OK
    text = capsys.readouterr().out
    assert text.count("accept len: 2.17") == 1
    assert "\x1b" not in text
    assert main(["tail", "--file", str(tmp_path / "gone")]) == Exit.NOT_RUN


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    file.write_text(LOG * 20_000, "utf-8")
    with subprocess.Popen(
        [sys.executable, "-m", "console", "tail", "--file", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.readline()
        tail.stdout.close()
        assert tail.wait(60) == 0
        assert tail.stderr.read() == b""


# -- the server and the draft, over SSH ------------------------------------------------------------------------------


def test_the_whole_loop_by_commands(embedded: Embedded, capsys: pytest.CaptureFixture[str]) -> None:
    wire(embedded.folder.draft_config, (-1, 2, 6))

    def ran(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    before = embedded.folder.draft_config.read_text("utf-8")
    assert ran(*on_host(embedded, "start"))[0] == Exit.FINDINGS, "nobody agreed"
    code, out, _ = ran(*on_host(embedded, "start"), "--dry-run")
    assert (code, out.split()[0]) == (Exit.OK, "start:")
    assert json.loads(ran(*on_host(embedded, "status"), "--json")[1])["phase"] == "stopped"
    code, out, err = ran(*on_host(embedded, "start"), "--yes")
    assert (code, "is ready: run" in out) == (Exit.OK, True), err
    assert json.loads(ran(*on_host(embedded, "status"), "--json")[1])["healthy"]
    assert ran(*on_host(embedded, "check"))[0] == Exit.FINDINGS

    code, out, _ = ran(*on_host(embedded, "draft", "set"), "--fix", "align.engine_pair")
    assert code == Exit.OK
    assert "+++ staged" in out
    assert embedded.folder.draft_config.read_text("utf-8") == before
    assert ran(*on_host(embedded, "draft", "write"), "--dry-run")[0] == Exit.OK
    assert ran(*on_host(embedded, "draft", "write"))[0] == Exit.FINDINGS, "nobody agreed"
    assert embedded.folder.draft_config.read_text("utf-8") == before
    code, out, _ = ran(*on_host(embedded, "draft", "write"), "--yes")
    assert (code, "written: version" in out) == (Exit.OK, True)
    assert "[2, 6, 9]" in json.dumps(json.loads(ran(*on_host(embedded, "draft", "show"))[1]))

    code, out, err = ran(*on_host(embedded, "restart"), "--yes", "--read-only")
    assert (code, "read-only" in err) == (Exit.FINDINGS, True)
    assert not any(line.startswith(("stop", "start", "lock")) for line in err.splitlines()), "refused before any step"
    assert ran(*on_host(embedded, "restart"), "--yes")[0] == Exit.OK
    assert ran(*on_host(embedded, "check"), "--skip", "log")[0] == Exit.OK
    history = ran(*on_host(embedded, "draft", "history"))[1].splitlines()
    assert "fix of align.engine_pair" in history[0]
    assert history[0].endswith("on the host")
    name, *access = on_host(embedded)
    assert ran("draft", "restore", name, history[-1].split()[0], *access)[0] == Exit.OK
    assert "-1" in ran(*on_host(embedded, "draft", "diff"))[1]
    assert ran(*on_host(embedded, "stop"), "--yes")[0] == Exit.OK
    assert ran(*on_host(embedded, "stop"), "--yes")[0] == Exit.FINDINGS, "nothing runs"

    runs = json.loads(ran("runs", "list", "--json")[1])
    assert [run["state"] for run in runs[:2]] == ["stopped", "stopped"]
    assert [run["finding"] and run["finding"]["check"] for run in runs[:2]] == ["align.engine_pair", None]
    code, out, _ = ran("runs", "show", str(runs[0]["id"]))
    assert (code, "by hand" in out) == (Exit.OK, True)
    assert ran("runs", "show", "999")[0] == Exit.FINDINGS


def test_a_host_that_is_down_exits_with_3(
    embedded: Embedded, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "down.toml"
    text = Path(str(embedded.folder.deployment.path)).read_text("utf-8")
    file.write_text(text.replace('"demo-gpu"', '"nobody@127.0.0.1:1"'), "utf-8")
    assert main(["check", str(file)]) == Exit.NOT_RUN
    assert "127.0.0.1" in capsys.readouterr().err


def test_ctrl_c_exits_with_130(embedded: Embedded) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with subprocess.Popen(
        [sys.executable, "-m", "console", *on_host(embedded, "tail")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as tail:
        log = Path(embedded.folder.deployment.server.log)
        with log.open("a") as file:
            file.write(LOG)
        assert tail.stdout is not None
        assert tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        try:
            assert tail.wait(30) == Exit.INTERRUPTED
        finally:
            tail.kill()


def test_the_shipped_prompts_are_there() -> None:
    with shipped("prompts.json") as path:
        assert len(json.loads(path.read_text("utf-8"))["held_out"]) >= 20
