"""A pass of the pipeline schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megatron_nanguard.patch_points.forward_backward import POINT
from tests.unit.one_rank import ONES, trainer
from tests.unit.patch_points.calls import applied


def test_the_schedule_goes_on_with_the_arguments_the_handler_gives(megatron: Any) -> None:
    from megatron.core.pipeline_parallel import schedules

    made = trainer()
    seen: list[Mapping[str, Any]] = []
    called: list[Callable[..., Any]] = []
    schedule = schedules.forward_backward_no_pipelining

    def schedule_called(schedule: Callable[..., Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        called.append(schedule)
        seen.append(kwargs)
        return {**kwargs, "num_microbatches": 2}

    with applied(POINT, schedule_called):
        losses = made.forward_backward([ONES, 2 * ONES, 3 * ONES])
    assert called == [schedule]
    assert seen[0]["num_microbatches"] == 3
    assert seen[0]["model"] == [made.ddp]
    # y = 5 * 3 + 6 * 7 = 57 for ones
    assert [float(one["loss"]) for one in losses] == [57.0, 114.0]
