from __future__ import annotations

from types import SimpleNamespace

from torch.nn import Linear

from megatron_nanguard.records.coordinates import Coordinates, ParallelSizes
from megatron_nanguard.topology.coordinates import read
from tests.unit.megatron_api.chunks import Group
from tests.unit.megatron_api.fake_world import fake_world


def test_every_axis_is_read_off_the_first_chunk() -> None:
    chunk = Linear(1, 1)
    chunk.pg_collection = SimpleNamespace(
        tp=Group(1, 2),
        cp=Group(0, 2),
        ep=Group(1, 4),
        dp=Group(2, 4),
        pp=Group(0, 3),
        expt_tp=Group(0, 1),
        expt_dp=Group(3, 4),
    )
    with fake_world(rank=9, size=48):
        assert read([chunk, Linear(1, 1)]) == (
            Coordinates(rank=9, tp=1, cp=0, ep=1, dp=2, pp=0, expert_tp=0, expert_dp=3),
            ParallelSizes(world=48, tp=2, cp=2, ep=4, dp=4, pp=3, expert_tp=1, expert_dp=4, vpp=2),
        )
