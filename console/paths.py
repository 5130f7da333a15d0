"""Where the console keeps what is its user's: deployment files, history, and what it fetched for a while."""

from __future__ import annotations

from pathlib import Path

from console.errors import UsageError

APP = "eagle-console"


def config_dir() -> Path:
    """The folder of deployment files. Not created here: reading must leave no trace."""
    from platformdirs import user_config_path

    return Path(user_config_path(APP, appauthor=False))


def ssh_config_file(given: str) -> Path:
    """The file given as -F. Raises UsageError where there is none: ssh itself would go on without it."""
    try:
        file = Path(given).expanduser()
    except RuntimeError as error:
        raise UsageError(f"-F {given}: no usable path: {error}") from None
    if file.is_dir():
        raise UsageError(f"-F {given}: a folder, and no file of ssh configuration")
    if not file.exists():
        raise UsageError(f"-F {given}: no such file; name one as for ssh, or leave -F out for ~/.ssh/config")
    return file


def history_file() -> Path:
    """The database of runs; its folder is created by whoever opens it."""
    from platformdirs import user_state_path

    return Path(user_state_path(APP, appauthor=False)) / "history.sqlite3"


def staged_file(deployment: str) -> Path:
    """Where the commands keep what is staged for a deployment's draft between two calls."""
    return history_file().parent / "staged" / f"{deployment}.json"


def cause_file(deployment: str) -> Path:
    """Where the commands keep which finding the draft was last written for, until the server is restarted on it."""
    return history_file().parent / "staged" / f"{deployment}.cause.json"
