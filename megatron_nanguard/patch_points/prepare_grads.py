"""Decide before the optimizer reads, unscales or clips anything; veto in the one way common to all releases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from megatron_nanguard.patching.point import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper

if TYPE_CHECKING:
    from megatron_nanguard.megatron_api.protocols import MegatronOptimizer


def make_wrapper(decide: Callable[[Callable[[], bool], MegatronOptimizer], bool]) -> Wrapper:
    """``decide(prepare, optimizer)`` calls ``prepare`` (the host's own) and gives its answer, or True as a veto."""

    def prepare_grads(wrapped: Wrapped, instance: MegatronOptimizer, args: Args, kwargs: Kwargs) -> object:
        return decide(lambda: wrapped(*args, **kwargs), instance)

    return prepare_grads


POINT = PatchPoint(
    name="prepare_grads",
    group="decision",
    targets=(
        *(
            Target(f"megatron.core.optimizer.optimizer:{name}.prepare_grads", parameters=("self",))
            for name in ("ChainedOptimizer", "MixedPrecisionOptimizer", "FP32Optimizer")
        ),
        Target("megatron.core.models.mimo.optimizer:MimoOptimizer.prepare_grads", since="0.17", parameters=("self",)),
    ),
    why="weights, gradients and loss scale are still those of the step; every step() skips if it returns True",
    lost="the decision: the run is unguarded",
    make_wrapper=make_wrapper,
)
