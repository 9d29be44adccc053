"""Look at gradients just before data-parallel communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from megatron_nanguard.patching.point import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper

if TYPE_CHECKING:
    from megatron_nanguard.megatron_api.protocols import AnyBucketGroup


def make_wrapper(before_reduction: Callable[[AnyBucketGroup, bool], None]) -> Wrapper:
    """``before_reduction(bucket_group, force_all_reduce)`` may run on an autograd thread; no collective in it."""

    def start_grad_sync(wrapped: Wrapped, instance: AnyBucketGroup, args: Args, kwargs: Kwargs) -> object:
        before_reduction(instance, bool(args[0] if args else kwargs.get("force_all_reduce", False)))
        return wrapped(*args, **kwargs)

    return start_grad_sync


POINT = PatchPoint(
    name="start_grad_sync",
    group="before_reduction",
    targets=(
        Target(
            "megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup.start_grad_sync",
            since="0.9",
            parameters=("self",),
            family=True,
        ),
        Target(
            "megatron.core.distributed.param_and_grad_buffer:Bucket.start_grad_sync", until="0.8", parameters=("self",)
        ),
    ),
    why="last moment at which a NaN still belongs to a single rank",
    lost="which ranks were bad before the reduction; the check after it stays",
    make_wrapper=make_wrapper,
)
