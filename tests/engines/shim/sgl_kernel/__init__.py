"""SGLang's CPU kernels in plain PyTorch, as far as a dense Llama with an EAGLE-3 chain (top-k 1) calls them.

No package of the registry holds a CPU build of `sgl_kernel`. SGLang 0.5.23 imports some kernels from here by name and
calls the others as torch.ops.sgl_kernel.*; their signatures are SGLang's. Clear rather than fast: a loop over requests.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

__version__ = "0+plain.torch"

_library = torch.library.Library("sgl_kernel", "DEF")


def _operator(schema: str, key: str = "CPU") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as torch.ops.sgl_kernel.NAME."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = _library.define(schema)
        _library.impl(name, function, key)
        return function

    return register


def _missing(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is not among the kernels written for the tests")

    return refuse


# -- attention -----------------------------------------------------------------------------------------------------


def _attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, causal: bool) -> Tensor:
    """Attention of the last L positions over all S: query [L, heads, D], keys and values [S, kv heads, D]."""
    group = query.shape[1] // keys.shape[1]
    q = query.float().transpose(0, 1)
    k, v = (item.float().transpose(0, 1).repeat_interleave(group, 0) for item in (keys, values))
    scores = q @ k.transpose(1, 2) * scale
    if causal:
        length, total = query.shape[0], keys.shape[0]
        hidden = torch.ones(length, total, dtype=torch.bool).triu(total - length + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1)


def _plain_only(logit_cap: float, cross: bool, window: int, encoder: Any, sinks: Any, tree: Any = None) -> None:
    if logit_cap or cross or window > 0 or encoder is not None or sinks is not None or tree is not None:
        _missing("attention other than plain causal attention")()


@_operator(
    "decode_attention_cpu(Tensor query, Tensor(a!) k_cache, Tensor(b!) v_cache, float key_scale, float value_scale, "
    "Tensor(c!) output, Tensor? key, Tensor? value, Tensor loc, Tensor attn_logits, Tensor req_to_token, "
    "Tensor req_pool_indices, Tensor seq_lens, float sm_scale, float logit_cap, bool is_cross_attn, "
    "int sliding_window_size, Tensor? encoder_lens, Tensor? sinks) -> ()"
)
def _decode_attention(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, key_scale: float, value_scale: float, output: Tensor,
    key: Tensor | None, value: Tensor | None, loc: Tensor, attn_logits: Tensor, req_to_token: Tensor,
    req_pool_indices: Tensor, seq_lens: Tensor, sm_scale: float, logit_cap: float, is_cross_attn: bool,
    sliding_window_size: int, encoder_lens: Tensor | None, sinks: Tensor | None,
) -> None:  # fmt: skip
    """One new token a request: its key and value are stored at `loc`, then it attends to the whole of its request."""
    _plain_only(logit_cap, is_cross_attn, sliding_window_size, encoder_lens, sinks)
    if key is not None and value is not None:
        _store(key, value, k_cache, v_cache, loc, 0)
    for row, (pool, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist())):
        slots = req_to_token[pool, :length].long()
        output[row] = _attend(query[row : row + 1], k_cache[slots], v_cache[slots], sm_scale, causal=False)[0]


@_operator(
    "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(a!) o, Tensor k_buffer, Tensor v_buffer, "
    "float key_scale, float value_scale, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
    "Tensor extend_seq_lens, Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap, "
    "bool is_cross_attn, int sliding_window_size, Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask, "
    "bool is_causal) -> ()"
)
def _extend_attention(
    q: Tensor, k: Tensor | None, v: Tensor | None, o: Tensor, k_buffer: Tensor, v_buffer: Tensor, key_scale: float,
    value_scale: float, req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, extend_seq_lens: Tensor,
    extend_start_loc: Tensor, max_len_extend: int, sm_scale: float, logit_cap: float, is_cross_attn: bool,
    sliding_window_size: int, encoder_lens: Tensor | None, sinks: Tensor | None, tree_mask: Tensor | None,
    is_causal: bool,
) -> None:  # fmt: skip
    """The last `extend_seq_lens` tokens of each request attend to it; their keys and values are stored already."""
    _plain_only(logit_cap, is_cross_attn, sliding_window_size, encoder_lens, sinks, tree_mask)
    lengths = zip(req_pool_indices.tolist(), seq_lens.tolist(), extend_seq_lens.tolist(), extend_start_loc.tolist())
    for pool, length, new, start in lengths:
        slots = req_to_token[pool, :length].long()
        o[start : start + new] = _attend(q[start : start + new], k_buffer[slots], v_buffer[slots], sm_scale, is_causal)


@_operator(
    "store_cache_cpu(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor indices, int row_dim) -> ()"
)
def _store(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor, row_dim: int) -> None:
    k_cache[indices] = k.reshape(-1, *k_cache.shape[1:]).to(k_cache.dtype)
    v_cache[indices] = v.reshape(-1, *v_cache.shape[1:]).to(v_cache.dtype)


# -- layers --------------------------------------------------------------------------------------------------------


@_operator("rmsnorm_cpu(Tensor x, Tensor weight, float eps) -> Tensor")
def _rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


@_operator("fused_add_rmsnorm_cpu(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps) -> ()")
def _fused_add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """residual += x, and x becomes the norm of it."""
    total = x.float() + residual.float()
    residual.copy_(total)
    x.copy_(_rmsnorm(total, weight, eps))


@_operator("silu_and_mul_cpu(Tensor x) -> Tensor")
def _silu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return silu(gate) * up


@_operator(
    "rotary_embedding_cpu(Tensor positions, Tensor query, Tensor key, int head_size, Tensor cos_sin_cache, "
    "bool is_neox) -> (Tensor, Tensor)"
)
def _rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool
) -> tuple[Tensor, Tensor]:
    """Rotate the halves of each head; the cache holds [positions, cos | sin]."""
    if not is_neox or cos_sin_cache.shape[-1] != head_size:
        _missing("rotary embedding other than of whole heads by halves")()
    cos, sin = cos_sin_cache[positions.flatten()].float().unsqueeze(1).chunk(2, -1)

    def rotated(heads: Tensor) -> Tensor:
        left, right = heads.float().reshape(positions.numel(), -1, head_size).chunk(2, -1)
        turned = torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
        return turned.to(heads.dtype).reshape(heads.shape)

    return rotated(query), rotated(key)


@_operator("convert_weight_packed(Tensor weight) -> Tensor")
def _convert_weight_packed(weight: Tensor) -> Tensor:
    """Nothing is packed. That the operator exists is what SGLang looks for."""
    return weight.detach().clone()


@_operator("weight_packed_linear(Tensor x, Tensor weight, Tensor? bias, bool is_vnni) -> Tensor")
def _weight_packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, is_vnni: bool) -> Tensor:
    return linear(x, weight, bias)


# -- where keys and values of a request lie --------------------------------------------------------------------------


def _windows(pools: Tensor, start: Tensor, end: Tensor) -> Iterator[tuple[int, int, int, int]]:
    """(pool, start, end, offset in the packed output) a request."""
    offset = 0
    for pool, first, last in zip(pools.tolist(), start.tolist(), end.tolist()):
        yield pool, first, last, offset
        offset += last - first


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """Write the packed slots into each request's row."""
    for pool, first, last, offset in _windows(req_pool_indices, start, end):
        req_to_token[pool, first:last] = out_cache_loc[offset : offset + last - first].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """Read each request's slots from `start` to `end`, packed."""
    for pool, first, last, offset in _windows(req_pool_indices, start, end):
        out_cache_loc[offset : offset + last - first] = req_to_token[pool, first:last].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, out_cache_loc: Tensor, pool_len: int, topk: int,
    num_steps: int,
) -> None:  # fmt: skip
    """The slots of the drafts, right behind each request."""
    end = seq_lens + topk * num_steps
    assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, seq_lens, end, out_cache_loc, pool_len)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, num_steps: int, pool_len: int
) -> Tensor:
    """The rows the draft's steps read: of a chain, the requests' own."""
    return req_to_token[req_pool_indices.long()] if topk == 1 else _missing("a tree of drafts")()


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy rows within every layer's buffer, given as addresses and bytes a row; all are read before one is written."""
    for address, size in zip(data_ptrs.tolist(), strides.tolist()):
        rows = [ctypes.string_at(address + size * row, size) for row in src_loc.tolist()]
        for row, content in zip(tgt_loc.tolist(), rows):
            ctypes.memmove(address + size * row, content, size)


