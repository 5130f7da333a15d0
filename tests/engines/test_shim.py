"""The stand-in kernels against what PyTorch itself computes."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

HEADS, KV, WIDTH, POOL = 4, 2, 8, 32
SCALE = 1 / math.sqrt(WIDTH)


@pytest.fixture(scope="module")
def torch() -> Any:
    import torch

    torch.manual_seed(0)
    return torch


@pytest.fixture(scope="module")
def kernels(torch: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).with_name("shim")))
        return importlib.import_module("sgl_kernel")


class Requests:
    """Two requests of 5 and 7 tokens whose keys and values lie scattered in one pool."""

    def __init__(self, torch: Any) -> None:
        self.lengths = torch.tensor([5, 7])
        slots = torch.randperm(POOL)[:12]
        self.rows = torch.tensor([1, 0])
        self.table = torch.zeros(2, 16, dtype=torch.int32)
        self.table[1, :5], self.table[0, :7] = slots[:5].int(), slots[5:].int()
        self.slots = (slots[:5], slots[5:])
        self.keys, self.values = torch.randn(POOL, KV, WIDTH), torch.randn(POOL, KV, WIDTH)

    def expected(self, torch: Any, query: Any, which: int, keys: Any, values: Any) -> Any:
        """Attention of the last tokens of one request, by PyTorch: query [L, heads, D]."""
        slots = self.slots[which]
        k, v = (item[slots].transpose(0, 1).repeat_interleave(HEADS // KV, 0) for item in (keys, values))
        length, total = query.shape[0], len(slots)
        seen = torch.ones(length, total, dtype=torch.bool).tril(total - length)
        out = torch.nn.functional.scaled_dot_product_attention(query.transpose(0, 1), k, v, attn_mask=seen, scale=SCALE)
        return out.transpose(0, 1)


def test_a_decode_step_stores_its_token_and_attends_to_its_request(torch: Any, kernels: Any) -> None:
    batch = Requests(torch)
    query, key, value = torch.randn(2, HEADS, WIDTH), torch.randn(2, KV, WIDTH), torch.randn(2, KV, WIDTH)
    keys, values, out = batch.keys.clone(), batch.values.clone(), torch.empty(2, HEADS, WIDTH)
    newest = torch.stack([batch.slots[0][-1], batch.slots[1][-1]])
    torch.ops.sgl_kernel.decode_attention_cpu(
        query, keys, values, 1.0, 1.0, out, key, value, newest, torch.empty(0), batch.table, batch.rows,
        batch.lengths, SCALE, 0.0, False, 0, None, None,
    )  # fmt: skip
    assert torch.equal(keys[newest], key) and torch.equal(values[newest], value)
    for which in range(2):
        torch.testing.assert_close(
            out[which : which + 1], batch.expected(torch, query[which : which + 1], which, keys, values)
        )


def test_an_extend_step_attends_causally_to_prefix_and_new_tokens(torch: Any, kernels: Any) -> None:
    batch = Requests(torch)
    query, out = torch.randn(6, HEADS, WIDTH), torch.empty(6, HEADS, WIDTH)
    torch.ops.sgl_kernel.extend_attention_cpu(
        query, None, None, out, batch.keys, batch.values, 1.0, 1.0, batch.table, batch.rows, batch.lengths,
        torch.tensor([2, 4]), torch.tensor([0, 2]), 4, SCALE, 0.0, False, 0, None, None, None, True,
    )  # fmt: skip
    torch.testing.assert_close(out[:2], batch.expected(torch, query[:2], 0, batch.keys, batch.values))
    torch.testing.assert_close(out[2:], batch.expected(torch, query[2:], 1, batch.keys, batch.values))


def test_attention_of_another_kind_is_refused(torch: Any, kernels: Any) -> None:
    batch = Requests(torch)
    with pytest.raises(NotImplementedError, match="plain causal attention"):
        torch.ops.sgl_kernel.extend_attention_cpu(
            torch.randn(6, HEADS, WIDTH), None, None, torch.empty(6, HEADS, WIDTH), batch.keys, batch.values, 1.0,
            1.0, batch.table, batch.rows, batch.lengths, torch.tensor([2, 4]), torch.tensor([0, 2]), 4, SCALE, 30.0,
            False, 0, None, None, None, True,
        )  # fmt: skip


def test_the_layers_are_those_of_pytorch(torch: Any, kernels: Any) -> None:
    x, residual, weight = torch.randn(3, 16), torch.randn(3, 16), torch.rand(16)
    functional, ops = torch.nn.functional, torch.ops.sgl_kernel
    torch.testing.assert_close(ops.rmsnorm_cpu(x, weight, 1e-5), functional.rms_norm(x, (16,), weight, 1e-5))
    normed, total = x.clone(), residual.clone()
    ops.fused_add_rmsnorm_cpu(normed, total, weight, 1e-5)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, functional.rms_norm(x + residual, (16,), weight, 1e-5))
    torch.testing.assert_close(ops.silu_and_mul_cpu(x), functional.silu(x[:, :8]) * x[:, 8:])
    torch.testing.assert_close(
        ops.weight_packed_linear(x, ops.convert_weight_packed(weight[None]), None, True), x @ weight[:, None]
    )


def test_rotation_turns_each_pair_of_a_head_by_its_angle(torch: Any, kernels: Any) -> None:
    positions, angles = torch.tensor([3, 0, 5]), torch.randn(6, WIDTH // 2)
    cache = torch.cat([angles.cos(), angles.sin()], 1)
    query, key = torch.randn(3, HEADS * WIDTH), torch.randn(3, KV * WIDTH)
    turned = torch.ops.sgl_kernel.rotary_embedding_cpu(positions, query, key, WIDTH, cache, True)
    for before, after in zip((query, key), turned):
        pairs = torch.complex(*before.reshape(3, -1, WIDTH).chunk(2, -1))
        by_angle = pairs * torch.polar(torch.ones(3, 1, WIDTH // 2), angles[positions][:, None])
        torch.testing.assert_close(after.reshape(3, -1, WIDTH), torch.cat([by_angle.real, by_angle.imag], -1))


def test_slots_are_written_to_and_read_from_the_rows_of_requests(torch: Any, kernels: Any) -> None:
    table, rows = torch.zeros(3, 8, dtype=torch.int32), torch.tensor([2, 0])
    start, end, slots = torch.tensor([1, 0]), torch.tensor([4, 2]), torch.tensor([10, 11, 12, 13, 14])
    kernels.assign_req_to_token_pool_cpu(rows, table, start, end, slots, 8)
    assert table.tolist() == [[13, 14, 0, 0, 0, 0, 0, 0], [0] * 8, [0, 10, 11, 12, 0, 0, 0, 0]]
    back = torch.zeros(5, dtype=torch.int64)
    kernels.assign_extend_cache_locs_cpu(rows, table, start, end, back, 8)
    assert back.tolist() == slots.tolist()
    drafts = torch.zeros(4, dtype=torch.int64)
    kernels.assign_draft_cache_locs_contiguous_cpu(rows, table, torch.tensor([2, 0]), drafts, 8, 1, 2)
    assert drafts.tolist() == [11, 12, 13, 14]
    assert kernels.build_draft_decode_metadata_cpu(table, rows, end, 1, 2, 8).tolist() == table[[2, 0]].tolist()


def test_rows_of_every_layer_are_copied_even_where_they_overlap(torch: Any, kernels: Any) -> None:
    layers = [torch.arange(12, dtype=torch.float32).reshape(4, 3) + 100 * layer for layer in range(2)]
    expected = [layer[[1, 0, 1, 3]] for layer in layers]
    addresses, sizes = torch.tensor([layer.data_ptr() for layer in layers]), torch.tensor([12, 12])
    kernels.copy_all_layer_kv_cache_cpu(addresses, sizes, torch.tensor([0, 1, 2]), torch.tensor([1, 0, 1]))
    assert all(torch.equal(layer, wanted) for layer, wanted in zip(layers, expected))


def test_ids_move_left_and_the_newest_token_comes_last(torch: Any, kernels: Any) -> None:
    ids = torch.tensor([1, 2, 3, 4, 5])
    kernels.rotate_input_ids_cpu(ids, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([[7], [8]]))
    assert ids.tolist() == [2, 3, 7, 5, 8]
    kernels.rotate_input_ids_cpu(ids, torch.tensor([0]), torch.tensor([3]), torch.tensor([[9]]), torch.tensor([1]))
    assert ids.tolist() == [3, 9, 7, 5, 8]


def test_a_chain_is_accepted_up_to_the_first_wrong_draft(torch: Any, kernels: Any) -> None:
    count = 3
    positions = torch.zeros(3 * count, dtype=torch.int64)
    index, following, sibling = (torch.zeros(3, count, dtype=torch.int64) for _ in range(3))
    lengths = torch.tensor([5, 7, 2])
    kernels.build_tree_kernel_efficient_cpu(
        torch.empty(0), torch.empty(3, 2), lengths, torch.empty(0), positions, index, following, sibling, 1, 2, count, 1
    )
    assert positions.tolist() == [5, 6, 7, 7, 8, 9, 2, 3, 4]
    assert following.tolist() == [[1, 2, -1]] * 3 and sibling.tolist() == [[-1] * 3] * 3

    candidates = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3]])
    choices = torch.tensor([[2, 3, 9], [2, 8, 9], [7, 3, 9]])
    predicts, accepted = torch.full((9,), -1, dtype=torch.int32), torch.full((3, count), -1, dtype=torch.int32)
    correct = torch.zeros(3, dtype=torch.int32)
    kernels.verify_tree_greedy_cpu(predicts, accepted, correct, candidates, index, following, sibling, choices)
    assert correct.tolist() == [2, 1, 0]
    assert accepted.tolist() == [[0, 1, 2], [3, 4, -1], [6, -1, -1]]
    assert predicts.tolist() == [2, 3, 9, 2, 8, -1, 7, -1, -1]

    newest = torch.zeros(3, dtype=torch.int64)
    kernels.fill_bonus_tokens_cpu(torch.tensor([[2, 3, 9], [2, 8, 0], [7, 0, 0]]), correct + 1, newest, count)
    assert newest.tolist() == [9, 8, 7]
    packed = torch.zeros(6, dtype=torch.int64)
    kernels.fill_accept_out_cache_loc_cpu(accepted, torch.arange(20, 29), packed)
    assert packed.tolist() == [20, 21, 22, 23, 24, 26]


def test_a_tree_is_refused(torch: Any, kernels: Any) -> None:
    with pytest.raises(NotImplementedError, match="tree"):
        kernels.build_draft_decode_metadata_cpu(torch.zeros(1, 4), torch.tensor([0]), torch.tensor([2]), 4, 2, 4)


RANK = """
import sys
import torch
import torch.distributed as ranks

sys.path.insert(0, sys.argv[1])
import sgl_kernel

own = int(sys.argv[3])
ranks.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=own, world_size=2)
part = torch.full((2, 3), own + 1.0, dtype=torch.bfloat16)
torch.ops.sgl_kernel.shm_allreduce(part, 0)
assert torch.equal(part, torch.full((2, 3), 3.0, dtype=torch.bfloat16)), part
wide = torch.ops.sgl_kernel.shm_allgather(torch.full((2, 3), float(own)), -1)
assert torch.equal(wide, torch.cat([torch.zeros(2, 3), torch.ones(2, 3)], -1)), wide
# One that leaves while the other is still connected may be aborted by the thread that serves the connection.
ranks.barrier()
ranks.destroy_process_group()
"""


def test_two_ranks_sum_and_gather(tmp_path: Path) -> None:
    words = [sys.executable, "-c", RANK, str(Path(__file__).with_name("shim")), str(tmp_path / "store")]
    processes = [subprocess.Popen([*words, str(rank)], stderr=subprocess.PIPE) for rank in range(2)]
    for process in processes:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said.decode()
