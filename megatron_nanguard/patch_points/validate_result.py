"""Keep Megatron from raising for a NaN on one rank alone; its other checks stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from megatron_nanguard.patching.point import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper

if TYPE_CHECKING:
    from megatron_nanguard.megatron_api.protocols import RerunStateMachine


def make_wrapper(is_taken_over: Callable[[object], bool]) -> Wrapper:
    """``is_taken_over(rejection_func)`` says whether the guard does this check instead of Megatron."""

    def validate_result(wrapped: Wrapped, instance: RerunStateMachine, args: Args, kwargs: Kwargs) -> object:
        rejection_func = kwargs["rejection_func"] if "rejection_func" in kwargs else args[1]
        return None if is_taken_over(rejection_func) else wrapped(*args, **kwargs)

    return validate_result


POINT = PatchPoint(
    name="validate_result",
    group="host_checks",
    targets=(
        Target(
            "megatron.core.rerun_state_machine:RerunStateMachine.validate_result",
            since="0.10",
            parameters=("self", "result", "rejection_func", "message"),
        ),
    ),
    why="a reproducible NaN would end in exit 16 before the optimizer, or raise on one rank while the others hang",
    lost="with Megatron's own NaN check on it acts first; --no-check-for-nan-in-loss-and-grad keeps it quiet",
    make_wrapper=make_wrapper,
)
