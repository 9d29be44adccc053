"""Take part in the vote on ranks without trainable parameters, whose step() returns before prepare_grads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megatron_nanguard.patching import PatchPoint, Target, Wrapper


def make_wrapper(step: Callable[[Callable[[], Any], Any], Any]) -> Wrapper:
    """``step(wrapped, optimizer)`` calls ``wrapped`` and gives its result."""

    def optimizer_step(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
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