# -- drafting and verifying a chain -----------------------------------------------------------------------------------


def rotate_input_ids_cpu(
    input_ids: Tensor, extend_start_loc: Tensor, extend_seq_lens: Tensor, topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:  # fmt: skip
    """Shift each request's ids left by one and put its newest token at the end, or where `select_index` says."""
    for row, (start, length) in enumerate(zip(extend_start_loc.tolist(), extend_seq_lens.tolist())):
        if length > 0:
            end = start + length
            input_ids[start : end - 1] = input_ids[start + 1 : end].clone()
            input_ids[end - 1 if select_index is None else int(select_index[row])] = topk_index.reshape(-1)[row]


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor, selected_index: Tensor, seq_lens: Tensor, tree_mask: Tensor, positions: Tensor,
    retrieve_index: Tensor, retrieve_next_token: Tensor, retrieve_next_sibling: Tensor, topk: int, depth: int,
    draft_token_num: int, tree_mask_mode: int,
) -> None:  # fmt: skip
    """A chain of `draft_token_num`, the newest accepted token first: each follows the one before, none has siblings.

    The mask is left as it is: attention takes a chain for what it is.
    """
    if topk != 1:
        _missing("a tree of drafts")()
    count = draft_token_num
    steps = torch.arange(count)
    positions.copy_((seq_lens.reshape(-1, 1) + steps).reshape(-1))
    retrieve_index.copy_(torch.arange(retrieve_index.numel()).reshape(-1, count))
    retrieve_next_token.copy_(torch.where(steps < count - 1, steps + 1, -1).expand(len(seq_lens), count))
    retrieve_next_sibling.fill_(-1)


