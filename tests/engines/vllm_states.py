"""A program for vLLM's environment: its own connector writes hidden states of texts to files, without CUDA.

`python vllm_states.py TARGET FOLDER STATES`, with STATES as a JSON list and, on standard input, a text a line as a JSON
list of token ids.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from typing import Any

ENGINE = "VLLM_ENABLE_V1_MULTIPROCESSING"


class _Done:
    """A stream or an event of a device that has none: whatever it is asked, it has happened."""

    def __init__(self, *args: Any, **options: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: True


def _without_cuda(torch: Any) -> None:
    """The connector copies by a stream of its own into pinned memory; on a CPU all is where it is already."""
    torch.cuda.Stream = torch.cuda.Event = _Done
    torch.cuda.current_stream = _Done
    torch.cuda.stream = contextlib.nullcontext
    empty_like = torch.empty_like
    torch.empty_like = functools.wraps(empty_like)(
        lambda *args, pin_memory=False, **options: empty_like(*args, **options)
    )


def main() -> None:
    """Write `{request}.safetensors` for each text."""
    target, folder, states = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    os.environ[ENGINE] = "0"  # the engine in this very process: it has to have what is put in place here
    import torch
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=target,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_batched_tokens=512,
        enable_prefix_caching=False,
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": states}},
        },
        kv_transfer_config={
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": folder},
        },
    )
    _without_cuda(torch)
    texts = [{"prompt_token_ids": json.loads(line)} for line in sys.stdin]
    # What one step has ended is written in the next one: the last text is a stopper.
    for batch in (texts, texts[:1]):
        engine.generate(batch, SamplingParams(max_tokens=1, temperature=0, detokenize=False))


if __name__ == "__main__":
    main()
