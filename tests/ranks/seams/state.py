"""Weights that are bad before the step.

bad_copy      the model's weight is bad, the main parameter it was copied from is not
bad_gather    of what the other rank owns and has gathered to all, one element is bad from then on
late_gather   the same where gathering overlaps with the forward: it goes bad when it has arrived, once
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import megatron.training.training as host
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup

from tests.ranks.seams.when import ACCUSED, is_due, is_first_time, spoil, worse


def install() -> None:
    """Stand before each step, and behind each gathering of weights."""
    host.train_step = spoiled_first(host.train_step)
    _ParamAndGradBucketGroup.finish_param_sync = spoiled_after(_ParamAndGradBucketGroup.finish_param_sync)


def spoiled_first(train_step: Callable[..., Any]) -> Callable[..., Any]:
    def step(forward_step: Any, data: Any, chunks: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if ACCUSED and is_due("bad_copy"):
            next(p for p in chunks[0].parameters() if p.dim() == 2).data.view(-1)[3] = worse(math.nan, 0.0)
        if ACCUSED and is_due("bad_gather"):
            spoil(chunks[0].buffers[0].param_data, 3, 1)
        return train_step(forward_step, data, chunks, *args, **kwargs)

    return step


def spoiled_after(finish: Callable[..., Any]) -> Callable[..., Any]:
    def finish_param_sync(group: Any, *args: Any, **kwargs: Any) -> Any:
        had_arrived = group.param_gather_dispatched and group.param_gather_handle is None
        returned = finish(group, *args, **kwargs)
        if not had_arrived and ACCUSED and is_due("late_gather") and is_first_time("late_gather"):
            spoil(group.buckets[0].param_data, 3, 1)
        return returned

    return finish_param_sync
