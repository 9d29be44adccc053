"""Decide before the optimizer reads, unscales or clips anything; veto in the one way common to all releases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from megatron_nanguard.patching.point import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper

if TYPE_CHECKING:
    from megatron_nanguard.megatron_api.protocols import MegatronOptimizer

OPTIMIZERS = "megatron.core.optimizer.optimizer"


def make_wrapper(decide: Callable[[Callable[[], Any], MegatronOptimizer], Any]) -> Wrapper:
    """``decide(call, optimizer)`` calls ``call`` (the host's own) and gives its result, or one of its own.

    The result of ``prepare_grads`` is a bool, in which True is a veto; that of ``step`` is a `StepResult`.
    """

    def decision(wrapped: Wrapped, instance: MegatronOptimizer, args: Args, kwargs: Kwargs) -> object:
        return decide(lambda: wrapped(*args, **kwargs), instance)

    return decision


PREPARE_GRADS = PatchPoint(
    name="prepare_grads",
    group="decision",
    targets=(
        *(
            Target(f"{OPTIMIZERS}:{name}.prepare_grads", parameters=("self",), family=True)
            for name in ("ChainedOptimizer", "MixedPrecisionOptimizer", "FP32Optimizer")
        ),
        Target("megatron.core.models.mimo.optimizer:MimoOptimizer.prepare_grads", since="0.17", parameters=("self",)),
    ),
    why="weights, gradients and loss scale are still those of the step; every step() skips if it returns True",
    lost="the decision: the run is unguarded",
    make_wrapper=make_wrapper,
)

OPTIMIZER_STEP = PatchPoint(
    name="optimizer_step",
    group="decision",
    targets=(Target(f"{OPTIMIZERS}:ChainedOptimizer.step", parameters=("self",), family=True),),
    why="core 0.11 returns from step() at once on a stub rank; its peers would wait for its vote",
    lost="the decision: the run is unguarded",
    make_wrapper=make_wrapper,
)
