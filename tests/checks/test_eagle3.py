"""The draft forward: the same numbers as an incremental engine, as transformers' own blocks, in numpy and in torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from checks.draft import open_draft
from checks.eagle3 import CannotReplay, Drafter, draft_shape, load_drafter, loading
from console.demo.engine.engine import Engine
from console.demo.engine.server_args import ServerArgs
from tests.checks import pair
from tests.checks.files import CONFIG, draft_tensors, with_header, write_tensors

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 5


def shipped() -> Drafter:
    return load_drafter(open_draft(pair.DRAFT))


def fused_and_embedded(index: int) -> tuple[np.ndarray, np.ndarray]:
    aux = pair.stacked(index, pair.STATES)
    return shipped().fuse(aux.reshape(len(aux), -1)), pair.all_states(index)[0]


def serving() -> Engine:
    """The embedded engine with the shipped pair."""
    args = ServerArgs(
        model_path=str(pair.TARGET),
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path=str(pair.DRAFT),
        speculative_num_steps=STEPS,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=STEPS + 1,
    )
    return Engine.load(args)


def test_an_engine_proposes_the_same_chain_as_far_as_the_text_goes_with_it() -> None:
    drafter, (fused, embedded), ids = shipped(), fused_and_embedded(0), pair.text(0)
    aux = pair.stacked(0, pair.STATES)
    aux = aux.reshape(len(aux), -1)
    ours, served = drafter.predict(fused, embedded, STEPS, 0, 180), serving().drafter
    assert served is not None
    compared = 0
    for anchor in range(0, 180, 7):
        served.reset()
        served.extend(ids[1 : anchor + 2], aux[: anchor + 1])
        chain = served.propose(STEPS)
        for j in range(STEPS):
            assert ours[j, anchor] == chain[j]
            compared += 1
            if chain[j] != ids[anchor + 2 + j]:
                break
    assert compared > 50


def test_chunks_and_windows_change_nothing() -> None:
    drafter, (fused, embedded) = shipped(), fused_and_embedded(1)
    whole = drafter.predict(fused, embedded, 3, 0, 180)
    assert np.array_equal(drafter.predict(fused, embedded, 3, 129, 150), whole[:, 129:150])
    one = np.concatenate([drafter.predict(fused, embedded, 3, t, t + 1) for t in range(60, 70)], axis=1)
    assert np.array_equal(one, whole[:, 60:70])


def test_proposals_are_tokens_of_the_target_through_the_offsets() -> None:
    drafter, (fused, embedded) = shipped(), fused_and_embedded(0)
    weights = open_draft(pair.DRAFT).weights
    assert weights is not None
    offsets = weights.read("d2t")
    said = drafter.predict(fused, embedded, 2, 0, 100)
    assert set(said.ravel().tolist()) <= set((np.arange(len(offsets)) + offsets).tolist())
    assert {ord(letter) for letter in " e"} <= set(said.ravel().tolist())


def test_too_few_embedded_rows_are_refused() -> None:
    drafter, (fused, embedded) = shipped(), fused_and_embedded(0)
    with pytest.raises(ValueError, match="do not reach"):
        drafter.predict(fused, embedded[:102], 3, 0, 100)


def written(folder: Path, change: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **change}), "utf-8")
    write_tensors(folder / "model.safetensors", tensors if tensors is not None else draft_tensors())
    return folder


@pytest.mark.parametrize("prefix", ["midlayer.", "layers.0.", "model.layers.0."])
def test_both_families_of_names_load(tmp_path: Path, prefix: str) -> None:
    drafter = load_drafter(open_draft(written(tmp_path / "draft", {}, draft_tensors(prefix))))
    assert (drafter.shape.hidden, drafter.shape.slots, drafter.shape.kv_heads) == (16, 3, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": 2}, "2 layers"),
        ({"head_dim": 3, "num_attention_heads": 4}, "q_proj"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
        ({"num_attention_heads": 3, "head_dim": 4}, "q_proj"),
        ({"target_hidden_size": 7}, "no whole number"),
    ],
)
def test_what_is_not_computed_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotReplay, match=words):
        load_drafter(open_draft(written(tmp_path / "draft", change)))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("midlayer.self_attn.kv_a_proj_with_mqa.weight", "qk_nope_head_dim"),
        ("midlayer.self_attn.q_norm.weight", "q_norm"),
    ],
)
def test_tensors_of_another_kind_of_draft_are_named(tmp_path: Path, name: str, words: str) -> None:
    tensors = {**draft_tensors(), name: np.zeros((4, 4), dtype=np.float32)}
    with pytest.raises(CannotReplay, match=words):
        load_drafter(open_draft(written(tmp_path / "draft", {}, tensors)))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = draft_tensors()
    del tensors["midlayer.mlp.up_proj.weight"]
    with pytest.raises(CannotReplay, match=r"midlayer\.mlp\.up_proj"):
        load_drafter(open_draft(written(tmp_path / "draft", {}, tensors)))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("d2t", np.zeros(10, dtype=np.float32)),
        ("d2t", np.zeros(10, dtype=bool)),
        ("midlayer.mlp.up_proj.weight", np.zeros((24, 16), dtype=np.int32)),
    ],
)
def test_numbers_of_another_kind_are_named(tmp_path: Path, name: str, values: np.ndarray) -> None:
    with pytest.raises(CannotReplay, match=f"{name} is of "):
        load_drafter(open_draft(written(tmp_path / "draft", {}, {**draft_tensors(), name: values})))


# -- memory ------------------------------------------------------------------------------------------------------------


def giant(folder: Path, vocab: int) -> Path:
    """A draft whose head is said to have `vocab` rows, in a file that is all hole behind its header."""
    tensors = {name: value for name, value in draft_tensors().items() if name not in ("lm_head.weight", "d2t")}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    write_tensors(folder / "model.safetensors", tensors)
    size = vocab * 16 * 2
    header = {"lm_head.weight": {"dtype": "BF16", "shape": [vocab, 16], "data_offsets": [0, size]}}
    path = folder / "model-2.safetensors"
    path.write_bytes(with_header(header))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + size)
    return folder


def test_a_draft_larger_than_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(CannotReplay, match=r"its weights take 4096\.0 GiB in float32, more than .* GiB"):
        load_drafter(open_draft(giant(tmp_path / "draft", 2**36)))


@pytest.mark.parametrize(
    ("free", "words"),
    [
        (
            4096,
            r"take 0\.0 GiB in float32, more than 0\.0 GiB, half of the 0\.0 GiB that are free; run the check where",
        ),
        (None, ""),
        (2**50, ""),
    ],
)
def test_half_of_what_is_free_is_taken_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int | None, words: str
) -> None:
    monkeypatch.setattr(loading, "free_memory", lambda: free)
    draft = open_draft(written(tmp_path / "draft", {}))
    if not words:
        assert load_drafter(draft).shape.hidden == 16
        return
    with pytest.raises(CannotReplay, match=words):
        load_drafter(draft)


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    2048 kB\n"}, 2 << 20),
        ({"/proc/meminfo": "MemAvailable:\n"}, None),
        ({"/proc/meminfo": "MemAvailable: many kB\n"}, None),
        ({}, None),
        ({"memory.max": "3000\n", "memory.current": "1000\n", "memory.stat": "anon 1\ninactive_file 500\n"}, 2500),
        ({"memory.max": "max\n", "memory.current": "1000\n"}, None),
        ({"memory.max": "3000\n", "memory.current": "4000\n", "memory.stat": "odd\n"}, 0),
        ({"/proc/meminfo": "MemAvailable: 1 kB\n", "memory.max": "3000", "memory.current": "1000"}, 1024),
    ],
)
def test_free_memory_is_what_the_system_and_the_container_leave(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], free: int | None
) -> None:
    held = {name.rpartition("/")[2]: text for name, text in files.items()}
    monkeypatch.setattr(loading, "_text", lambda path: held.get(path.rpartition("/")[2], ""))
    assert loading.free_memory() == free


# -- against torch and transformers ------------------------------------------------------------------------------------

ROPES: dict[str, dict[str, Any]] = {
    "plain": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64},
    "yarn": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 32, "beta_fast": 32.0,
             "beta_slow": 1.0},
    "yarn with magnitudes": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32,
                             "mscale": 1.0, "mscale_all_dim": 0.7},
}  # fmt: skip


def random_draft(flags: dict[str, Any], rope: dict[str, Any]) -> tuple[Any, dict[str, np.ndarray], dict[str, Any]]:
    """Shape, weights by common name, and config of a random draft of two kv heads, H = 32, Ht = 24, m = 3."""
    rng = np.random.default_rng(7)
    hidden, wide, slots, heads, kv, dim, inner, vocab = 32, 24, 3, 4, 2, 16, 40, 50
    sizes = {
        "fc.weight": (hidden, slots * wide), "norm.weight": (hidden,), "lm_head.weight": (vocab, hidden),
        "layer.input_layernorm.weight": (hidden,), "layer.hidden_norm.weight": (hidden,),
        "layer.post_attention_layernorm.weight": (hidden,),
        "layer.self_attn.q_proj.weight": (heads * dim, 2 * hidden),
        "layer.self_attn.k_proj.weight": (kv * dim, 2 * hidden),
        "layer.self_attn.v_proj.weight": (kv * dim, 2 * hidden),
        "layer.self_attn.o_proj.weight": (hidden, heads * dim),
        "layer.mlp.gate_proj.weight": (inner, hidden), "layer.mlp.up_proj.weight": (inner, hidden),
        "layer.mlp.down_proj.weight": (hidden, inner),
    }  # fmt: skip
    if flags.get("fc_norm"):
        sizes.update({f"fc_norm.{i}.weight": (wide,) for i in range(slots)})
    if flags.get("norm_before_fc"):
        sizes["input_norm.weight"] = (slots * wide,)
    weights = {
        name: (rng.normal(size=size) / (size[-1] ** 0.5 if len(size) == 2 else 4) + (len(size) == 1)).astype(np.float32)
        for name, size in sizes.items()
    }
    config = {
        "hidden_size": hidden, "target_hidden_size": wide, "num_attention_heads": heads, "num_key_value_heads": kv,
        "head_dim": dim, "intermediate_size": inner, "rms_norm_eps": 1e-5, "num_hidden_layers": 1,
        "max_position_embeddings": 512, "rope_parameters": {"rope_theta": 5000.0, **rope}, **flags,
    }  # fmt: skip
    return draft_shape(config, sizes), weights, config


def by_transformers(
    weights: dict[str, np.ndarray], config: dict[str, Any], aux: np.ndarray, embedded: np.ndarray, steps: int
) -> list[np.ndarray]:
    """The same draft from transformers' Llama blocks and one dense mask over the keys of all steps."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import (
        LlamaMLP,
        LlamaRMSNorm,
        LlamaRotaryEmbedding,
        apply_rotary_pos_emb,
        repeat_kv,
    )

    llama = LlamaConfig(**{k: v for k, v in config.items() if k not in ("target_hidden_size",)})
    w = {name: torch.from_numpy(value) for name, value in weights.items()}
    rotary, mlp = LlamaRotaryEmbedding(llama), LlamaMLP(llama)
    mlp.load_state_dict(
        {f"{part}.weight": w[f"layer.mlp.{part}.weight"] for part in ("gate_proj", "up_proj", "down_proj")}
    )

    def norm(x: Any, name: str) -> Any:
        block = LlamaRMSNorm(x.shape[-1], eps=config["rms_norm_eps"])
        block.weight.data = w[name]
        return block(x)

    rows, wide = len(aux), config["target_hidden_size"]
    anchors = rows - steps
    x = torch.from_numpy(aux[:anchors])
    if config.get("fc_norm"):
        x = torch.cat([norm(part, f"fc_norm.{i}.weight") for i, part in enumerate(x.split(wide, dim=-1))], dim=-1)
    if config.get("norm_before_fc"):
        x = norm(x, "input_norm.weight")
    hidden = x @ w["fc.weight"].T
    keys, values, out = [], [], []
    causal, diagonal = torch.ones(anchors, anchors).tril().bool(), torch.eye(anchors).bool()
    for j in range(steps):
        token = torch.from_numpy(embedded[1 + j : 1 + j + anchors])
        z = torch.cat([norm(token, "layer.input_layernorm.weight"), norm(hidden, "layer.hidden_norm.weight")], dim=-1)
        q, k, v = (
            (z @ w[f"layer.self_attn.{part}_proj.weight"].T).view(1, anchors, -1, config["head_dim"]).transpose(1, 2)
            for part in "qkv"
        )
        q, k = apply_rotary_pos_emb(q, k, *rotary(z[None], (torch.arange(anchors) + j)[None]))
        keys.append(k)
        values.append(v)
        mask = torch.cat([causal, *[diagonal] * j], dim=1)
        group = config["num_attention_heads"] // config["num_key_value_heads"]
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q, repeat_kv(torch.cat(keys, dim=2), group), repeat_kv(torch.cat(values, dim=2), group), attn_mask=mask
        )
        residual = norm(hidden, "layer.hidden_norm.weight") if config.get("norm_before_residual") else hidden
        residual = residual + mixed.transpose(1, 2).reshape(anchors, -1) @ w["layer.self_attn.o_proj.weight"].T
        hidden = residual + mlp(norm(residual, "layer.post_attention_layernorm.weight"))
        normed = norm(hidden, "norm.weight")
        out.append((normed @ w["lm_head.weight"].T).detach().numpy())
        hidden = normed if config.get("norm_output") else hidden
    return out


