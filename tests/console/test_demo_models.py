"""The shipped pair, cache and prompts: the layouts the real engines and trainers read, and a bound on their size."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import console.demo

DEMO = Path(console.demo.__file__).parent
TARGET, DRAFT, CACHE = DEMO / "models/target", DEMO / "models/draft", DEMO / "cache"
HIDDEN, LAYERS, VOCAB, DRAFT_VOCAB = 128, 12, 260, 128

LAYER = {
    "input_layernorm.weight": [128],
    "self_attn.q_proj.weight": [128, 128],
    "self_attn.k_proj.weight": [64, 128],
    "self_attn.v_proj.weight": [64, 128],
    "self_attn.o_proj.weight": [128, 128],
    "post_attention_layernorm.weight": [128],
    "mlp.gate_proj.weight": [384, 128],
    "mlp.up_proj.weight": [384, 128],
    "mlp.down_proj.weight": [128, 384],
}
WIDE = {f"self_attn.{p}_proj.weight": [rows, 2 * HIDDEN] for p, rows in (("q", 128), ("k", 64), ("v", 64))}


def header(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Type and shape of every tensor in a safetensors file, from its header alone."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        listed = json.loads(file.read(size))
    listed.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"]) for name, entry in listed.items()}


def widened(path: Path) -> dict[str, np.ndarray]:
    """The bf16 tensors of a file as fp32; numpy has no bf16, so their bytes are widened by hand."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    listed = json.loads(raw[8 : 8 + size])
    out = {}
    for name, entry in listed.items():
        if entry.get("dtype") == "BF16":
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            words = np.frombuffer(raw[start:end], dtype="<u2").astype("<u4") << 16
            out[name] = words.view("<f4").reshape(entry["shape"])
    return out


def tensor(path: Path, name: str) -> np.ndarray:
    with safe_open(path, framework="numpy") as file:
        return np.asarray(file.get_tensor(name))


def test_target_has_the_names_and_shapes_of_a_hugging_face_llama() -> None:
    expected = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN]}
    expected |= {"lm_head.weight": [VOCAB, HIDDEN]}
    expected |= {f"model.layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in LAYER.items()}
    assert header(TARGET / "model.safetensors") == {name: ("BF16", shape) for name, shape in expected.items()}


def test_target_config_describes_its_weights() -> None:
    config = json.loads((TARGET / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    sizes = ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    assert [config[key] for key in sizes] == [HIDDEN, LAYERS, VOCAB, 4, 2, 32]
    assert config["intermediate_size"] == 384
    assert not config["tie_word_embeddings"]
    assert [config[f"{token}_token_id"] for token in ("bos", "eos", "pad")] == [256, 257, 258]


def test_tokenizer_is_one_id_a_byte_and_four_special_tokens() -> None:
    model = json.loads((TARGET / "tokenizer.json").read_text())["model"]
    assert model["merges"] == []
    assert sorted(model["vocab"].values()) == list(range(VOCAB))
    assert [model["vocab"][letter] for letter in "Az~"] == list(b"Az~")
    assert model["vocab"]["\u0120"] == ord(" ") and model["vocab"]["\u010a"] == ord("\n")


def test_draft_has_specforge_names_and_shares_the_targets_embedding() -> None:
    expected = {"fc.weight": ("BF16", [HIDDEN, 3 * HIDDEN]), "norm.weight": ("BF16", [HIDDEN])}
    expected |= {"lm_head.weight": ("BF16", [DRAFT_VOCAB, HIDDEN]), "midlayer.hidden_norm.weight": ("BF16", [HIDDEN])}
    expected |= {f"midlayer.{name}": ("BF16", shape) for name, shape in (LAYER | WIDE).items()}
    expected |= {"d2t": ("I64", [DRAFT_VOCAB]), "t2d": ("BOOL", [VOCAB])}
    assert header(DRAFT / "model.safetensors") == expected


def test_draft_config_names_the_trained_states_by_the_engines_rule() -> None:
    config = json.loads((DRAFT / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [2, 6, 9], "use_aux_hidden_state": True}
    sizes = ("draft_vocab_size", "vocab_size", "num_hidden_layers", "hidden_size", "target_hidden_size")
    assert [config[key] for key in sizes] == [DRAFT_VOCAB, VOCAB, 1, HIDDEN, HIDDEN]


def test_draft_vocabulary_maps_agree() -> None:
    offsets = tensor(DRAFT / "model.safetensors", "d2t")
    kept = tensor(DRAFT / "model.safetensors", "t2d")
    ids = np.arange(DRAFT_VOCAB) + offsets
    assert np.all(np.diff(ids) > 0)
    assert np.array_equal(np.flatnonzero(kept), ids)
    # An identity map would hide an engine that forgets the offsets.
    assert len(np.unique(offsets)) > 1


@pytest.mark.parametrize("name", ["target", "draft"])
def test_every_weight_is_finite_and_no_matrix_is_left_at_zero(name: str) -> None:
    for key, values in widened(DEMO / "models" / name / "model.safetensors").items():
        assert np.isfinite(values).all(), key
        assert np.abs(values).max() > 0, key


def test_cache_files_hold_four_states_and_the_ids_they_belong_to() -> None:
    paths = sorted(CACHE.iterdir())
    assert {p.name for p in paths} == {f"hs_{i}.safetensors" for i in range(12)}
    embedding = widened(TARGET / "model.safetensors")["model.embed_tokens.weight"]
    for path in paths:
        length = header(path)["token_ids"][1][0]
        assert header(path) == {
            "hidden_states": ("BF16", [length, 4, HIDDEN]),
            "token_ids": ("I64", [length]),
        }
        ids = tensor(path, "token_ids")
        assert ids.min() >= 0 and ids.max() < 256
        states = widened(path)["hidden_states"]
        assert np.isfinite(states).all()
        # No slot is the embedding, and no two slots are the same state.
        slots = [embedding[ids], *states.transpose(1, 0, 2)]
        for i, low in enumerate(slots):
            for high in slots[i + 1 :]:
                assert np.linalg.norm(high - low) > 0.1 * np.linalg.norm(high)


def test_last_cached_state_is_before_the_final_norm_and_predicts_the_text() -> None:
    weights = widened(TARGET / "model.safetensors")
    norm, head = weights["model.norm.weight"], weights["lm_head.weight"]
    for path in sorted(CACHE.iterdir()):
        last = widened(path)["hidden_states"][:, -1]
        normed = last / np.sqrt((last**2).mean(-1, keepdims=True) + 1e-5) * norm
        guessed = (normed @ head.T).argmax(-1)[:-1]
        ids = tensor(path, "token_ids")
        # From the end of the prompt (96 ids at most) on, the text is the target's own greedy choice.
        assert np.mean(guessed[96:] == ids[97:]) > 0.97


def test_prompts_are_distinct_short_and_apart_from_the_cache() -> None:
    listed = json.loads((DEMO / "prompts.json").read_text())
    prompts = [text.encode() for text in (*listed["held_out"], *listed["traffic"])]
    assert len(set(prompts)) == len(prompts) == 40
    assert all(48 <= len(p) <= 96 for p in prompts)
    cached = [bytes(tensor(path, "token_ids").tolist()) for path in sorted(CACHE.iterdir())]
    assert not [p for p in prompts if any(text.startswith(p) for text in cached)]


def test_everything_shipped_stays_small() -> None:
    size = sum(p.stat().st_size for folder in (TARGET, DRAFT, CACHE) for p in folder.iterdir())
    assert size < 10_000_000
