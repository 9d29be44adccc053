"""What is fed to the model.

mutated     another thread writes into a micro-batch after it was fetched
nan_sample  the loss mask of the samples of one micro-batch holds a NaN
all_masked  no token of one micro-batch counts, and the loss divides by their number
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import megatron.training.training as host
from megatron.core import mpu
from torch import Tensor

from megatron_nanguard.cpurun import pretrain_gpt
from tests.ranks.seams.when import ACCUSED, BAD_MICROBATCH, SEAMS, is_due_here, is_first_time, spoil, worse

_held: list[Tensor] = []


def install() -> None:
    """Stand between the data and the model."""
    pretrain_gpt.WalkDataset.__getitem__ = sampled(pretrain_gpt.WalkDataset.__getitem__)
    pretrain_gpt.get_batch = fetched(pretrain_gpt.get_batch)


class Shared:
    """Stands for a data iterator whose last item another thread still writes into."""

    def __init__(self, inner: Iterator[Any]) -> None:
        self.inner = inner

    def __next__(self) -> Any:
        item = next(self.inner)
        if is_due_here("nan_sample"):
            assert math.isfinite(float(item["loss_mask"].sum())) is worse(False, True)
        if is_due_here("mutated") and is_first_time("mutated"):
            _held.append(item["loss_mask"])
            thread = threading.Thread(target=spoil, args=(item["loss_mask"], 3, 1))
            thread.start()
            thread.join()
        return item


def fetched(get_batch: Callable[..., Any]) -> Callable[..., Any]:
    return lambda data_iterator, vp_stage: get_batch(Shared(data_iterator), vp_stage)


def sampled(getitem: Callable[..., Any]) -> Callable[..., Any]:
    def item(data: Any, index: int) -> Any:
        sample = getitem(data, index)
        args = host.get_args()
        step, place = divmod(int(index), args.global_batch_size)
        per_microbatch = args.micro_batch_size * mpu.get_data_parallel_world_size()
        name = SEAMS.get(str(step + 1))
        if ACCUSED and place // per_microbatch == BAD_MICROBATCH:
            if name == "all_masked":
                sample["loss_mask"][worse(0, 1) :] = 0
            elif name == "nan_sample":
                sample["loss_mask"][5] = worse(math.nan, 1.0)
        return sample

    return item