@pytest.mark.torch
@pytest.mark.parametrize("rope", ROPES, ids=str)
@pytest.mark.parametrize(
    "flags",
    [{}, {"norm_before_residual": True}, {"norm_output": True}, {"fc_norm": True}, {"norm_before_fc": True},
     {"norm_before_residual": True, "norm_output": True, "fc_norm": True}],
    ids=lambda flags: "+".join(flags) or "none",
)  # fmt: skip
def test_logits_equal_those_of_transformers_blocks(flags: dict[str, Any], rope: str) -> None:
    import torch

    shape, weights, config = random_draft(flags, ROPES[rope])
    rng = np.random.default_rng(11)
    aux, embedded = (rng.normal(size=(140 + STEPS, width)).astype(np.float32) for width in (72, 32))
    expected = by_transformers(weights, config, aux, embedded, STEPS)
    for xp, make in ((np, np.asarray), (torch, torch.from_numpy)):
        drafter = Drafter(shape, {name: make(value) for name, value in weights.items()}, xp)
        fused = drafter.fuse(make(aux[:140]))
        parts = list(drafter.unroll(fused, make(embedded), STEPS, 0, 140))
        assert [start for start, _ in parts] == [0, 128]
        for j in range(STEPS):
            got = np.concatenate([np.asarray(logits[j]) for _, logits in parts])
            np.testing.assert_allclose(got, expected[j], rtol=1e-3, atol=2e-5)
