"""A chunk with gradient buffers laid out by hand, for the arithmetic of buckets and shards.

    element   0  1  2  3  4  5  6  7  8  9 10 11 | 12 13 14 15
    holds     b  b  b  .  a  a  a  a  a  a  .  . |  c  c  c  c      a is 2 x 3; a dot is padding
    bucket    0                                  |  1
    of two    rank 0           | rank 1          |  rank 0| rank 1

`grad_data` counts its elements: 0, 1, 2 and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import Module, Parameter

PLACES = {"a": (4, 10, 0), "b": (0, 3, 0), "c": (12, 16, 1)}
BUCKETS = ((0, 12), (12, 16))


@dataclass(frozen=True)
class Group:
    """A process group as far as it says who and how many."""

    who: int
    how_many: int

    def rank(self) -> int:
        return self.who

    def size(self) -> int:
        return self.how_many


class Chunk(Module):
    """What DDP makes of a model with three parameters."""

    def __init__(self, rank: int = 0, size: int = 1, *, distributed: bool = False, instances: int = 1) -> None:
        super().__init__()
        self.a = Parameter(torch.zeros(2, 3))
        self.b = Parameter(torch.zeros(3))
        self.c = Parameter(torch.zeros(4))
        self.config = SimpleNamespace(qk_layernorm=False)
        self.tp_group = Group(0, 1)
        self.pp_group = Group(0, 1)
        self.lay_out(Group(rank, size), distributed, instances)

    def lay_out(self, group: Group, distributed: bool, instances: int) -> None:
        grad_data = torch.arange(16.0)
        buckets = [SimpleNamespace(offset=start, grad_data=grad_data[start:end]) for start, end in BUCKETS]
        self.buffer: Any = SimpleNamespace(
            grad_data=grad_data,
            buckets=buckets,
            param_index_map={getattr(self, name): place for name, place in PLACES.items()},
            data_parallel_group=group,
            ddp_config=SimpleNamespace(
                use_distributed_optimizer=distributed, num_distributed_optimizer_instances=instances
            ),
        )
        self.buffers = [self.buffer]
        self.expert_parallel_buffers: list[Any] = []
        for name, (start, end, _) in PLACES.items():
            param = getattr(self, name)
            param.main_grad = grad_data[start:end].view(param.shape)
