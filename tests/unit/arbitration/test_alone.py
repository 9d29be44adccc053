"""A call that is made by one rank alone never enters a collective."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from megatron_nanguard.arbitration.alone import Alone
from megatron_nanguard.arbitration.repro import CannotRun


def test_a_collective_is_refused_before_it_begins(world_of_one: None) -> None:
    x = torch.ones(2)

    with Alone(), pytest.raises(CannotRun, match=r"^a communication needs its group$"):
        dist.all_reduce(x)

    with Alone():
        assert torch.equal(x * 2, torch.full((2,), 2.0))
