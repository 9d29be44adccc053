"""Begin the handshake of the ranks as soon as the parallel groups exist."""

from __future__ import annotations

from collections.abc import Callable

from megatron_nanguard.patching.point import Args, Kwargs, PatchPoint, Target, Wrapped, Wrapper


def make_wrapper(groups_exist: Callable[[int, int | None], None]) -> Wrapper:
    """``groups_exist(rank_offset, local_world_size)`` is called on the function's return."""

    def initialize_model_parallel(wrapped: Wrapped, instance: None, args: Args, kwargs: Kwargs) -> object:
        result = wrapped(*args, **kwargs)
        groups_exist(kwargs.get("rank_offset", 0), kwargs.get("local_world_size"))
        return result

    return initialize_model_parallel


POINT = PatchPoint(
    name="initialize_model_parallel",
    group="handshake",
    targets=(
        Target(
            "megatron.core.parallel_state:initialize_model_parallel",
            parameters=("tensor_model_parallel_size", "pipeline_model_parallel_size"),
        ),
    ),
    why="the first call in which every rank that will train takes part",
    lost="the handshake comes later, when the model is wrapped for data parallelism",
    make_wrapper=make_wrapper,
)
