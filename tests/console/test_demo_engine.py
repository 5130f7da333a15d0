"""The embedded engine's verify loop, on random weights: what is captured, what is accepted, what is emitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from console.demo.engine.engine import Engine
from console.demo.engine.errors import ArgumentError, CheckpointError, RequestError
from console.demo.engine.server_args import ServerArgs, parse
from tests.console.random_pair import LAYERS, VOCAB, write_draft_config, write_random_pair

STEPS = 5
PROMPT = list(b"def read(self, size):")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return write_random_pair(tmp_path)


def arguments(pair: tuple[Path, Path], steps: int = STEPS, **changes: Any) -> ServerArgs:
    fields: dict[str, Any] = {
        "model_path": str(pair[0]),
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": str(pair[1]),
        "speculative_num_steps": steps,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": steps + 1,
    }
    return ServerArgs(**fields | changes)


class ScriptedDrafter:
    """Knows the target's continuation of one prompt and proposes it, wrong from a scripted place on in each round."""

    def __init__(self, prompt_tokens: int, continuation: list[int], right: list[int]) -> None:
        self.prompt_tokens, self.continuation, self.right = prompt_tokens, continuation, right
        self.position = 0
        self.round = 0

    def reset(self) -> None:
        self.position = 0
        self.round = 0

    def extend(self, next_tokens: np.ndarray, aux: np.ndarray) -> None:
        assert len(next_tokens) == len(aux)
        self.position += len(next_tokens)

    def propose(self, steps: int) -> np.ndarray:
        known = self.position - self.prompt_tokens + 1
        drafts = np.array(self.continuation[known : known + steps], dtype=np.int64)
        right = self.right[self.round % len(self.right)]
        drafts[right:] = (drafts[right:] + 1) % VOCAB
        self.round += 1
        return drafts


def scripted(pair: tuple[Path, Path], right: list[int], steps: int = STEPS) -> tuple[Engine, list[int]]:
    engine = Engine.load(arguments(pair, steps))
    continuation = list(engine.with_drafter(None).generate(PROMPT, 120).tokens)
    return engine.with_drafter(ScriptedDrafter(len(PROMPT), continuation, right)), continuation


@pytest.mark.parametrize("ids", [(2, 6, 9), (3, 7, 10), (-1, 2, 6), None])
def test_speculation_does_not_change_the_output(pair: tuple[Path, Path], ids: Any) -> None:
    write_draft_config(pair[1], ids)
    engine = Engine.load(arguments(pair))
    plain = engine.with_drafter(None)
    for prompt in (PROMPT, [256], list(range(200))):
        assert engine.generate(prompt, 60).tokens == plain.generate(prompt, 60).tokens


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_an_oracle_drafter_is_accepted_in_full(pair: tuple[Path, Path], steps: int) -> None:
    engine, continuation = scripted(pair, right=[steps], steps=steps)
    got = engine.generate(PROMPT, 1 + 12 * (steps + 1))
    assert list(got.tokens) == continuation[: len(got.tokens)]
    assert got.verify_rounds == 12
    assert got.accept_length == steps + 1
    assert got.drafts_histogram == (*[0] * steps, 12)


def test_rounds_accept_exactly_the_right_prefix(pair: tuple[Path, Path]) -> None:
    right = [0, 3, 5, 1, 4]
    engine, continuation = scripted(pair, right)
    got = engine.generate(PROMPT, 1 + sum(right) + len(right))
    assert list(got.tokens) == continuation[: len(got.tokens)]
    assert got.drafts_histogram == (1, 1, 0, 1, 1, 1)
    assert got.correct_drafts == sum(right)


def test_the_last_round_counts_in_full_but_its_tokens_are_cut(pair: tuple[Path, Path]) -> None:
    engine, continuation = scripted(pair, right=[STEPS])
    got = engine.generate(PROMPT, 3)
    assert list(got.tokens) == continuation[:3]
    assert got.drafts_histogram == (0, 0, 0, 0, 0, 1)
    assert got.finish_reason == "length"


def test_a_stop_token_inside_an_accepted_chain_ends_the_output_there(pair: tuple[Path, Path]) -> None:
    engine, continuation = scripted(pair, right=[STEPS])
    stop = continuation[10]
    end = continuation.index(stop) + 1
    got = engine.generate(PROMPT, 100, stop_tokens=frozenset({stop}))
    assert list(got.tokens) == continuation[:end]
    assert got.finish_reason == "stop"


def test_one_token_needs_no_verify(pair: tuple[Path, Path]) -> None:
    got = Engine.load(arguments(pair)).generate(PROMPT, 1)
    assert (len(got.tokens), got.verify_rounds, got.accept_length) == (1, 0, 0.0)


@pytest.mark.parametrize(
    ("ids", "states"),
    [
        ((2, 6, 9), [3, 7, 10]),
        ((-1, 2, 6), [0, 3, 7]),
        ((9, 2, 6), [3, 7, 10]),
        ((1, 4, 8), [2, 5, 9]),
        (None, [2, 6, 9]),
    ],
)
def test_ids_choose_the_states_one_further_and_ascending(pair: tuple[Path, Path], ids: Any, states: list[int]) -> None:
    write_draft_config(pair[1], ids)
    engine = Engine.load(arguments(pair))
    got = engine.generate(PROMPT, 40, keep_hidden=True)
    every = engine.states([*PROMPT, *got.tokens[:-1]])
    assert every.shape == (len(PROMPT) + 39, LAYERS + 1, 128)
    assert got.hidden_states is not None
    np.testing.assert_allclose(got.hidden_states, every[:, states].reshape(len(every), -1), rtol=0, atol=1e-9)


