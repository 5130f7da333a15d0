"""What the command line makes of words in any order, of misspelt ones, and of what it cannot begin with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from console import app, story
from console.cli import main, parse
from console.deployment import Deployment
from console.exits import Exit

Captured = pytest.CaptureFixture[str]


def refused(words: list[str], capsys: Captured) -> str:
    """What is said of wrong words, which end with 2 and print nothing else."""
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    shown = capsys.readouterr()
    assert (code, shown.out) == (Exit.USAGE, "")
    return shown.err


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "ssh config"
    file.write_text("", "utf-8")
    return file


# -- order and spelling ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["flags", "box", "-F", "f", "speculative"], {"name": "box", "words": ["speculative"], "ssh_config": "f"}),
        (["flags", "--json", "box", "--set", "a", "b"], {"name": "box", "words": ["a", "b"], "json": True}),
        (["draft", "set", "box", "-F", "f", "foo=bar"], {"words": ["box", "foo=bar"], "ssh_config": "f"}),
        (["draft", "set", "a=1", "--discard", "b=-2"], {"words": ["a=1", "b=-2"], "discard": True}),
        (["draft", "restore", "box", "-F", "f", "1"], {"name": "box", "version": "1"}),
        (["check", "--args", "--tp 2", "box"], {"args": "--tp 2", "name": "box"}),
        (["check", "--junit", "-", "box", "--samples=3"], {"junit": "-", "name": "box", "samples": 3}),
        (["flags", "box", "--json", "--", "--tp"], {"words": ["--tp"], "json": True}),
        (["runs", "compare", "12", "--json", "14"], {"before": "12", "after": "14"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_stand_anywhere_between_the_words(words: list[str], found: dict[str, object]) -> None:
    args = vars(parse(words))
    assert {key: args[key] for key in found} == found


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check", "--drft", "d"], ("console check: ", "--drft", "did you mean --draft?", "see console check --help")),
        (["draft", "set", "a=1", "--fixx=y"], ("did you mean --fix?", "see console draft set --help")),
        (["status", "box", "--quux"], ("unrecognized arguments: --quux; see console status --help",)),
        (["box", "check"], ("did you mean console check NAME?",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_told_with_the_right_one_and_with_the_command_s_own_help(
    words: list[str], says: tuple[str, ...], capsys: Captured
) -> None:
    said = refused(words, capsys)
    assert [text for text in says if text not in said] == []


def test_a_misspelt_command_is_named_where_no_deployment_is_called_so(capsys: Captured) -> None:
    said = refused(["chekc"], capsys)
    assert "no deployment 'chekc'" in said
    assert "did you mean the command check?" in said
    assert "command" not in refused(["production-box"], capsys)


@pytest.mark.parametrize("words", [["status"], ["status", "box"], ["box"]], ids=" ".join)
def test_where_there_is_no_deployment_both_ways_on_are_named(words: list[str], capsys: Captured) -> None:
    said = refused(words, capsys)
    assert "`console init [USER@]HOST`" in said
    assert "`console demo`" in said


@pytest.mark.parametrize(
    ("id", "says"),
    [
        ("nope", "families: cfg"),
        ("", "name a check"),
        ("  ", "name a check"),
        ("Align.Statess", "did you mean align.states?"),
        ("cfg.states", "did you mean align.states?"),
        ("aling", "did you mean align?"),
    ],
)
def test_a_wrong_id_is_told_what_may_be_meant_and_nothing_far_off(id: str, says: str, capsys: Captured) -> None:
    said = refused(["check", "--explain", id], capsys)
    assert says in said
    assert ("did you mean" in said) == ("did you mean" in says)
    assert "deployment" not in said


@pytest.mark.parametrize(("id", "first"), [("ALIGN.STATES", "align.states"), ("Cfg", "cfg.")])
def test_an_id_is_found_in_capitals_too(id: str, first: str, capsys: Captured) -> None:
    assert main(["check", "--explain", id]) == Exit.OK
    assert capsys.readouterr().out.startswith(first)


# -- what is refused before anything begins --------------------------------------------------------------------------


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    file = tmp_path / "here.toml"
    file.write_text(f'[model]\ntarget = "{tmp_path}"\n', "utf-8")
    return file


@pytest.mark.parametrize("words", [["status"], ["draft", "set", "a=1"], ["check"], []], ids=" ".join)
def test_an_ssh_configuration_that_is_not_there_is_named(
    words: list[str], deployment: Path, tmp_path: Path, capsys: Captured
) -> None:
    given = str(tmp_path / "gone")
    place = words.index("a=1") if "a=1" in words else len(words)
    said = refused([*words[:place], str(deployment), *words[place:], "-F", given], capsys)
    assert f"-F {given}: no such file" in said
    assert "a folder" in refused(["status", str(deployment), "-F", str(tmp_path)], capsys)


def test_init_names_an_ssh_configuration_that_is_not_there(tmp_path: Path, capsys: Captured) -> None:
    assert f"-F {tmp_path}/gone: no such file" in refused(["init", "box", "-F", f"{tmp_path}/gone"], capsys)


def test_the_app_is_not_opened_without_a_terminal(
    deployment: Path, config: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Deployment] = []

    def run(deployment: Deployment, *, read_only: bool) -> int:
        opened.append(deployment)
        return int(read_only)

    monkeypatch.setattr(app, "run", run)
    monkeypatch.setattr(story, "open_demo", lambda *_: pytest.fail("the demo began"))
    monkeypatch.delenv("TEXTUAL_DRIVER", raising=False)
    said = refused([str(deployment), "-F", str(config)], capsys)
    assert "needs a terminal" in said
    assert f"console check {deployment} -F '{config}'" in said
    said = refused(["demo"], capsys)
    assert "needs a terminal" in said
    assert "console demo --story" in said
    assert opened == []
    monkeypatch.setenv("TEXTUAL_DRIVER", "textual.drivers.web_driver:WebDriver")
    assert main([str(deployment)]) == Exit.OK
    assert [item.name for item in opened] == ["here"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--story", "--prompts", "0"], "'0' is not a number of at least 1"),
        (["--story", "--prompts", "-3"], "not a number of at least 1"),
        (["--prompts", "3"], "go with --story"),
        (["--json"], "go with --story"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_story_s_options_are_refused_where_they_mean_nothing(words: list[str], says: str, capsys: Captured) -> None:
    assert says in refused(["demo", *words], capsys)


def test_a_report_that_cannot_be_written_is_told_before_the_checks_run(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checks.__main__.answer", lambda *_: pytest.fail("the checks ran"))
    words = ["check", "--draft", str(tmp_path), "--junit"]
    assert f"--junit {tmp_path}/no/x: there is no folder {tmp_path}/no" in refused([*words, f"{tmp_path}/no/x"], capsys)
    assert f"--junit {tmp_path}: a folder" in refused([*words, str(tmp_path)], capsys)


@pytest.mark.parametrize("name", ["/dev/zero", "/dev", "FOLDER"])
def test_what_has_no_end_or_no_bytes_is_no_log(name: str, tmp_path: Path, capsys: Captured) -> None:
    file = str(tmp_path) if name == "FOLDER" else name
    assert main(["tail", "--file", file]) == Exit.NOT_RUN
    shown = capsys.readouterr()
    assert f"--file {file}: neither a file nor a pipe" in shown.err
    assert shown.out == ""


def test_a_log_comes_through_a_named_pipe(tmp_path: Path, capsys: Captured) -> None:
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("a line\n", "utf-8"))
    writer.start()
    assert main(["tail", "--file", str(pipe)]) == Exit.OK
    writer.join()
    assert capsys.readouterr().out == "a line\n"
    for given in ("-", "/dev/stdin"):
        piped = subprocess.run(
            [sys.executable, "-m", "console", "tail", "--file", given], input=b"one\n", capture_output=True, check=True
        )
        assert piped.stdout == b"one\n"


def test_a_list_without_runs_says_so(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["runs", "list"]) == Exit.OK
    shown = capsys.readouterr()
    assert (shown.out, "no run is recorded" in shown.err) == ("", True)
    assert main(["runs", "list", "box", "--json"]) == Exit.OK
    shown = capsys.readouterr()
    assert (json.loads(shown.out), "no run of box is recorded" in shown.err) == ([], True)


@pytest.mark.parametrize("module", ["console.cli", "console.commands", "argparse", "console.exits"])
def test_ctrl_c_while_modules_are_loaded_ends_quietly(module: str) -> None:
    code = (
        "import runpy, sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.modules.pop('argparse', None)\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "sys.argv = ['console', 'status', 'no-such']\n"
        "runpy.run_module('console', run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (Exit.INTERRUPTED, "", "")
