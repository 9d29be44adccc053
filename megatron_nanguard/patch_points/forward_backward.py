"""Begin a step when the pipeline schedule is called, and follow its micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from megatron_nanguard.patching.point import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper

if TYPE_CHECKING:
    from megatron_nanguard.megatron_api.protocols import Schedule, ScheduleArguments

MODULE = "megatron.core.pipeline_parallel.schedules"


def make_wrapper(schedule_called: Callable[[Schedule, ScheduleArguments], ScheduleArguments]) -> Wrapper:
    """``schedule_called(schedule, kwargs)`` gives the keyword arguments to go on with."""

    def forward_backward(wrapped: Wrapped, instance: None, args: Args, kwargs: Kwargs) -> object:
        return wrapped(*args, **schedule_called(wrapped, kwargs))

    return forward_backward


POINT = PatchPoint(
    name="forward_backward",
    group="step",
    targets=tuple(
        Target(f"{MODULE}:{name}", parameters=("forward_step_func", "data_iterator", "model", "num_microbatches"))
        for name in (
            "forward_backward_no_pipelining",
            "forward_backward_pipelining_with_interleaving",
            "forward_backward_pipelining_without_interleaving",
        )
    ),
    why="a step begins here, in every trainer",
    lost="steps and losses of micro-batches: the run is unguarded",
    make_wrapper=make_wrapper,
)