def test_ids_outside_eagle_config_are_ignored(pair: tuple[Path, Path]) -> None:
    config = pair[1] / "config.json"
    write_draft_config(pair[1], None)
    config.write_text(config.read_text().replace("{", '{"eagle_aux_hidden_state_layer_ids": [3, 4, 5], ', 1))
    assert Engine.load(arguments(pair)).target.model.layers_to_capture == [2, 6, 9]


def test_states_are_the_residual_stream(pair: tuple[Path, Path]) -> None:
    engine = Engine.load(arguments(pair))
    target = engine.target
    states = engine.states(PROMPT)
    np.testing.assert_array_equal(states[:, 0], target.model.embed_tokens[PROMPT])
    rms = np.sqrt((states[:, -1] ** 2).mean(axis=1, keepdims=True) + target.config.rms_eps)
    final = states[:, -1] / rms * target.model.norm
    assert int((final @ target.lm_head)[-1].argmax()) == engine.generate(PROMPT, 1).tokens[0]


def test_a_long_prompt_in_blocks_gives_the_states_of_its_parts(pair: tuple[Path, Path]) -> None:
    engine = Engine.load(arguments(pair))
    ids = [i % 250 for i in range(300)]
    np.testing.assert_allclose(engine.states(ids)[:40], engine.states(ids[:40]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("ids", [(2, 6, LAYERS - 1), (2, 6, 6)])
def test_a_state_that_is_never_captured_does_not_fit_fc(pair: tuple[Path, Path], ids: Any) -> None:
    write_draft_config(pair[1], ids)
    engine = Engine.load(arguments(pair))
    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied \(21x256 and 384x128\)"):
        engine.generate(PROMPT, 4)


@pytest.mark.parametrize(
    ("ids", "message"),
    [(["2", "6", "9"], r'can only concatenate str \(not "int"\) to str'), (5, "'int' object is not iterable")],
)
def test_ids_that_are_no_integers_stop_the_load(pair: tuple[Path, Path], ids: Any, message: str) -> None:
    write_draft_config(pair[1], ids)
    with pytest.raises(TypeError, match=message):
        Engine.load(arguments(pair))


def test_two_ids_do_not_go_with_an_fc_for_three(pair: tuple[Path, Path]) -> None:
    write_draft_config(pair[1], (2, 6))
    with pytest.raises(AssertionError, match=r"Attempted to load weight \(torch.Size\(\[128, 384\]\)\) into parameter"):
        Engine.load(arguments(pair))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculative_eagle_topk": 4}, "Use --speculative-eagle-topk 1"),
        ({"speculative_algorithm": "FOO"}, "Unknown speculative algorithm name: FOO"),
        ({"speculative_algorithm": "NGRAM"}, "EAGLE3 only"),
        ({"speculative_num_steps": None}, "together"),
        ({"speculative_draft_model_path": None}, "--speculative-draft-model-path"),
        ({"context_length": 4096}, r"context_length \(4096\) is greater than the derived context_length \(512\)"),
        ({"tp_size": 2}, "--tp-size 1"),
    ],
)
def test_flags_the_engine_cannot_honour_are_named(
    pair: tuple[Path, Path], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        Engine.load(arguments(pair, **changes))


def test_broken_folders_are_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read .*nowhere.config\.json"):
        Engine.load(arguments(pair, model_path=str(tmp_path / "nowhere")))
    weights = pair[1] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        Engine.load(arguments(pair))
    weights.write_bytes(b"\xff" * 40)
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        Engine.load(arguments(pair))
    (pair[1] / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        Engine.load(arguments(pair))


def test_a_generation_may_fill_the_context(pair: tuple[Path, Path]) -> None:
    engine = Engine.load(arguments(pair, context_length=64))
    prompt = list(range(40))
    assert engine.generate(prompt, 24).tokens == engine.with_drafter(None).generate(prompt, 24).tokens
    continuation = list(engine.with_drafter(None).generate(prompt, 24).tokens) + [0] * STEPS
    oracle = engine.with_drafter(ScriptedDrafter(len(prompt), continuation, [STEPS]))
    assert list(oracle.generate(prompt, 24).tokens) == continuation[:24]


@pytest.mark.parametrize("form", [["--api-key", "hush"], ["--api-key=hush"]])
def test_the_api_key_is_masked_wherever_flags_are_shown(form: list[str]) -> None:
    args = parse(["--model-path", "m", *form], ["python", "-m", "console.demo.engine"])
    assert args.api_key == "hush"
    assert "hush" not in str(args.shown())


@pytest.mark.parametrize("ids", [[], [VOCAB], [-1], [1] * 600])
def test_ids_that_cannot_be_run_are_refused(pair: tuple[Path, Path], ids: list[int]) -> None:
    with pytest.raises(RequestError):
        Engine.load(arguments(pair)).generate(ids, 4)
