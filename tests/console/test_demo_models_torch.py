"""The shipped target under transformers: what the embedded engine serves is a Llama that others can load."""

from __future__ import annotations

from pathlib import Path

import pytest

import console.demo

pytestmark = pytest.mark.torch

TARGET = Path(console.demo.__file__).parent / "models/target"
TEXT = "def été(x):\n    return 'ü' + \"a  b\"  # <x>\n\t"


def test_tokenizer_round_trips_bytes() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    assert tokenizer(TEXT).input_ids == list(TEXT.encode())
    assert tokenizer.decode(list(TEXT.encode())) == TEXT
    assert tokenizer.convert_tokens_to_ids(["<bos>", "<eos>", "<pad>", "<unk>"]) == [256, 257, 258, 259]


def test_transformers_computes_the_states_and_logits_the_pair_was_trained_with() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from console.demo.training.export import read_target

    net = read_target()
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    ids = torch.tensor([list((TEXT * 4).encode())])
    with torch.no_grad():
        ours = net.states(ids)
        theirs = model(ids, output_hidden_states=True)
        logits = net.head(ours[-1])
    for mine, other in zip(ours[:-1], theirs.hidden_states[:-1], strict=True):
        # Rounding is judged against the length of a state; neighbouring states are a fifth of it apart or more.
        assert ((mine - other).norm(dim=-1) < 1e-4 * other.norm(dim=-1)).all()
    torch.testing.assert_close(logits, theirs.logits, rtol=1e-4, atol=1e-3)
