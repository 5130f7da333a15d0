"""The files of a cache: found a few folders deep, in the order of their numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from checks.errors import NotRunnable

SUFFIXES = (".safetensors", ".pt", ".ckpt", ".ckpt.gz")
# Folders of groups, as rows_0-2000/, hidden_states/ or sharegpt_0_999_mufp16/3/; a cache is never deeper.
DEPTH = 3

# Files that stand among samples and are none: vocabulary maps, the target's embedding, counts of tokens, the trainer.
NOT_SAMPLES = re.compile(
    r"(vocab_mapping|cache|token_freq|target_embeddings|training_state|optimizer|scheduler|d2t|t2d)"
    r"\.(pt|ckpt|safetensors)"
)

LONGEST_NAME = 255
"""Bytes; no file system in use takes a longer one."""

_GROWING = (".log", ".out", ".lock", ".tmp")


@dataclass(frozen=True)
class Listing:
    """The sample files of a cache, and the names of the other files beside them."""

    path: Path
    folder: Path
    """Where side files stand: the folder of the first sample file."""
    files: tuple[Path, ...]
    others: tuple[str, ...]

    def having(self, *suffixes: str) -> tuple[Path, ...]:
        """The sample files with one of these suffixes."""
        return tuple(file for file in self.files if file.name.endswith(suffixes))

    def side(self, name: str) -> Path | None:
        """A side file by name: beside the samples, else at the top of the cache."""
        top = self.path if self.path.is_dir() else self.path.parent
        return next((folder / name for folder in (self.folder, top) if (folder / name).is_file()), None)

    def label(self, path: Path) -> str:
        """The file's name within the cache, for people: data_3.ckpt of two folders are two files."""
        top = f"{self.path}{os.sep}"
        return str(path)[len(top) :].replace(os.sep, "/") if str(path).startswith(top) else path.name


def list_files(path: Path) -> Listing:
    """The sample files under a folder, or the one file given. Raises NotRunnable when a folder may not be listed."""
    if path.is_file():
        beside = sorted(item.name for item in _scan(path.parent) if item.name != path.name and _is(item.is_file))
        return Listing(path, path.parent, (path,), tuple(beside[:100]))
    found: list[Path] = []
    others: list[str] = []
    for entry in _walk(path, DEPTH):
        if entry.name.endswith(SUFFIXES) and not NOT_SAMPLES.fullmatch(entry.name):
            found.append(Path(entry.path))
        elif len(others) < 100:
            others.append(entry.name)
    found.sort(key=lambda file: [numbers(part) for part in file.parts])
    return Listing(path, found[0].parent if found else path, tuple(found), tuple(sorted(others)))


def side_files(path: Path) -> Iterator[Path]:
    """The files of a cache that are no samples and may say what its samples hold: indices, shards, manifests, the
    dataset with the masks, which may stand one folder above. Logs and locks are none of them."""
    top = path if path.is_dir() else path.parent
    for entry in _walk(top, DEPTH):
        sample = entry.name.endswith(SUFFIXES) and not NOT_SAMPLES.fullmatch(entry.name)
        if not sample and not entry.name.endswith(_GROWING):
            yield Path(entry.path)
    for above in [*sorted(top.parent.glob("*.arrow")), top.parent / "state.json"]:
        if above.is_file():
            yield above


def file_name(text: object) -> str | None:
    """A name somebody wrote into a side file, when it can be that of a file in the same folder; None else.

    A name with a folder in it would lead out of the cache, and what no system takes for a name would stop the run.
    """
    if not isinstance(text, str) or not text.isprintable() or text in ("", ".", "..") or Path(text).name != text:
        return None
    return text if len(text.encode()) <= LONGEST_NAME else None


def shown(text: object) -> str:
    """What stands where a name should, for people: its beginning, with nothing in it that a terminal would obey."""
    words = ascii(text)
    return words if len(words) <= 60 else f"{words[:48]}… ({len(words)} letters)"


@lru_cache(maxsize=1024)  # the folders of a file are those of the next one
def numbers(text: str) -> tuple[tuple[int, str], ...]:
    """A sort key that puts data_2 before data_10."""
    parts = re.split(r"([0-9]{1,18})", text)
    return tuple((int(part), "") if index % 2 else (-1, part) for index, part in enumerate(parts))


def _walk(folder: Path, depth: int, seen: frozenset[tuple[int, int]] = frozenset()) -> Iterator[os.DirEntry[str]]:
    """The files below a folder; not those of a link that leads back to a folder above it."""
    entries = _scan(folder)
    above = seen | {_identity(folder)}
    deeper: list[Path] = []
    for entry in entries:
        if _is(entry.is_file):
            yield entry
        elif depth > 0 and _is(entry.is_dir) and _identity(inner := Path(entry.path)) not in above:
            deeper.append(inner)
    for inner in deeper:
        yield from _walk(inner, depth - 1, above)


def _identity(folder: Path) -> tuple[int, int]:
    """Device and number of a folder, the same by whichever name. Raises NotRunnable where it is gone."""
    try:
        place = folder.stat()
    except OSError as error:
        raise NotRunnable(f"{folder}: cannot be listed: {error.strerror or error}") from None
    return place.st_dev, place.st_ino


def _is(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:
        return False  # a link that leads in a circle, or to where this account may not look


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise NotRunnable(f"{folder}: cannot be listed: {error.strerror or error}") from None
