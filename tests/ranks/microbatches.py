"""Which micro-batch a rank works on, for faults that belong to one."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.num_microbatches_calculator import get_num_microbatches
from torch.nn import Module


class Forwards:
    """Which micro-batch a chunk works on: its forwards are counted, a recompute takes them in the same order."""

    def __init__(self, chunk: Module) -> None:
        self.microbatch = -1
        chunk.register_forward_pre_hook(self._begins)

    def _begins(self, chunk: Module, args: Any) -> None:
        if not is_in_backward():
            self.microbatch = (self.microbatch + 1) % get_num_microbatches()


def is_in_backward() -> bool:
    """Whether the engine runs: a forward that is called then is a recompute."""
    return torch._C._current_autograd_node() is not None
