"""Let ranks without trainable parameters vote, since their step() returns before prepare_grads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from megatron_nanguard.patching.point import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper

if TYPE_CHECKING:
    from megatron_nanguard.megatron_api.protocols import MegatronOptimizer, StepResult


def make_wrapper(step: Callable[[Callable[[], StepResult], MegatronOptimizer], StepResult]) -> Wrapper:
    """``step(wrapped, optimizer)`` calls ``wrapped`` and gives its result."""

    def optimizer_step(wrapped: Wrapped, instance: MegatronOptimizer, args: Args, kwargs: Kwargs) -> object:
        return step(lambda: wrapped(*args, **kwargs), instance)

    return optimizer_step


POINT = PatchPoint(
    name="optimizer_step",
    group="decision",
    targets=(Target("megatron.core.optimizer.optimizer:ChainedOptimizer.step", parameters=("self",)),),
    why="core 0.11 returns from step() at once on a stub rank; its peers would wait for its vote",
    lost="the decision: the run is unguarded",
    make_wrapper=make_wrapper,
)
