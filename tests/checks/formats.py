"""Caches in every layout in use, written from the same texts, so that each test runs on all of them."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checks import pair
from tests.checks.files import bf16, write_tensors


@dataclass(frozen=True)
class Text:
    """One cached text: ids [S], mask [S], the slots' states [S, m, H], R_n and N [S, H]."""

    ids: np.ndarray
    mask: np.ndarray
    slots: np.ndarray
    pre: np.ndarray
    post: np.ndarray

    def but(self, **changed: Any) -> Text:
        return replace(self, **changed)


def texts(count: int = 4, ks: tuple[int, ...] = pair.STATES, rows: int = 96) -> list[Text]:
    """Texts of the shipped cache with the states its target really has."""
    out = []
    for index in range(count):
        ids = pair.text(index)[:rows]
        last = pair.all_states(index)[pair.N][:rows]
        mask = np.zeros(rows, dtype=np.int64)
        mask[20:] = 1
        out.append(Text(ids, mask, pair.stacked(index, ks)[:rows], last, pair.target().final(last)))
    return out


Write = Callable[[Path, Sequence[Text]], None]


@dataclass(frozen=True)
class Format:
    """How a layout is written, and what the reader is to say of it. `first` names a file that may be damaged."""

    layout: str
    write: Write
    final: str
    first: str
    torch: bool = True
    slots: int = 3
    mask: bool = True
    claim: tuple[int, ...] | None = None
    id: str = ""

    def build(self, folder: Path, held: Sequence[Text]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        self.write(folder, held)
        return folder


# -- written byte by byte ----------------------------------------------------------------------------------------------


def _speculators(folder: Path, held: Sequence[Text]) -> None:
    for index, text in enumerate(held):
        blocks = np.concatenate([text.slots, text.pre[:, None]], axis=1)
        write_tensors(folder / f"hs_{index}.safetensors", {"hidden_states": bf16(blocks), "token_ids": text.ids})


def _vllm(folder: Path, held: Sequence[Text]) -> None:
    for index, text in enumerate(held):
        path = folder / f"cmpl-{index}f3a.safetensors"
        write_tensors(path, {"hidden_states": bf16(text.slots), "token_ids": text.ids})
        path.with_name(path.name + ".lock").write_bytes(b"")


def _deepspec(folder: Path, held: Sequence[Text]) -> None:
    index, body = b"", b""
    for number, text in enumerate(held):
        parts = (
            text.ids.astype("<i4").tobytes(),
            np.ones(len(text.ids), np.uint8).tobytes(),
            text.mask.astype(np.uint8).tobytes(),
            bf16(text.slots).tobytes(),
            bf16(text.post).tobytes(),
        )
        offsets = []
        for part in parts:
            offsets.append(len(body))
            body += part
        index += struct.pack("<QIIQQQQQ", number, 0, len(text.ids), *offsets)
    (folder / "samples.idx").write_bytes(index)
    (folder / "shard-00000.bin").write_bytes(body)
    manifest = {
        "version": 2,
        "num_samples": len(held),
        "num_shards": 1,
        "target_layer_ids": [k - 1 for k in pair.STATES],
        "hidden_dtype": "bfloat16",
        "token_dtype": "int32",
        "mask_dtype": "uint8",
        "index_record_size": 56,
        "hidden_size": pair.H,
        "shards": [{"shard_id": 0, "file_name": "shard-00000.bin"}],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _nemo(folder: Path, held: Sequence[Text]) -> None:
    """Two samples a shard, padded to the longest of all."""
    longest = max(len(text.ids) for text in held) + 8
    for shard in range(0, len(held), 2):
        rows = [_padded(text, longest) for text in held[shard : shard + 2]]
        tensors = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
        tensors["aux_hidden_states"] = bf16(tensors["aux_hidden_states"])
        tensors["target_probs"] = bf16(tensors["target_probs"])
        write_tensors(folder / f"shard-{shard // 2:06d}.safetensors", tensors)
    write_tensors(folder / "target_embeddings.safetensors", {"weight": np.zeros((4, pair.H), np.float32)})
    manifest = {
        "target_vocab_size": 260,
        "aux_hidden_dim": pair.H * 3,
        "aux_layer_ids": [k - 1 for k in pair.STATES],
        "num_samples": len(held),
        "shard_size": 2,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _padded(text: Text, length: int) -> dict[str, np.ndarray]:
    def grown(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, np.zeros((length - len(values), *values.shape[1:]), values.dtype)])

    ones = np.ones(len(text.ids), np.int64)
    flat = text.slots.reshape(len(text.ids), -1).astype(np.float32)
    return {
        "input_ids": grown(text.ids.astype(np.int64)),
        "attention_mask": grown(ones),
        "loss_mask": grown(text.mask.astype(np.int64)),
        "aux_hidden_states": grown(flat),
        "position_mask": grown(np.ones((len(text.ids), 1), bool)),
        "target_probs": grown(np.full((len(text.ids), 8), 0.125, np.float32)),
    }


# -- written by torch --------------------------------------------------------------------------------------------------


def _tensor(values: np.ndarray, half: bool = True) -> Any:
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.to(torch.bfloat16) if half and tensor.is_floating_point() else tensor


def _wide(text: Text) -> np.ndarray:
    return text.slots.reshape(len(text.slots), -1).astype(np.float32)


def _saved(name: str, one: Callable[[Text, int], Any]) -> Write:
    """A writer of one file a text, named by its number."""

    def write(folder: Path, held: Sequence[Text]) -> None:
        import torch

        for index, text in enumerate(held):
            path = folder / name.format(index)
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(one(text, index), path)
            if path.name.endswith(".gz"):
                path.write_bytes(gzip.compress(path.read_bytes(), 1))

    return write


def _ids(text: Text) -> dict[str, Any]:
    return {"input_ids": _tensor(text.ids.astype(np.int64)), "loss_mask": _tensor(text.mask.astype(np.int64))}


def _specforge(text: Text, _: int) -> dict[str, Any]:
    return {**_ids(text), "hidden_state": _tensor(text.post[None]), "aux_hidden_state": _tensor(_wide(text)[None])}


def _specforge_concat(text: Text, _: int) -> dict[str, Any]:
    return {**_ids(text), "hidden_state": _tensor(_wide(text)[None])}


def _specforge_logits(text: Text, _: int) -> dict[str, Any]:
    with np.errstate(invalid="ignore"):
        logits = text.post @ pair.target().weights["lm_head.weight"].T
    return {**_ids(text), "hidden_state": _tensor(logits[None]), "aux_hidden_state": _tensor(_wide(text)[None])}


def _specforge_final(text: Text, _: int) -> dict[str, Any]:
    return {**_ids(text), "hidden_state": _tensor(text.post[None])}


def _dflash(text: Text, _: int) -> dict[str, Any]:
    return {**_ids(text), "hidden_states": _tensor(_wide(text)[None])}


def _dspark(text: Text, _: int) -> dict[str, Any]:
    return {**_dflash(text, 0), "target_last_hidden_states": _tensor(text.post[None])}


def _eagle(text: Text, _: int) -> dict[str, Any]:
    return {**_ids(text), "hidden_state": _tensor(text.post)}


def _v0(text: Text, _: int) -> dict[str, Any]:
    return {**_ids(text), "hidden_state": _tensor(_wide(text)), "target": _tensor(text.post)}


def _v1(text: Text, _: int) -> dict[str, Any]:
    blocks = [_tensor(text.slots[:, slot]) for slot in range(text.slots.shape[1])]
    return {**_ids(text), "hidden_states": [*blocks, _tensor(text.pre)]}


def _modelopt(norm: str) -> Callable[[Text, int], dict[str, Any]]:
    def one(text: Text, index: int) -> dict[str, Any]:
        final = text.pre if norm == "pre" else text.post
        out = {**_ids(text), "hidden_states": _tensor(final), "aux_hidden_states": _tensor(_wide(text))}
        return {**out, "conversation_id": f"conv-{index}"}

    return one


def _angelslim(folder: Path, held: Sequence[Text]) -> None:
    """Two texts of one length a file, in a folder of their own."""
    import torch

    for start in range(0, len(held), 2):
        batch = held[start : start + 2]
        value = {
            "input_ids": _tensor(np.stack([text.ids for text in batch]).astype(np.int64)),
            "loss_mask": _tensor(np.stack([text.mask for text in batch]).astype(np.int64)),
            "hidden_states": _tensor(np.stack([_wide(text) for text in batch])),
            "target_hiddens": _tensor(np.stack([text.post for text in batch])),
        }
        (folder / "part" / str(start)).mkdir(parents=True, exist_ok=True)
        torch.save(value, folder / "part" / str(start) / f"batch_{start}.ckpt")


def _tensorrt(key: str) -> Write:
    def write(folder: Path, held: Sequence[Text]) -> None:
        import torch

        for start in range(0, len(held), 2):
            value = [
                {
                    "id": start + offset,
                    "input_ids": _tensor(text.ids.astype(np.int64)),
                    "hidden_state": _tensor(text.pre),
                    key: _tensor(_wide(text)),
                }
                for offset, text in enumerate(held[start : start + 2])
            ]
            torch.save(value, folder / f"states_{start + 2}.pt")

    return write


def _with_map(write: Write) -> Write:
    """SpecForge puts its vocabulary map beside the samples."""

    def both(folder: Path, held: Sequence[Text]) -> None:
        import torch

        write(folder, held)
        (folder / "vocab_mapping").mkdir(exist_ok=True)
        torch.save({"d2t": torch.zeros(4, dtype=torch.int64)}, folder / "vocab_mapping" / "vocab_mapping.pt")

    return both


def _with_side(write: Write) -> Write:
    def both(folder: Path, held: Sequence[Text]) -> None:
        write(folder, held)
        ids = [*(k - 1 for k in pair.STATES), pair.N - 1]
        config = {"version": "2.0", "hidden_states": {"layer_ids": ids}, "model": {"hidden_size": pair.H}}
        (folder / "data_config.json").write_text(json.dumps(config))

    return both


ROWS = "rows_0-2000/data_{}.ckpt"
FORMATS = (
    Format("speculators", _speculators, "pre", "hs_0.safetensors", torch=False, mask=False),
    Format("vllm", _vllm, "none", "cmpl-0f3a.safetensors", torch=False, mask=False),
    Format("deepspec", _deepspec, "unknown", "shard-00000.bin", torch=False, claim=pair.STATES),
    Format("nemo", _nemo, "none", "shard-000000.safetensors", torch=False, claim=pair.STATES),
    Format("specforge", _with_map(_saved(ROWS, _specforge)), "post", ROWS.format(0)),
    Format("specforge", _saved(ROWS + ".gz", _specforge), "post", ROWS.format(0) + ".gz", id="specforge-gz"),
    Format("specforge-concat", _saved(ROWS, _specforge_concat), "none", ROWS.format(0)),
    Format("specforge-logits", _saved(ROWS, _specforge_logits), "none", ROWS.format(0)),
    Format("specforge-final", _saved(ROWS, _specforge_final), "post", ROWS.format(0), slots=0),
    Format("specforge-dflash", _saved(ROWS, _dflash), "none", ROWS.format(0)),
    Format("specforge-dspark", _saved(ROWS, _dspark), "post", ROWS.format(0)),
    Format("eagle", _saved("mufp16/0/data_{}.ckpt", _eagle), "post", "mufp16/0/data_0.ckpt", slots=0),
    Format("speculators-v0", _saved("data_{}.ckpt", _v0), "post", "data_0.ckpt", claim=(3, 7, 10)),
    Format("speculators-v1", _with_side(_saved("data_{}.pt", _v1)), "pre", "data_0.pt", claim=pair.STATES),
    Format("modelopt", _saved("c{}.pt", _modelopt("post")), "unknown", "c0.pt", id="modelopt-hf"),
    Format("modelopt", _saved("c{}.pt", _modelopt("pre")), "unknown", "c0.pt", id="modelopt-vllm"),
    Format("tensorrt-llm", _tensorrt("hidden_state_features"), "unknown", "states_2.pt", mask=False, id="trt-older"),
    Format("tensorrt-llm", _tensorrt("aux_hidden_states"), "unknown", "states_2.pt", mask=False, id="trt-newer"),
    Format("angelslim", _angelslim, "post", "part/0/batch_0.ckpt"),
)  # fmt: skip


def every(chosen: Callable[[Format], bool] = lambda item: True) -> list[Any]:
    """The formats as parameters of a test; those that torch writes are marked."""
    return [
        pytest.param(item, id=item.id or item.layout, marks=[pytest.mark.torch] if item.torch else [])
        for item in FORMATS
        if chosen(item)
    ]
