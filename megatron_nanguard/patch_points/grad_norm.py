"""Read the gradient norm that Megatron computes, after the vote of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from megatron_nanguard.patching.point import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper

if TYPE_CHECKING:
    from megatron_nanguard.megatron_api.protocols import GradNorm, MegatronOptimizer

OPTIMIZERS = "megatron.core.optimizer.optimizer"


def make_wrapper(norm_known: Callable[[MegatronOptimizer, GradNorm], None]) -> Wrapper:
    """``norm_known(optimizer, norm)`` gets a float, or a one-element tensor that it must not read now."""

    def grad_norm(wrapped: Wrapped, instance: MegatronOptimizer, args: Args, kwargs: Kwargs) -> object:
        norm = wrapped(*args, **kwargs)
        norm_known(instance, norm)
        return norm

    return grad_norm


CLIP_GRAD_NORM = PatchPoint(
    name="clip_grad_norm",
    group="norm",
    targets=(
        Target(
            f"{OPTIMIZERS}:MegatronOptimizer.clip_grad_norm",
            parameters=("self", "clip_grad"),
            called_until="0.11",
            family=True,
        ),
    ),
    why="the norm of a single optimizer, where step() clips by it (0.12 and later only without ChainedOptimizer)",
    lost="the gradient norm in post-mortems, and dead steps",
    make_wrapper=make_wrapper,
)

GET_GRAD_NORM = PatchPoint(
    name="get_grad_norm",
    group="norm",
    targets=(
        Target(f"{OPTIMIZERS}:MegatronOptimizer.get_grad_norm", parameters=("self",), family=True),
        Target(f"{OPTIMIZERS}:ChainedOptimizer.get_grad_norm", since="0.12", parameters=("self",)),
    ),
    why="from 0.12 on ChainedOptimizer.step takes the norm from here and never calls clip_grad_norm",
    lost="the gradient norm in post-mortems, and dead steps",
    make_wrapper=make_wrapper,
)