def verify_tree_greedy_cpu(
    predicts: Tensor, accept_index: Tensor, accept_token_num: Tensor, candidates: Tensor, retrive_index: Tensor,
    retrive_next_token: Tensor, retrive_next_sibling: Tensor, target_predict: Tensor,
) -> None:  # fmt: skip
    """Accept drafts while each is the target's own choice; the choice after the last one is the bonus token.

    `candidates` and `target_predict` are [requests, drafts + 1]. Of `accept_index` only what is accepted is written.
    """
    choices = target_predict.reshape(candidates.shape)
    agree = (candidates[:, 1:] == choices[:, :-1]).long()
    for row, correct in enumerate(agree.cumprod(1).sum(1).tolist()):
        kept = retrive_index[row, : correct + 1]
        predicts[kept.long()] = choices[row, : correct + 1].to(predicts.dtype)
        accept_index[row, : correct + 1] = kept.to(accept_index.dtype)
        accept_token_num[row] = correct


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """The last accepted token of each request."""
    count = accept_lens.shape[0]
    last = torch.arange(count) * accept_stride + accept_lens.long() - 1
    bonus_tokens[:count] = accept_tokens.reshape(-1)[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """The slots of what was accepted, packed; -1 stands for what was not."""
    kept = accept_index.reshape(-1)
    kept = kept[kept > -1].long()
    accept_out_cache_loc[: kept.numel()] = out_cache_loc[kept].to(accept_out_cache_loc.dtype)


# -- what SGLang names and this model never calls -------------------------------------------------------------------

for _schema in (
    "murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor",
    "apply_rotary_pos_emb_cpu(Tensor q, Tensor k, Tensor cos, Tensor sin) -> (Tensor, Tensor)",
    "conv3d_embed_cpu(Tensor x) -> Tensor",
    "flash_attn_varlen_func(Tensor x) -> Tensor",
):
    _operator(_schema)(_missing(_schema.partition("(")[0]))


@_operator("init_cpu_threads_env(str cpu_ids) -> ()", "CompositeExplicitAutograd")
def _init_threads(cpu_ids: str) -> None:
    """Threads stay as the environment says."""


@_operator("initialize(int size, int rank) -> ()", "CompositeExplicitAutograd")
def _initialize(size: int, rank: int) -> None:
    """The ranks talk through torch.distributed, which SGLang has set up."""


@_operator("shm_allreduce(Tensor(a!) data, int op) -> ()")
def _all_reduce(data: Tensor, op: int) -> None:
    """The sum over the ranks, in place; SGLang asks for no other reduction."""
    torch.distributed.all_reduce(data)


@_operator("shm_allgather(Tensor data, int dim) -> Tensor")
def _all_gather(data: Tensor, dim: int) -> Tensor:
    """The ranks' parts side by side along `dim`."""
    parts = [torch.empty_like(data) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, data.contiguous())
    return torch.cat(parts, dim)
