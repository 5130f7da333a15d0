"""The versions kept of a config are listed and put back when the file itself is gone, no text, or too large."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checks.jsonfile import MAX_BYTES
from console.cli import main
from console.deployment import Deployment, ModelSpec, ServerSpec, save_deployment
from console.exits import Exit
from console.paths import config_dir, staged_file

GOOD = json.dumps({"hidden_size": 128, "model_type": "llama"}, indent=2) + "\n"
Ran = Callable[..., tuple[int, str, str]]


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """A draft's config on this machine, of which one version is kept; its deployment is `here.toml`."""
    file = tmp_path / "draft" / "config.json"
    file.parent.mkdir()
    file.write_text(GOOD, "utf-8")
    target = tmp_path / "target" / "config.json"
    target.parent.mkdir()
    target.write_text(GOOD, "utf-8")
    server = ServerSpec(log=str(tmp_path / "a.log"), url="http://127.0.0.1:9")
    made = Deployment("here", model=ModelSpec(str(target.parent), str(file.parent)), server=server)
    save_deployment(made, tmp_path / "here.toml")
    staged_file("here").unlink(missing_ok=True)
    yield file
    staged_file("here").unlink(missing_ok=True)


@pytest.fixture
def ran(config: Path, capsys: pytest.CaptureFixture[str]) -> Ran:
    def call(action: str, *words: str) -> tuple[int, str, str]:
        code = main(["draft", action, str(config.parents[1] / "here.toml"), *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    assert call("history")[0] == Exit.OK
    return call


def gone(file: Path) -> None:
    file.unlink()


def binary(file: Path) -> None:
    file.write_bytes(bytes(range(256)) * 800)


def too_large(file: Path) -> None:
    file.write_bytes(b"[" + b" " * MAX_BYTES + b"]")


@pytest.mark.parametrize(
    ("lose", "says"), [(gone, "does not exist"), (binary, "not UTF-8"), (too_large, "larger than 16 MB")]
)
def test_a_lost_config_is_put_back_and_what_lay_there_is_kept(
    ran: Ran, config: Path, lose: Callable[[Path], None], says: str
) -> None:
    lose(config)
    there = config.read_bytes() if config.exists() else None
    code, out, err = ran("history")
    assert (code, says in err) == (Exit.OK, True), err
    number = out.split()[0]
    assert not out.splitlines()[0].endswith("  on the host")
    assert ran("diff")[0] != Exit.OK, "there is nothing to read"
    code, out, err = ran("restore", number)
    assert code == Exit.OK, err
    assert '+  "hidden_size": 128,' in out.splitlines()
    code, out, err = ran("write", "--yes")
    assert code == Exit.OK, err
    assert config.read_text("utf-8") == GOOD
    backup = out.rpartition("before: ")[2].strip()
    assert backup == "nothing was there" if there is None else Path(backup).read_bytes() == there
    assert ran("show")[1] == GOOD


def test_what_changed_after_the_restore_was_staged_is_not_written_over(ran: Ran, config: Path) -> None:
    number = ran("history")[1].split()[0]
    binary(config)
    assert ran("restore", number)[0] == Exit.OK
    config.write_bytes(b"\xff another")
    code, _, err = ran("write", "--yes")
    assert (code, "nothing was written" in err) == (Exit.FINDINGS, True), err
    assert config.read_bytes() == b"\xff another"


def test_the_checks_and_the_draft_name_one_limit(ran: Ran, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_bytes(GOOD.rstrip().encode() + b" " * 5_000_000)
    assert ran("show")[0] == Exit.OK
    too_large(config)
    assert "larger than 16 MB" in ran("show")[2]
    assert main(["check", "--draft", str(config.parent), "--only", "cfg"]) == Exit.FINDINGS
    assert "larger than 16 MB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("=1", "lacks its key"),
        ("/a//b=1", "empty key"),
        ('x={"a":NaN}', "NaN"),
        ("x=-Infinity", "Infinity"),
        ("x=1e999", "Infinity"),
    ],
)
def test_what_no_config_can_hold_is_not_staged(ran: Ran, word: str, says: str) -> None:
    code, out, err = ran("set", word)
    assert code in (Exit.USAGE, Exit.FINDINGS)
    assert says in err
    assert out == ""
    assert "nothing is staged" in ran("diff")[2]


def test_a_value_taken_as_a_string_is_said_so(ran: Ran) -> None:
    code, _, err = ran("set", "hidden_size=notjson")
    assert code == Exit.OK
    assert "hidden_size: notjson is no JSON, so it is taken as a string; what it replaces, 128, was no string" in err
    assert "taken as a string" not in ran("set", 'model_type="llama2"')[2]
    code, _, err = ran("set", "--discard")
    assert code == Exit.OK
    assert '+  "hidden_size": "notjson",' in err.splitlines()
    assert "nothing was staged" in ran("set", "--discard")[2]


def test_read_only_stages_and_drops_nothing(ran: Ran) -> None:
    assert ran("set", "hidden_size=64")[0] == Exit.OK
    number = ran("history")[1].split()[0]
    for words in (("set", "hidden_size=1"), ("set", "--discard"), ("restore", number)):
        code, _, err = ran(*words, "--read-only")
        assert (code, "read-only" in err) == (Exit.FINDINGS, True)
    assert '+  "hidden_size": 64,' in ran("diff")[1]


def test_a_restore_without_a_version_lists_them_says_how_and_stages_nothing(
    ran: Ran, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = ran("history")[1]
    number, sha = listed.split()[0], listed.split()[3]
    config.write_text(GOOD.replace("128", "256"), "utf-8")
    listed = ran("history")[1]
    code, out, err = ran("restore")
    assert (code, out) == (Exit.USAGE, listed)
    assert "which version? console draft restore" in err and "VERSION" in err
    assert not staged_file("here").exists()
    assert ran("restore", "--read-only")[0] == Exit.USAGE, "a list changes nothing"
    # Where there is one deployment alone, a number or the begin of a sha256 is a version.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config.parents[1] / "config"))
    folder = config_dir()
    folder.mkdir(parents=True)
    (config.parents[1] / "here.toml").rename(folder / "here.toml")
    for version in (number, sha):
        assert main(["draft", "restore", version]) == Exit.OK
        assert '-  "hidden_size": 256,' in capsys.readouterr().out.splitlines()
        assert main(["draft", "set", "--discard"]) == Exit.OK
        capsys.readouterr()
    assert main(["draft", "restore", "there"]) == Exit.USAGE
    assert "no deployment 'there'" in capsys.readouterr().err


def test_where_no_version_is_kept_there_is_nothing_to_restore(ran: Ran, config: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    toml = config.parents[1] / "here.toml"
    toml.write_text(toml.read_text("utf-8").replace(str(config.parent), str(other)), "utf-8")
    code, out, err = ran("restore")
    assert (code, out) == (Exit.FINDINGS, "")
    assert "nothing to restore" in err
