from __future__ import annotations

import torch
from torch.distributed import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Shard
from torch.nn import Parameter

from megatron_nanguard.megatron_api.parameter_gradients import UNKNOWN_START, LocalGradient, local_gradient
from tests.unit.megatron_api.fake_world import fake_world


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
