"""One loaded pair: weights, caches and the Python calls that generate with them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from console.demo.engine.checkpoint import TensorSource, read_config, read_shape, read_tensors
from console.demo.engine.decoding import Generation, Limits, Step, decode
from console.demo.engine.drafting import ChainDrafter, Drafter
from console.demo.engine.errors import ArgumentError, CheckpointError, RequestError
from console.demo.engine.models.layers import Floats, Ints, KVCache
from console.demo.engine.models.llama import LlamaForCausalLM
from console.demo.engine.models.llama_eagle3 import LlamaForCausalLMEagle3, aux_layer_ids
from console.demo.engine.server_args import ServerArgs, resolve

GIB = 1024**3
_OVERRIDE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


@dataclass(frozen=True, slots=True)
class LoadEvent:
    """One milestone of loading, in the order it happened; `model` is the class concerned."""

    kind: str
    """begin, end or cache."""
    model: str
    seconds: float = 0.0
    weight_bytes: int = 0
    cache_tokens: int = 0
    cache_bytes: int = 0


class Engine:
    """A target, and with speculation a drafter, ready to generate. Not thread-safe: one call at a time."""

    def __init__(self, args: ServerArgs, target: LlamaForCausalLM, drafter: Drafter | None, context_len: int) -> None:
        """`args` are resolved; use `Engine.load`. Tests pass a drafter of their own."""
        self.args = args
        self.target = target
        self.drafter = drafter
        self.context_len = context_len
        self.eos_tokens: frozenset[int] = frozenset()
        self.steps = args.speculative_num_steps or 0
        self.cache: KVCache = target.new_cache(context_len + self.steps + 1)

    @staticmethod
    def load(args: ServerArgs, on_event: Callable[[LoadEvent], None] = lambda event: None) -> Engine:
        """Read both checkpoints and wire them as the draft's config says.

        Raises ArgumentError for flags, CheckpointError for folders, and what SGLang raises for bad layer ids: TypeError
        when they are not integers. Ids that lead to no layer pass here and fail at the first forward, as in SGLang.
        """
        args, _ = resolve(args)
        began = time.perf_counter()
        on_event(LoadEvent("begin", "LlamaForCausalLM"))
        folder = Path(args.model_path).expanduser()
        config = read_config(folder)
        if config.get("architectures", ["LlamaForCausalLM"]) != ["LlamaForCausalLM"]:
            raise CheckpointError(
                f"Model architectures {config['architectures']} are not supported for now. "
                "Supported architectures: ['LlamaForCausalLM']"
            )
        shape = read_shape(config, str(folder))
        context_len = _context_length(args, shape.max_positions, "User-specified", args.context_length)
        positions = context_len + (args.speculative_num_draft_tokens or 1) + 1
        source = TensorSource(read_tensors(folder), str(folder))
        target = LlamaForCausalLM(source, shape, positions)
        on_event(LoadEvent("end", "LlamaForCausalLM", time.perf_counter() - began, _bytes(folder)))
        drafter = None
        if args.speculative_algorithm is not None:
            drafter = _load_drafter(args, target, context_len, positions, on_event)
        engine = Engine(args, target, drafter, context_len)
        eos = config.get("eos_token_id")
        engine.eos_tokens = frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos])
        on_event(LoadEvent("cache", "LlamaForCausalLM", cache_tokens=context_len, cache_bytes=engine.cache.nbytes))
        if drafter is not None:
            size = drafter.cache_bytes
            on_event(LoadEvent("cache", "LlamaForCausalLMEagle3", cache_tokens=context_len, cache_bytes=size))
        return engine

    def check(self, ids: Sequence[int], max_new_tokens: int = 0) -> Ints:
        """`ids` as an array; raises RequestError when empty, outside the vocabulary, or too long for the context."""
        vocab = self.target.config.vocab
        if not ids:
            raise RequestError("input_ids is empty; send at least one token")
        wrong = next((i for i in ids if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < vocab), None)
        if wrong is not None:
            raise RequestError(f"Token ID {wrong!r} is out of vocabulary (vocab size: {vocab})")
        if len(ids) + max_new_tokens > self.context_len:
            raise RequestError(
                f"Requested token count exceeds the model's maximum context length of {self.context_len} tokens. "
                f"You requested a total of {len(ids) + max_new_tokens} tokens: {len(ids)} tokens from the input "
                f"messages and {max_new_tokens} tokens for the completion. Please reduce the number of tokens in the "
                "input messages or the completion to fit within the limit."
            )
        return np.array(ids, dtype=np.int64)

    def generate(
        self,
        ids: Sequence[int],
        max_new_tokens: int,
        *,
        stop_tokens: frozenset[int] = frozenset(),
        stop_after: Callable[[Sequence[int]], bool] | None = None,
        keep_hidden: bool = False,
        on_step: Callable[[Step], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Generation:
        """Greedy continuation of `ids`; raises RequestError for bad ids, RuntimeError when fc does not fit."""
        prompt = self.check(ids, max_new_tokens)
        if max_new_tokens < 1:
            raise RequestError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        limits = Limits(max_new_tokens, stop_tokens, stop_after, cancelled)
        return decode(
            self.target, self.cache, self.drafter, self.steps, prompt, limits, keep_hidden=keep_hidden, on_step=on_step
        )

    def states(self, ids: Sequence[int]) -> Floats:
        """R_0 … R_n of `ids`, [S, n+1, H]; R_n before the final norm. Raises RequestError for bad ids."""
        return self.target.all_states(self.check(ids))

    def with_drafter(self, drafter: Drafter | None) -> Engine:
        """The same target with another drafter, or with none."""
        args = self.args if drafter else replace(self.args, speculative_algorithm=None, speculative_num_steps=None)
        return Engine(args, self.target, drafter, self.context_len)


def _load_drafter(
    args: ServerArgs, target: LlamaForCausalLM, context_len: int, positions: int, on_event: Callable[[LoadEvent], None]
) -> ChainDrafter:
    """Wire the target as the draft's config says, then load the draft."""
    folder = Path(args.speculative_draft_model_path or "").expanduser()
    config = read_config(folder)
    target.set_eagle3_layers_to_capture(aux_layer_ids(config))
    began = time.perf_counter()
    on_event(LoadEvent("begin", "LlamaForCausalLMEagle3"))
    shape = read_shape(config, str(folder))
    _context_length(args, shape.max_positions, "Target model's", context_len)
    source = TensorSource(read_tensors(folder), str(folder))
    draft = LlamaForCausalLMEagle3(source, config, shape, target.model.embed_tokens, positions)
    on_event(LoadEvent("end", "LlamaForCausalLMEagle3", time.perf_counter() - began, _bytes(folder)))
    return ChainDrafter(draft, positions)


def _context_length(args: ServerArgs, derived: int, reason: str, wanted: int | None) -> int:
    if wanted is None or wanted <= derived:
        return derived if wanted is None else wanted
    if os.environ.get(_OVERRIDE, "").lower() in ("1", "true"):
        return wanted
    raise ArgumentError(
        f"{reason} context_length ({wanted}) is greater than the derived context_length ({derived}). "
        f"To allow overriding this maximum, set the env var {_OVERRIDE}=1"
    )


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
