"""The folder of a capture: hidden states of some texts, as an engine or the target itself gave them.

It holds manifest.json and one sample_{i}.safetensors a text: `token_ids` [S] int64, `positions` [P] int64 (the rows
really computed: a cached prefix leaves a gap) and `hidden_states` [P, m, H], slots in the order the draft reads them.
Of a server of several ranks, again_{i}.safetensors holds one of the texts taken in another way; the manifest's `again`
says which and how.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from checks.errors import BadTensors, CaptureFailed, Unreadable
from checks.regular import open_regular
from checks.tensors import Floats, TensorInfo, read_header, read_rows, read_slot_rows

Ids = npt.NDArray[np.int64]

SCHEMA = 1
ENGINE, ALL_STATES, REFERENCE = "engine", "all-states", "reference"
KINDS = (ENGINE, ALL_STATES, REFERENCE)


class CaptureSample:
    """One text of S tokens and the states of P of its positions, m slots of width H."""

    def __init__(self, path: Path) -> None:
        self.path = path
        info = read_header(path)
        missing = [name for name in ("token_ids", "positions", "hidden_states") if name not in info]
        if missing:
            raise BadTensors(f"{path}: has no {missing[0]}, so it is no sample of a capture")
        self._info = info
        states = info["hidden_states"]
        if len(states.shape) != 3 or states.shape[0] != info["positions"].rows:
            raise BadTensors(
                f"{path}: hidden_states {list(states.shape)} do not go with {info['positions'].rows} positions"
            )

    @property
    def states(self) -> TensorInfo:
        """The header entry of `hidden_states` [P, m, H]."""
        return self._info["hidden_states"]

    @cached_property
    def token_ids(self) -> Ids:
        """int64 [S]."""
        return self._whole("token_ids")

    @cached_property
    def positions(self) -> Ids:
        """int64 [P], ascending: which token each row of states belongs to."""
        positions = self._whole("positions")
        if len(positions) and (
            np.any(np.diff(positions) <= 0) or positions[0] < 0 or positions[-1] >= len(self.token_ids)
        ):
            raise BadTensors(f"{self.path}: positions do not ascend within its {len(self.token_ids)} tokens")
        return positions

    def slot(self, index: int, start: int, stop: int) -> Floats:
        """Rows `start` to `stop` over the positions, of slot `index`: float32 [rows, H]. Raises BadTensors."""
        return read_slot_rows(self.states, start, stop, index)

    def block(self, start: int, stop: int) -> Floats:
        """Rows `start` to `stop` of all slots, in one read: float32 [rows, m, H]. Raises BadTensors."""
        return np.asarray(read_rows(self.states, start, stop), dtype=np.float32)

    def _whole(self, name: str) -> Ids:
        info = self._info[name]
        if len(info.shape) != 1 or info.dtype not in ("I64", "I32"):
            raise BadTensors(f"{self.path}: {name} is {info.dtype} {list(info.shape)}, not a list of integers")
        return np.asarray(read_rows(info, 0, info.rows), dtype=np.int64)


@dataclass(frozen=True)
class Again:
    """The `of`th text of a capture in another way, such as `rank 1`: a sound server gives the same states."""

    of: int
    how: str
    sample: CaptureSample


@dataclass(frozen=True)
class Capture:
    """States of some texts. `kind` engine: what the draft is fed; all-states and reference: R_0, R_1, … in slot order.

    `ids` are those the server ran under, None when not known; `claimed_states` is what the maker believed, never proof.
    `ranks`: tensor-parallel ranks of the server; of several, `again` holds a text taken in other ways too.
    """

    kind: str
    engine: str
    claimed_states: tuple[int, ...] | None
    ids: tuple[Any, ...] | None
    slots: int
    samples: Sequence[CaptureSample]
    path: Path
    version: str = ""
    ranks: int = 1
    again: tuple[Again, ...] = ()


@dataclass(frozen=True)
class Taken:
    """One text's states before they are written: token_ids [S], positions [P], states [P, m, H].

    `again`: how it was taken where it is the first text in another way.
    """

    token_ids: Ids
    positions: Ids
    states: Floats
    again: str = ""


def open_capture(path: Path) -> Capture:
    """Open a capture folder. Raises Unreadable or BadTensors."""
    manifest = _manifest(path)
    kind = manifest.get("kind")
    if kind not in KINDS:
        raise Unreadable(f"{path / 'manifest.json'}: kind {kind!r} is none of {', '.join(KINDS)}")
    files = sorted(path.glob("sample_*.safetensors"), key=_number_of)
    if not files:
        raise Unreadable(f"{path}: a manifest without samples; take the capture again")
    samples = [CaptureSample(file) for file in files]
    shapes = {sample.states.shape[1:] for sample in samples}
    if len(shapes) != 1:
        raise Unreadable(f"{path}: samples of different shape: {sorted(shapes)}")
    return Capture(
        kind=kind,
        engine=_text(manifest, "engine"),
        claimed_states=integers(manifest.get("states")),
        ids=tuple(manifest["ids"]) if isinstance(manifest.get("ids"), list) else None,
        slots=samples[0].states.shape[1],
        samples=tuple(samples),
        path=path,
        version=_text(manifest, "version"),
        ranks=ranks if type(ranks := manifest.get("ranks")) is int and ranks > 0 else 1,
        again=_again(path, manifest.get("again"), len(samples)),
    )


def _again(path: Path, told: object, count: int) -> tuple[Again, ...]:
    """What the manifest lists; each entry `{"of": sample, "how": words}` has its file."""
    entries = told if isinstance(told, list) else []
    found = []
    for index, entry in enumerate(entries):
        of, how = (entry.get("of"), entry.get("how")) if isinstance(entry, dict) else (None, None)
        if type(of) is not int or not 0 <= of < count or not isinstance(how, str):
            raise Unreadable(f"{path / 'manifest.json'}: entry {index} of `again` names no sample of it, or not how")
        found.append(Again(of, how, CaptureSample(path / f"again_{index}.safetensors")))
    return tuple(found)


def write_capture(folder: Path, manifest: Mapping[str, Any], samples: Iterable[Taken]) -> Capture:
    """Write a capture folder, whole or not at all, and open it. `folder` must not exist. Raises CaptureFailed."""
    staging = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}")
    try:
        staging.mkdir(parents=True, mode=0o700)
        count, again = 0, list[dict[str, Any]]()
        for sample in samples:
            tensors: dict[str, npt.NDArray[Any]] = {
                "token_ids": np.asarray(sample.token_ids, dtype="<i8"),
                "positions": np.asarray(sample.positions, dtype="<i8"),
                "hidden_states": np.asarray(sample.states, dtype="<f4"),
            }
            name = f"again_{len(again)}" if sample.again else f"sample_{count}"
            _write_safetensors(staging / f"{name}.safetensors", tensors)
            if sample.again:
                again.append({"of": 0, "how": sample.again})
            else:
                count += 1
        whole = {"schema": SCHEMA, **manifest, **({"again": again} if again else {})}
        (staging / "manifest.json").write_text(json.dumps(whole, indent=2) + "\n", "utf-8")
        staging.rename(folder)
    except OSError as error:
        raise CaptureFailed(f"the capture could not be written to {folder}: {error.strerror or error}") from None
    finally:
        if staging.is_dir():
            shutil.rmtree(staging, ignore_errors=True)
    return open_capture(folder)


def _write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    names = {"<i8": "I64", "<f4": "F32"}
    header, offset = {}, 0
    for name, values in tensors.items():
        header[name] = {
            "dtype": names[values.dtype.str],
            "shape": list(values.shape),
            "data_offsets": [offset, offset + values.nbytes],
        }
        offset += values.nbytes
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values).tobytes())


def _manifest(path: Path) -> dict[str, Any]:
    file = path / "manifest.json"
    try:
        with open_regular(file) as stream:
            value = json.loads(stream.read(1 << 20))
    except FileNotFoundError:
        inner = sorted(item.parent.name for item in path.glob("*/manifest.json"))
        hint = f"; it has the captures {', '.join(inner)} below it: name one of them" if inner else ""
        raise Unreadable(f"{path}: no manifest.json, so it is no capture folder{hint}") from None
    except OSError as error:
        raise Unreadable(f"{file}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{file}: not JSON ({error})") from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise Unreadable(f"{file}: not a manifest of schema {SCHEMA}")
    return value


def _text(manifest: Mapping[str, Any], key: str) -> str:
    value = manifest.get(key)
    return value if isinstance(value, str) else ""


def integers(value: object) -> tuple[int, ...] | None:
    """A JSON list of integers as a tuple, None when it is none."""
    if not isinstance(value, list) or any(isinstance(item, bool) or not isinstance(item, int) for item in value):
        return None
    return tuple(value)


def _number_of(path: Path) -> tuple[int, str]:
    digits = path.stem.rpartition("_")[2]
    return (int(digits) if digits.isdigit() and len(digits) < 10 else 0, path.name)
