"""Replay: what the draft reaches on a cache is what an engine reaches, and other states show when they are paired."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from checks.acceptance import walk
from checks.draft import open_draft
from checks.eagle3 import load_drafter
from checks.finding import ConfigFix, Finding, Verdict
from checks.patch import apply_patch
from checks.replay.judged import num_steps
from checks.request import Request, ServerRequest
from checks.trials import candidates, legal
from tests.checks import pair
from tests.checks.files import bf16, write_tensors
from tests.checks.test_eagle3 import serving

if TYPE_CHECKING:
    from pathlib import Path

CHECK = "replay.accuracy"
PASS, INFO, WARN, FAIL, UNKNOWN = Verdict.PASS, Verdict.INFO, Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN
TEXTS = tuple(range(4))


def replayed(tmp_path: Path, states: tuple[int, ...] | None, everything: bool = True, **more: Any) -> Finding:
    """The finding for a cache of these states (None: the shipped one) and the shipped draft."""
    folder = pair.write_cache(tmp_path / "cache", states, TEXTS) if states else pair.CACHE
    captures = (pair.capture(tmp_path / "all", texts=TEXTS),) if everything else ()
    case = {"draft": pair.DRAFT, "cache": folder, "captures": captures, "engines": (pair.engine(),)}
    return pair.Case(**{**case, **more}).only(CHECK)


def changed(folder: Path, change: Any, config: dict[str, Any] | None = None) -> Path:
    """A copy of the shipped draft with its tensors changed in place by `change`."""
    shutil.copytree(pair.DRAFT, folder)
    weights = open_draft(pair.DRAFT).weights
    assert weights is not None
    tensors = {name: np.array(weights.read(name)) for name in weights.info}
    change(tensors)
    floats = {name: bf16(value) if value.dtype == np.float32 else value for name, value in tensors.items()}
    write_tensors(folder / "model.safetensors", floats)
    if config:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **config}), "utf-8")
    return folder


# -- what it measures --------------------------------------------------------------------------------------------------


def test_the_walk_gives_the_verify_rounds_of_a_real_loop() -> None:
    engine, drafter = serving(), load_drafter(open_draft(pair.DRAFT))
    for index in (1, 4, 8):
        prompt = pair.text(index)[:48].tolist()
        got = engine.generate(prompt, 120)
        ids = np.array([*prompt, *got.tokens])
        states = pair.target().states(ids)
        aux = np.concatenate([states[k] for k in pair.STATES], axis=1)
        said = drafter.predict(drafter.fuse(aux), states[0], 5, 0, len(ids) - 7)
        hits = said == np.stack([ids[2 + j : 2 + j + said.shape[1]] for j in range(5)])
        valid = np.arange(said.shape[1]) >= len(prompt) - 1
        rounds = walk(hits, valid)
        # The text ends inside the loop's last rounds; all those that lie within it are the same.
        counts = np.bincount([accepted for _, accepted in rounds], minlength=6)
        ends = sum(accepted + 1 for _, accepted in rounds)
        assert abs(len(rounds) - got.verify_rounds * ends / (len(got.tokens) - 1)) < 2
        assert np.abs(counts - np.array(got.drafts_histogram)).sum() <= 4


def test_the_shipped_pair_passes_with_its_numbers(tmp_path: Path) -> None:
    finding = replayed(tmp_path, None)
    evidence = finding.evidence
    assert finding.verdict is PASS
    assert finding.fix is None
    assert len(evidence["marginal"]) == len(evidence["conditional"]) == evidence["steps"] == 5
    assert evidence["marginal"][0] == evidence["conditional"][0] > 0.7
    length = evidence["accept_length"]
    assert 1 < length["low"] < length["mean"] < length["high"] < 6
    assert evidence["wirings"][0]["states"] == [3, 7, 10]
    assert all(item["gain"]["mean"] < 0.02 for item in evidence["wirings"][1:])
    assert evidence["loss_mask"] is False
    assert "no loss mask" in finding.summary


def test_the_number_of_steps_is_that_of_the_launch_flags(tmp_path: Path) -> None:
    finding = replayed(tmp_path, None, everything=False, args=("--speculative-num-steps", "3"))
    assert finding.evidence["steps"] == 3
    assert finding.evidence["accept_length"]["high"] < 4.2

    class Asked:
        def __init__(self, **more: Any) -> None:
            self.request = Request(**more)

    server = ServerRequest(argv=("python", "-m", "sglang.launch_server", "--speculative-num-steps=7"))
    assert num_steps(Asked(server=server)) == 7  # type: ignore[arg-type]
    assert num_steps(Asked(args=("--speculative_num_steps", "junk"))) == 5  # type: ignore[arg-type]


def test_a_loss_mask_chooses_the_anchors(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for index in TEXTS:
        ids = pair.text(index)
        mask = (np.arange(len(ids)) >= 100).astype(np.int64)
        pair.write_sample(cache / f"hs_{index}.safetensors", ids, pair.stacked(index, (3, 7, 10, 12)), loss_mask=mask)
    finding = replayed(tmp_path, None, cache=cache)
    assert finding.verdict is PASS
    assert finding.evidence["loss_mask"] is True
    # Anchors 98 … 186 of 192 tokens: the token two places on is trained on, and five steps fit.
    assert finding.evidence["anchors"] == len(TEXTS) * 89
    assert "no loss mask" not in finding.summary


def test_without_target_weights_the_text_is_the_teacher(tmp_path: Path) -> None:
    config_only = tmp_path / "target"
    config_only.mkdir()
    shutil.copy(pair.TARGET / "config.json", config_only)
    embedding = pair.target().weights["model.embed_tokens.weight"]
    draft = changed(tmp_path / "draft", lambda tensors: tensors.update({"embed_tokens.weight": embedding}))
    finding = replayed(tmp_path, None, everything=False, draft=draft, target=config_only)
    assert finding.verdict is INFO
    assert finding.evidence["teacher"] == "the next token of the text"
    assert finding.evidence["marginal"][0] > 0.5


def test_a_post_norm_final_state_is_the_same_teacher(tmp_path: Path) -> None:
    pre = replayed(tmp_path / "pre", (3, 7, 10), everything=False)
    post = pair.Case(draft=pair.DRAFT, cache=pair.write_cache(tmp_path / "post", (3, 7, 10), TEXTS, final="post")).only(
        CHECK
    )
    assert abs(post.evidence["marginal"][0] - pre.evidence["marginal"][0]) < 0.01


def test_progress_is_told(tmp_path: Path) -> None:
    case = pair.Case(draft=pair.DRAFT, cache=pair.CACHE, samples=4)
    case.only(CHECK)
    assert any(note == "replaying the draft" and done == of == 4 for _, done, of, note in case.told)


# -- how it judges -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [(2, 6, 9), (1, 5, 9), (10, 7, 3)])
def test_a_draft_trained_on_other_states_than_cache_and_config_fails(tmp_path: Path, cache: tuple[int, ...]) -> None:
    ids = [k - 1 for k in sorted(cache)]
    draft = shutil.copytree(pair.DRAFT, tmp_path / "draft")
    path = draft / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids
    path.write_text(json.dumps(config), "utf-8")
    finding = replayed(tmp_path, cache, draft=draft)
    assert finding.verdict is FAIL
    assert finding.evidence["suggested_states"] == [3, 7, 10]
    assert finding.evidence["suggested_ids"] == [2, 6, 9]
    if ids == [2, 6, 9]:
        assert finding.fix is None  # the engine feeds the right states already; it is the cache that is wrong
        return
    assert isinstance(finding.fix, ConfigFix)
    fixed = apply_patch(config, finding.fix.patch)
    assert fixed["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]


def test_without_all_states_no_wiring_is_proven(tmp_path: Path) -> None:
    finding = replayed(tmp_path, (2, 6, 9), everything=False)
    assert finding.verdict is INFO
    assert "no wiring is proven" in finding.summary


@pytest.mark.parametrize(("ids", "states"), [([-1, 2, 6], [0, 3, 7]), ([3, 7, 10], [4, 8, 11])])
def test_what_a_fix_is_worth_is_measured_on_the_same_text(tmp_path: Path, ids: list[int], states: list[int]) -> None:
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
    finding = replayed(tmp_path, (3, 7, 10), draft=changed(tmp_path / "draft", lambda tensors: None, config))
    assert finding.verdict is PASS
    (served,) = finding.evidence["served"]
    assert served["states"] == states
    assert served["fix_is_worth"]["low"] > 0
    assert served["accept_length"]["mean"] < finding.evidence["accept_length"]["mean"]


def test_a_capture_of_what_is_served_alone_gives_the_worth_too(tmp_path: Path) -> None:
    fed = pair.capture(tmp_path / "fed", ks=(0, 3, 7), texts=TEXTS)
    finding = replayed(tmp_path, (3, 7, 10), captures=(fed,))
    assert finding.verdict is INFO
    assert finding.evidence["served"][0]["fix_is_worth"]["low"] > 0


def test_a_head_with_shuffled_rows_fails(tmp_path: Path) -> None:
    def shuffle(tensors: dict[str, np.ndarray]) -> None:
        np.random.default_rng(0).shuffle(tensors["lm_head.weight"])

    finding = replayed(tmp_path, None, draft=changed(tmp_path / "draft", shuffle))
    assert finding.verdict is FAIL
    assert "most frequent token" in finding.summary
    assert finding.fix is None


def test_offsets_taken_for_ids_fail(tmp_path: Path) -> None:
    finding = replayed(
        tmp_path, None, draft=changed(tmp_path / "draft", lambda tensors: tensors.update(d2t=tensors["d2t"] + 40))
    )
    assert finding.verdict is FAIL


def test_a_draft_that_reads_no_states_warns(tmp_path: Path) -> None:
    finding = replayed(
        tmp_path,
        None,
        draft=changed(tmp_path / "draft", lambda tensors: tensors["fc.weight"].fill(0)),
        everything=False,
    )
    assert finding.verdict in (WARN, FAIL)
    assert finding.verdict is FAIL or "draws nothing" in finding.summary


def test_noise_in_the_cache_is_not_passed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for index in TEXTS:
        states = pair.stacked(index, (3, 7, 10, 12)).copy()
        states[:, :3] = states[:, :3].std() * np.random.default_rng(index).normal(size=states[:, :3].shape)
        pair.write_sample(cache / f"hs_{index}.safetensors", pair.text(index), states)
    assert replayed(tmp_path, None, cache=cache).verdict is FAIL
    assert replayed(tmp_path, None, cache=cache, everything=False).verdict in (WARN, FAIL)


def test_another_number_of_slots_fails_at_once(tmp_path: Path) -> None:
    finding = replayed(tmp_path, (3, 7), everything=False)
    assert finding.verdict is FAIL
    assert "2 slots" in finding.summary


def test_few_anchors_conclude_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    pair.write_sample(cache / "hs_0.safetensors", pair.text(0)[:40], pair.stacked(0, (3, 7, 10, 12))[:40])
    assert replayed(tmp_path, None, cache=cache, everything=False).verdict is UNKNOWN


def test_a_draft_of_another_kind_is_unknown_with_its_reason(tmp_path: Path) -> None:
    normed = {"midlayer.self_attn.q_norm.weight": np.ones(32, dtype=np.float32)}
    finding = replayed(tmp_path, None, draft=changed(tmp_path / "draft", lambda tensors: tensors.update(normed)))
    assert finding.verdict is UNKNOWN
    assert "q_norm" in finding.summary


def test_a_draft_of_latent_attention_is_replayed(tmp_path: Path) -> None:
    """The shipped draft with latent attention in the place of its own, by chance: it is run, and is worth little."""
    heads, nope, rope, value, rank = 4, 16, 8, 16, 24
    rng = np.random.default_rng(0)

    def matrix(*size: int) -> np.ndarray:
        return (rng.normal(size=size) / size[-1] ** 0.5).astype(np.float32)

    def relay(tensors: dict[str, np.ndarray]) -> None:
        hidden = tensors["norm.weight"].shape[0]
        for part in "qkvo":
            del tensors[f"midlayer.self_attn.{part}_proj.weight"]
        tensors.update({
            "midlayer.self_attn.q_proj.weight": matrix(heads * (nope + rope), 2 * hidden),
            "midlayer.self_attn.kv_a_proj_with_mqa.weight": matrix(rank + rope, 2 * hidden),
            "midlayer.self_attn.kv_a_layernorm.weight": np.ones(rank, dtype=np.float32),
            "midlayer.self_attn.kv_b_proj.weight": matrix(heads * (nope + value), rank),
            "midlayer.self_attn.o_proj.weight": matrix(hidden, heads * value),
        })  # fmt: skip

    sizes = {"num_attention_heads": heads, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": value}
    config = {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "kv_lora_rank": rank, "q_lora_rank": None, **sizes}
    draft = changed(tmp_path / "draft", relay, config)
    finding = replayed(tmp_path, None, everything=False, draft=draft)
    assert finding.verdict in (INFO, WARN, FAIL)
    assert len(finding.evidence["marginal"]) == 5
    assert finding.evidence["accept_length"]["mean"] >= 1


@pytest.mark.parametrize("own", [True, False])
def test_an_embedding_of_another_width_is_unknown_and_named(tmp_path: Path, own: bool) -> None:
    def narrow(tensors: dict[str, np.ndarray]) -> None:
        if own:
            tensors["embed_tokens.weight"] = np.zeros((128, 5), dtype=np.float32)
            return
        half = tensors["norm.weight"].shape[0] // 2
        query, key = (tensors[f"midlayer.self_attn.{part}_proj.weight"].shape[0] for part in "qk")
        inner = tensors["midlayer.mlp.gate_proj.weight"].shape[0]
        shapes = {"q_proj": (query, 2 * half), "k_proj": (key, 2 * half), "v_proj": (key, 2 * half)}
        tensors.update({f"midlayer.self_attn.{part}.weight": np.zeros(size) for part, size in shapes.items()})
        tensors["midlayer.self_attn.o_proj.weight"] = np.zeros((half, query))
        for part, size in (("gate", (inner, half)), ("up", (inner, half)), ("down", (half, inner))):
            tensors[f"midlayer.mlp.{part}_proj.weight"] = np.zeros(size)
        for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            tensors[f"midlayer.{norm}.weight"] = np.ones(half)
        tensors["norm.weight"] = np.ones(half)
        tensors["fc.weight"] = tensors["fc.weight"][:half]
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:, :half].copy()
        tensors.update({name: value.astype(np.float32) for name, value in tensors.items() if value.dtype == np.float64})

    wide = json.loads((pair.DRAFT / "config.json").read_text("utf-8"))
    config = {"head_dim": wide.get("head_dim") or wide["hidden_size"] // wide["num_attention_heads"]}
    config["target_hidden_size"] = pair.target().weights["model.norm.weight"].shape[0]
    finding = replayed(tmp_path, None, everything=False, draft=changed(tmp_path / "draft", narrow, config))
    assert finding.verdict is UNKNOWN
    assert "wide" in finding.summary


def test_no_embedding_anywhere_is_unknown_and_says_what_is_needed(tmp_path: Path) -> None:
    finding = replayed(tmp_path, None, everything=False, target=None)
    assert finding.verdict is UNKNOWN
    assert "--target" in finding.summary


def test_candidates_are_legal_and_hold_the_known_mistakes() -> None:
    tried = legal(candidates((3, 7, 10), 12), 12, {(3, 7, 10)})
    assert (3, 7, 10) not in tried
    assert {(2, 6, 9), (4, 8, 11), (0, 3, 7), (3, 8, 10), (10, 7, 3)} <= set(tried)
    assert all(0 <= k <= 12 for wiring in tried for k in wiring)
    assert len(tried) == len(set(tried))


def test_too_few_captured_anchors_are_no_all_clear(tmp_path: Path) -> None:
    finding = replayed(tmp_path, None, captures=(pair.capture(tmp_path / "one", texts=(0,)),))
    assert finding.verdict is UNKNOWN
    assert finding.evidence["needs"]
