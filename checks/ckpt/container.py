"""`ckpt.container`: the draft's files are whole."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from checks.catalog import check
from checks.draft import Draft
from checks.errors import BadTensors
from checks.evidence import Evidence, Need
from checks.finding import Finding, Verdict
from checks.regular import open_regular
from checks.tensors import read_header
from checks.weights import INDEX, PICKLES

ID = "ckpt.container"

# The end-of-directory record of a zip archive, and how far from the end a comment may push it.
_ZIP, _ZIP_END, _ZIP_TAIL = b"PK\x03\x04", b"PK\x05\x06", 66_000


@check(ID, needs=(Need.DRAFT,))
def container(evidence: Evidence) -> Iterable[Finding]:
    """Every file of the draft's weights is complete and is what its name says.

    Four things look alike in a loader's message and are not: a file cut short (a copy that stopped, a full disk), bytes
    after the last tensor, an empty file, and the legal oddities: an empty `__metadata__`, a header without tensors. A
    torch archive that a full disk cut lacks its directory at the end. Only headers and ends are read.

    FAIL: an empty file; truncated; trailing or uncovered bytes; a damaged header; another kind of file under the name;
    an archive without its directory; a shard or a tensor that the index names and the folder lacks. INFO: a file
    without a tensor. PASS: all are whole.

    What to do: copy or download the file again and compare its size and checksum with the source.
    """
    draft = evidence.draft
    assert draft is not None
    files = _files(draft)
    if not files:
        reason = evidence.missing(Need.DRAFT_WEIGHTS) or "needs the draft's weights"
        yield Finding(ID, Verdict.UNKNOWN, f"not checked: {reason}", {"needs": [Need.DRAFT_WEIGHTS.value]})
        return
    rows = [_judge(path) for path in files]
    if not any(row["problem"] for row in rows):
        rows += _promised(draft)
    facts = {"files": rows}
    bad = [row for row in rows if row["problem"]]
    empty = [row["file"] for row in rows if row["state"] == "no tensors"]
    if bad:
        yield Finding(ID, Verdict.FAIL, "; ".join(row["problem"] for row in bad[:4]), facts)
    elif empty:
        yield Finding(ID, Verdict.INFO, f"{', '.join(empty[:3])}: a legal header, and no tensor in it", facts)
    else:
        yield Finding(ID, Verdict.PASS, f"{len(rows)} file{'s' if len(rows) > 1 else ''} whole", facts)


def _files(draft: Draft) -> list[Path]:
    """The weight files of a draft, pickled ones only where there is nothing else."""
    folder = draft.path if draft.path.is_dir() else draft.path.parent
    if draft.path.suffix == ".safetensors":
        return [draft.path]
    if draft.path.is_file() and draft.path.name != "config.json":
        return []
    try:
        names = sorted(item.name for item in folder.iterdir())
    except OSError:
        return []
    tensors = [folder / name for name in names if name.endswith(".safetensors")]
    return tensors or [folder / name for name in names if name.endswith(PICKLES)]


def _promised(draft: Draft) -> list[dict[str, Any]]:
    """What the index names and the folder lacks."""
    try:
        for name in draft.weights.info if draft.weights is not None else ():
            draft.weights.info[name]  # type: ignore[union-attr]
    except BadTensors as error:
        return [{"file": INDEX, "bytes": None, "state": "incomplete", "problem": str(error)}]
    return []


def _judge(path: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"file": path.name, "bytes": None, "state": "whole", "problem": ""}
    try:
        with open_regular(path):
            row["bytes"] = size = path.stat().st_size
        if size == 0:
            return {**row, "state": "empty", "problem": f"{path}: empty, 0 bytes: it was never written"}
        if path.suffix == ".safetensors":
            return {**row, "state": "whole" if read_header(path) else "no tensors"}
        return {**row, **_archive(path, size)}
    except BadTensors as error:
        page = _is_page(path)
        said = f"{path}: a web page or a message saved under its name, not the weights: download it again"
        return {**row, "state": "damaged" if page else _state(str(error)), "problem": said if page else str(error)}
    except OSError as error:
        return {**row, "state": "unreadable", "problem": f"{path}: cannot be read: {error.strerror or error}"}


def _is_page(path: Path) -> bool:
    """Whether a file begins as HTML or JSON does; a safetensors header is JSON behind eight bytes of its length."""
    with open_regular(path) as file:
        begins = file.read(64).lstrip().lower()
    return begins.startswith((b"<!doctype", b"<html", b"<?xml", b'{"'))


def _state(message: str) -> str:
    """The kind of damage, from the reader's sentence."""
    if "truncated" in message:
        return "truncated"
    return "trailing" if "follow the last tensor" in message else "damaged"


def _archive(path: Path, size: int) -> dict[str, Any]:
    with open_regular(path) as file:
        begins = file.read(4)
        file.seek(max(size - _ZIP_TAIL, 0), os.SEEK_SET)
        ends = _ZIP_END in file.read()
    if begins == _ZIP and not ends:
        said = f"{path}: truncated: a torch archive without the directory at its end, as a full disk leaves it"
        return {"state": "truncated", "problem": said}
    return {}
