"""Buckets and bucket groups of a chunk, and the gradient of one parameter wherever it lies."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch.distributed import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Shard
from torch.nn import Module, Parameter

from megatron_nanguard.megatron_api.buffers import (
    UNKNOWN_START,
    LocalGradient,
    bucket_groups,
    buckets,
    gradient_tensors,
    local_gradient,
)
from tests.unit.megatron_api.chunks import Chunk
from tests.unit.megatron_api.fake_world import fake_world


def test_bucket_groups_of_both_parameter_kinds() -> None:
    chunk = Module()
    chunk.bucket_groups = [SimpleNamespace(buckets=["dense"])]
    chunk.expert_parallel_bucket_groups = [SimpleNamespace(buckets=["expert 0", "expert 1"])]
    assert [buckets(group) for group in bucket_groups(chunk)] == [["dense"], ["expert 0", "expert 1"]]


def test_before_bucket_groups_a_bucket_communicates_for_itself() -> None:
    chunk = Chunk()
    assert [buckets(group) for group in bucket_groups(chunk)] == [[bucket] for bucket in chunk.buffer.buckets]


def test_gradients_beside_the_buffer_count_too() -> None:
    chunk = Chunk()
    chunk.buffer.extra_main_grads = [torch.ones(2)]
    assert [tensor.numel() for tensor in gradient_tensors([chunk])] == [16, 2]
    assert gradient_tensors([torch.nn.Linear(1, 1)]) == []


def test_no_gradient_yet() -> None:
    assert local_gradient(Parameter(torch.zeros(2))) is None


def test_main_grad_goes_before_grad() -> None:
    param = Parameter(torch.zeros(2, 2))
    param.grad = torch.zeros(2, 2)
    param.main_grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    gradient = local_gradient(param)
    assert gradient is not None
    assert (gradient.data.tolist(), gradient.start) == ([1, 2, 3, 4], 0)


def sharded(placement: Placement, rank: int) -> LocalGradient:
    """Gradient of a 5 x 4 parameter over three ranks, as FSDP2 cuts it: rows 0 and 1, rows 2 and 3, row 4."""
    rows = (2, 2, 1)[rank]
    with fake_world(rank, size=3):
        mesh = init_device_mesh("cpu", (3,))
        param = Parameter(torch.zeros(5, 4))
        param.main_grad = DTensor.from_local(torch.ones(rows, 4), mesh, [placement], shape=(5, 4), stride=(4, 1))
        gradient = local_gradient(param)
    assert gradient is not None
    return gradient


def test_the_rows_of_a_later_rank_begin_inside_the_parameter() -> None:
    assert [sharded(Shard(0), rank).start for rank in range(3)] == [0, 8, 16]
    assert sharded(Shard(0), 2).data.numel() == 4


def test_another_sharding_does_not_tell_where_the_part_begins() -> None:
    assert sharded(Partial(), 0).start == UNKNOWN_START
